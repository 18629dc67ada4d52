"""The rollouts of one step: drawn, sampled, graded, scored, and counted exactly once.

Group statistics are taken when the whole group is in. Rollouts that an engine failed on are
sampled again with the same seeds; a grader that cannot do its work stops the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from anabranch.decoding import Setup
from anabranch.decoding.seeds import derive_seed
from anabranch.errors import AnabranchError, EngineError
from anabranch.metrics import summarise
from anabranch.records import Problem, Sampling, Trajectory, Verdict
from anabranch.training.advantages import advantages
from anabranch.training.rewards.compose import Reward, score_group
from anabranch.training.rewards.group import Group, group_of
from anabranch.training.rl_batch import ScoredGroup
from anabranch.training.rl_config import RLConfig
from anabranch.training.rl_problems import Problems
from anabranch.training.rollouts import Sampler
from anabranch.training.schedules import StepPlan

#: A grader: an exception that it raises is an ``error`` verdict, not the end.
Grade = Callable[[Problem, Trajectory], Verdict]
MakeSetup = Callable[[Problem], Setup]


@dataclass(frozen=True, slots=True)
class Collected:
    """A step's groups with what is to be logged of them."""

    groups: tuple[ScoredGroup, ...]
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def learnable(self) -> bool:
        """Whether any rollout has an advantage."""
        return any(a != 0 for group in self.groups for a in group.advantages)


@dataclass(slots=True)
class _Tally:
    """Everything of a step that was sampled, kept in a batch or not."""

    groups: list[Group] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)
    fates: Counter[str] = field(default_factory=Counter)
    retried: int = 0
    stale: int = 0
    reason: str = ""


class Collector:
    """Makes the batch of a step.

    Args:
        config: of the run.
        sampler: where rollouts come from.
        problems: what is drawn from.
        setup: from a problem to how it is decoded; ids, sampling, limits and version are set here.
        grade: who says what is right.
        recover: called before rollouts are sampled again, to give a restarted engine its weights.
    """

    def __init__(
        self,
        config: RLConfig,
        sampler: Sampler,
        problems: Problems,
        setup: MakeSetup,
        grade: Grade,
        recover: Callable[[], Any] = lambda: None,
    ) -> None:
        self.config, self.sampler, self.problems = config, sampler, problems
        self.setup, self.grade, self.recover = setup, grade, recover

    def collect(self, step: int, plan: StepPlan, version: int) -> Collected:
        """Sample and score until there are enough groups, or the bound of draws is reached.

        Raises:
            EngineError: rollouts failed beyond the retries; the step has counted nothing.
            AnabranchError: the grader failed on too many answers, or a reward is no number.
        """
        config = self.config
        bound = config.prompts
        if config.dynamic is not None:
            bound = int(config.prompts * config.dynamic.draws)
        kept: list[ScoredGroup] = []
        tally, drawn = _Tally(), 0
        while len(kept) < config.prompts and drawn < bound:
            count = min(config.prompts - len(kept), bound - drawn)
            problems = self.problems.draw(plan.pool, count, plan.difficulty)
            made = self._groups(problems, step, drawn, version, plan, tally)
            drawn += count
            kept += [g for g in made if config.dynamic is None or any(g.advantages)]
        self._check_grader(tally)
        return Collected(tuple(kept), _figures(tally, drawn, len(kept)))

    def _groups(
        self,
        problems: Sequence[Problem],
        step: int,
        drawn: int,
        version: int,
        plan: StepPlan,
        tally: _Tally,
    ) -> list[ScoredGroup]:
        size = self.config.rollouts
        setups = [
            self._prepared(problem, step, drawn + number, answer, version)
            for number, problem in enumerate(problems)
            for answer in range(size)
        ]
        done = self._sample(setups, tally)
        return [
            self._score(done[at : at + size], version, plan, tally)
            for at in range(0, len(done), size)
        ]

    def _prepared(
        self, problem: Problem, step: int, number: int, answer: int, version: int
    ) -> Setup:
        seed = derive_seed(self.config.seed, "rl", step, number, answer)
        return replace(
            self.setup(problem),
            id=f"{step}/{number}/{answer}",
            problem=problem,
            sampling=Sampling(temperature=self.config.temperature, seed=seed),
            limits=self.config.limits,
            logprobs=True,
            affinity=f"{step}/{number}",
            policy_version=str(version),
        )

    def _sample(self, setups: Sequence[Setup], tally: _Tally) -> list[Trajectory]:
        done = self.sampler.sample(setups)
        for _ in range(self.config.engine_retries):
            failed = [n for n, trajectory in enumerate(done) if trajectory.outcome == "failed"]
            if not failed:
                return done
            # An engine that came back has the weights that it was started with.
            self.recover()
            again = self.sampler.sample([setups[n] for n in failed])
            tally.retried += len(failed)
            for number, trajectory in zip(failed, again, strict=True):
                done[number] = trajectory
        lost = next((t for t in done if t.outcome == "failed"), None)
        if lost is not None:
            reason = lost.findings[-1].message if lost.findings else "unknown reason"
            raise EngineError(
                f"rollouts failed after {self.config.engine_retries} retries: "
                f"{reason}; resume when the engine is back"
            )
        return done

    def _score(
        self, members: Sequence[Trajectory], version: int, plan: StepPlan, tally: _Tally
    ) -> ScoredGroup:
        graded = []
        for trajectory in members:
            assert trajectory.problem is not None
            verdict = _graded(self.grade, trajectory.problem, trajectory)
            if verdict.status in ("error", "timeout"):
                tally.reason = verdict.reason
            graded.append(trajectory.model_copy(update={"verdict": verdict}))
        group = group_of(graded, [t.verdict for t in graded if t.verdict is not None])
        rewards = score_group(self.config.schedule.reward(plan.reward), group)
        oldest = version - self.config.max_staleness
        values: list[float | None] = []
        for trajectory, reward in zip(graded, rewards, strict=True):
            stale = int(trajectory.policy_version or version) < oldest
            tally.stale += stale
            out = stale or trajectory.sampled_tokens == 0
            values.append(None if out else reward.total)
        found = advantages(values, self.config.advantage)
        tally.groups.append(group)
        tally.rewards += rewards
        tally.fates[_fate(group, found)] += 1
        return ScoredGroup(tuple(graded), tuple(values), tuple(found))

    def _check_grader(self, tally: _Tally) -> None:
        standings = [r.standing for group in tally.groups for r in group.rollouts]
        failed = standings.count("ungradable")
        if failed > self.config.max_grader_errors * len(standings):
            raise AnabranchError(
                f"the grader failed on {failed} of {len(standings)} answers of a step "
                f"(last reason: {tally.reason or 'none given'}): training stopped"
            )


