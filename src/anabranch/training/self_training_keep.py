"""Which decoded answers become training data, and for each of the others why not.

An answer is judged alone first (finished, well formed, untouched by the runtime, right, truly
parallel), then against the others of its problem (duplicates), then by the quotas. Every answer
has exactly one fate, so the table adds up. Nothing here decodes, grades or writes.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from anabranch.dialects import NOTES, Dialect, check_format, parse
from anabranch.metrics import trajectory_metrics
from anabranch.records import Trajectory
from anabranch.training.self_training_config import Keep

#: Why an answer is not kept, in the order in which the reasons are looked for.
REASONS: dict[str, str] = {
    "unfinished": "ended by a limit, the window or an engine's failure, not by an answer",
    "malformed": "breaks a rule of the dialect",
    "repaired": "well formed only because the runtime stepped in",
    "wrong": "the answer is not the right one",
    "ungraded": "the grader could not tell",
    "no_block": "solved in one line, beyond the share that may be",
    "not_parallel": "a block that does not shorten the critical path as asked",
    "thin_branch": "a branch too short to be work",
    "same_branches": "two branches of one block say the same",
    "duplicate": "as good as another answer to its problem, or as an earlier row",
    "problem_quota": "enough answers of its problem were kept",
    "family_quota": "enough answers of its family were kept",
}

#: Tokens of the runs by which two answers are compared.
RUN = 4
_DONE_BRANCHES = frozenset({"closed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Seen:
    """What is remembered of one decoded answer; small, so that many fit into memory.

    ``fault`` is the reason found in it alone, ``detail`` what exactly.
    """

    order: int
    id: str
    problem: str
    family: str
    fault: str | None
    detail: str
    parallel: bool
    well_formed: bool
    correct: bool
    acceleration: float
    path: int
    total: int
    runs: frozenset[int]


@dataclass(frozen=True, slots=True)
class Sieved:
    """The fate of every answer: ``kept`` in order, ``dropped`` with the reason of each."""

    kept: tuple[Seen, ...]
    dropped: tuple[tuple[Seen, str], ...]

    def reasons(self) -> dict[str, int]:
        """How many answers were dropped for each reason, in the order of the checks."""
        counts = Counter(reason for _, reason in self.dropped)
        return {reason: counts[reason] for reason in REASONS if counts[reason]}


@dataclass(slots=True)
class Sieve:
    """Sees answers one by one, then chooses among them.

    Attributes:
        rules: the quotas and thresholds.
        dialect: what the answers are written in.
        seed: of choices that the rules leave open.
    """

    rules: Keep
    dialect: Dialect
    seed: int = 0
    seen: list[Seen] = field(default_factory=list)
    _earlier: dict[str, list[frozenset[int]]] = field(default_factory=lambda: defaultdict(list))

    def know(self, trajectory: Trajectory) -> None:
        """A row that is trained on anyway: answers like it are duplicates."""
        if trajectory.problem is not None:
            self._earlier[_key(trajectory)].append(_runs(trajectory))

    def see(self, trajectory: Trajectory) -> Seen:
        """Judge one graded answer alone, and remember it."""
        fault, detail = fault_of(trajectory, self.rules, self.dialect)
        figures = trajectory_metrics(trajectory, self.dialect)
        found = Seen(
            order=len(self.seen),
            id=trajectory.id,
            problem=_key(trajectory),
            family=(trajectory.problem and trajectory.problem.family) or "",
            fault=fault,
            detail=detail,
            parallel=bool(trajectory.blocks),
            well_formed=_format_fault(trajectory, self.dialect) is None,
            correct=trajectory.verdict is not None and trajectory.verdict.correct,
            acceleration=figures.acceleration,
            path=figures.critical_path,
            total=figures.total_tokens,
            runs=_runs(trajectory) if fault is None else frozenset(),
        )
        self.seen.append(found)
        return found

    def choose(self) -> Sieved:
        """The fate of everything seen."""
        fates: dict[int, str] = {s.order: s.fault for s in self.seen if s.fault is not None}
        ranked = self._ranked([s for s in self.seen if s.fault is None])
        # Answers in one line take what room is left when the parallel ones are in.
        kept = self._fill([s for s in ranked if s.parallel], fates, None)
        share = self.rules.parallel_share
        room = None if share == 0 else int(len(kept) * (1 - share) / share + 1e-9)
        kept += self._fill([s for s in ranked if not s.parallel], fates, room, kept)
        return Sieved(
            kept=tuple(sorted(kept, key=lambda s: s.order)),
            dropped=tuple((s, fates[s.order]) for s in self.seen if s.order in fates),
        )

    def _ranked(self, candidates: list[Seen]) -> list[Seen]:
        random.Random(self.seed).shuffle(candidates)
        if self.rules.prefer == "short":
            candidates.sort(key=lambda s: s.path)
        elif self.rules.prefer == "accelerated":
            candidates.sort(key=lambda s: -s.acceleration)
        return candidates

    def _fill(
        self,
        ranked: Sequence[Seen],
        fates: dict[int, str],
        room: int | None,
        before: Sequence[Seen] = (),
    ) -> list[Seen]:
        kept: list[Seen] = []
        of_problem: dict[str, list[Seen]] = defaultdict(list)
        for one in before:
            of_problem[one.problem].append(one)
        of_family = Counter(one.family for one in before)
        for one in ranked:
            reason = self._refusal(one, of_problem[one.problem], of_family[one.family])
            if reason is None and room is not None and len(kept) >= room:
                reason = "no_block"
            if reason is not None:
                fates[one.order] = reason
                continue
            kept.append(one)
            of_problem[one.problem].append(one)
            of_family[one.family] += 1
        return kept

    def _refusal(self, one: Seen, same: Sequence[Seen], family: int) -> str | None:
        known = [*(other.runs for other in same), *self._earlier.get(one.problem, ())]
        if any(_alike(one.runs, runs) >= self.rules.similarity for runs in known):
            return "duplicate"
        if len(same) >= self.rules.per_problem:
            return "problem_quota"
        if self.rules.per_family is not None and family >= self.rules.per_family:
            return "family_quota"
        return None


def fault_of(trajectory: Trajectory, rules: Keep, dialect: Dialect) -> tuple[str | None, str]:
    """The first reason, in the order of :data:`REASONS`, against an answer alone, and its detail.

    ``(None, "")`` when there is none. Without a verdict an answer counts as not graded.
    """
    if trajectory.outcome != "answered":
        return "unfinished", trajectory.outcome
    if (code := _format_fault(trajectory, dialect)) is not None:
        return "malformed", code
    if (code := _repair(trajectory, dialect)) is not None:
        return "repaired", code
    verdict = trajectory.verdict
    if verdict is None or verdict.status in ("error", "timeout"):
        return "ungraded", verdict.status if verdict is not None else "no verdict"
    if not verdict.correct:
        return "wrong", verdict.status
    return _parallel_fault(trajectory, rules, dialect)


def _format_fault(trajectory: Trajectory, dialect: Dialect) -> str | None:
    found = check_format(parse(trajectory.text, dialect), dialect)
    return next((finding.code for finding in found if finding.is_error), None)


def _repair(trajectory: Trajectory, dialect: Dialect) -> str | None:
    """What the runtime had to do that the text does not show."""
    for block in trajectory.blocks:
        if block.outcome != "joined":
            return f"block {block.outcome}"
        for branch in block.branches:
            if branch.outcome not in _DONE_BRANCHES:
                return f"branch {branch.outcome}"
    harmless = NOTES.keys() | dialect.tolerates
    return next((f.code for f in trajectory.findings if f.code not in harmless), None)


def _parallel_fault(
    trajectory: Trajectory, rules: Keep, dialect: Dialect
) -> tuple[str | None, str]:
    if not trajectory.blocks:
        return ("no_block", "") if rules.parallel_share == 1 else (None, "")
    figures = trajectory_metrics(trajectory, dialect)
    if figures.acceleration < rules.min_acceleration:
        return "not_parallel", f"acceleration {figures.acceleration:.2f}"
    for block in trajectory.blocks:
        texts = []
        for branch in block.branches:
            outputs = [trajectory.segments[trajectory.requests[r].output] for r in branch.requests]
            if branch.outcome == "closed" and sum(map(len, outputs)) < rules.min_branch_tokens:
                return "thin_branch", f"branch {branch.number}"
            if branch.outcome == "closed":
                texts.append(" ".join("".join(s.text for s in outputs).split()))
        if len(set(texts)) < len(texts):
            return "same_branches", ""
    return None, ""


def _key(trajectory: Trajectory) -> str:
    """A problem is known by its text: two files may number theirs alike."""
    return same_text(trajectory.problem.problem) if trajectory.problem is not None else ""


def same_text(text: str) -> str:
    """A text by which equal problems are recognised: white space does not count."""
    return " ".join(text.split())


def _runs(trajectory: Trajectory) -> frozenset[int]:
    """Hashes of all runs of tokens of the answer; tuples of integers hash alike everywhere."""
    ids = [t for i in trajectory.final for t in _answer_ids(trajectory, i)]
    return frozenset(hash(tuple(ids[n : n + RUN])) for n in range(max(1, len(ids) - RUN + 1)))


def _answer_ids(trajectory: Trajectory, index: int) -> Iterable[int]:
    segment = trajectory.segments[index]
    return () if segment.origin == "prompt" else segment.ids


def _alike(one: frozenset[int], other: frozenset[int]) -> float:
    return len(one & other) / len(one | other) if one or other else 1.0
