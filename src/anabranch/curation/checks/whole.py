"""Checks of the whole text: format, what survived of the source, the answer, evaluation sets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from anabranch.annotation.replies import suspicious_controls
from anabranch.curation.checks.findings import Finding, Sample
from anabranch.curation.checks.words import words
from anabranch.dialects import check_format
from anabranch.errors import RecordError, UsageError
from anabranch.grading import Grader
from anabranch.jsonl import read_rows

#: Words in the runs by which problems are compared with those of evaluation sets.
RUN = 13


def format_findings(sample: Sample) -> Iterator[Finding]:
    """Errors of the dialect's format, and control characters that were LaTeX."""
    for found in check_format(sample.document, sample.dialect):
        if found.is_error:
            block = _block_at(sample, found.start)
            message = f"{found.code}: {found.message}"
            yield Finding("format", block, 0, found.start, found.end, message)
    for place in suspicious_controls(sample.text):
        message = f"U+{ord(sample.text[place]):04X} before {sample.text[place + 1]!r}"
        yield Finding("control_character", 0, 0, place, place + 1, message)


def _block_at(sample: Sample, offset: int) -> int:
    """The number of the innermost block at an offset."""
    place = bisect_right(sample.places, offset, key=lambda one: one.block.span[0])
    for one in reversed(sample.places[:place]):
        if offset <= one.block.span[1]:
            return one.number
    return 0


def lost_text(sample: Sample, least: float) -> Iterator[Finding]:
    """Too little of the source has survived.

    Raises:
        UsageError: there is a source, and no rapidfuzz to compare with.
    """
    if sample.has_source and find_spec("rapidfuzz") is None:
        raise UsageError(
            "the share of lost text needs rapidfuzz: pip install 'anabranch[curation]'"
        )
    if sample.share is not None and sample.share < least:
        message = f"{sample.share:.0%} of the source has survived, {least:.0%} is asked"
        yield Finding("lost_text", 0, 0, 0, len(sample.text), message)


def answer_findings(sample: Sample) -> Iterator[Finding]:
    """The final answer is graded again where the right one is known."""
    if sample.answer is None:
        return
    verdict = _grader().grade(sample.answer, sample.text, dialect=sample.dialect)
    if not verdict.correct:
        kind = "wrong_answer" if verdict.status == "wrong" else "no_answer"
        said = f"{verdict.answer!r} is {verdict.status}" if verdict.answer else verdict.status
        message = f"{said}; {sample.answer!r} is right. {verdict.reason}".strip()
        yield Finding(kind, 0, 0, 0, len(sample.text), message)


@cache
def _grader() -> Grader:
    return Grader(workers=1)


class EvaluationSets:
    """Problems that training data must not hold.

    Args:
        paths: JSON Lines files with a field ``problem``.

    Raises:
        RecordError: a file cannot be read, or a row has no problem.
    """

    def __init__(self, paths: Iterable[Path | str]) -> None:
        self._whole: dict[str, str] = {}
        self._runs: dict[int, str] = {}
        for path in paths:
            for number, row in read_rows(path):
                problem = row.get("problem")
                if not isinstance(problem, str):
                    raise RecordError("a text is needed", path=path, line=number, field="problem")
                name = f"{Path(path).stem}/{row.get('id', number)}"
                said = _words(problem)
                self._whole[" ".join(said)] = name
                for run in _hashes(said):
                    self._runs.setdefault(run, name)

    def __len__(self) -> int:
        return len(self._whole)

    def find(self, problem: str) -> str | None:
        """The problem that this one is, or shares a run of 13 words with."""
        said = _words(problem)
        if not said:
            return None
        whole = self._whole.get(" ".join(said))
        if whole is not None:
            return whole
        return next((self._runs[run] for run in _hashes(said) if run in self._runs), None)


@lru_cache(maxsize=4)
def evaluation_sets(paths: tuple[str, ...]) -> EvaluationSets:
    """The sets of some files, read once in a process."""
    return EvaluationSets(paths)


def contamination(sample: Sample, sets: EvaluationSets) -> Iterator[Finding]:
    """The problem is one of an evaluation set."""
    name = sets.find(sample.problem)
    if name is not None:
        yield Finding("contaminated", 0, 0, 0, 0, f"the problem is {name}, or shares words with it")


def _words(text: str) -> list[str]:
    # Signs differ from one copy of a problem to the next.
    return [word for word in words(text) if word[0].isalnum()]


def _hashes(said: list[str]) -> Iterator[int]:
    # Strings hash anew in each process; nothing of this is kept on disk.
    return (hash(tuple(said[at : at + RUN])) for at in range(len(said) - RUN + 1))