def _graded(grade: Grade, problem: Problem, trajectory: Trajectory) -> Verdict:
    try:
        return grade(problem, trajectory)
    except Exception as error:  # a grader is foreign code; that it failed is counted and bounded
        return Verdict(status="error", reason=f"{type(error).__name__}: {error}")


def _fate(group: Group, found: Sequence[float]) -> str:
    if any(found):
        return "learnable"
    standings = {rollout.standing for rollout in group.rollouts}
    if standings == {"correct"}:
        return "all_right"
    if standings <= {"ungradable", "failed"}:
        return "no_verdict"
    return "no_variance" if "correct" in standings else "all_wrong"


def _figures(tally: _Tally, drawn: int, kept: int) -> dict[str, float]:
    """What is logged of a step, over everything that was sampled in it."""
    rollouts = [rollout for group in tally.groups for rollout in group.rollouts]
    summary = summarise([rollout.metrics for rollout in rollouts])
    totals = [reward.total for reward in tally.rewards if reward.total is not None]
    found = {
        "reward": fmean(totals) if totals else 0.0,
        "accuracy": fmean(rollout.correct for rollout in rollouts),
        "path": summary.critical_path,
        "tokens": summary.total_tokens,
        "parallel_ratio": summary.parallel_ratio,
        "activation": summary.activation_ratio,
        "acceleration": summary.acceleration,
        "well_formed": summary.format_correctness or 0.0,
        "groups_drawn": float(drawn),
        "groups_kept": float(kept),
        "retried": float(tally.retried),
        "stale": float(tally.stale),
    }
    for name in ("wrong", "unparsed", "truncated", "ungradable", "failed"):
        found[f"share_{name}"] = fmean(rollout.standing == name for rollout in rollouts)
    for fate in ("learnable", "all_right", "all_wrong", "no_variance", "no_verdict"):
        found[f"groups_{fate}"] = float(tally.fates[fate])
    names = sorted({name for reward in tally.rewards for name in reward.parts})
    for name in names:
        parts = [r.parts[name] for r in tally.rewards if name in r.parts]
        found[f"part_{name}"] = fmean(parts)
    return found
