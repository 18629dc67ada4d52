"""Rewards against tables computed by hand from the papers' formulas."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.config import load_config
from anabranch.errors import AnabranchError, UsageError
from anabranch.metrics import Metrics
from anabranch.records import Request, Segment, Trajectory, Verdict
from anabranch.training.rewards import (
    PRESETS,
    Group,
    RewardConfig,
    Rollout,
    preset,
    score_group,
)
from anabranch.training.rewards.group import standing_of
from anabranch.training.rewards.shapes import SHAPES, z_scores


def rollout(
    standing: str = "correct",
    path: int = 100,
    total: int = 100,
    *,
    sub: int = 0,
    trial: int = 0,
    blocks: tuple[int, ...] = (),
    formed: bool = True,
    half: int = 0,
    repeated: int = 0,
    reference: float | None = None,
) -> Rollout:
    metrics = Metrics(
        total_tokens=total,
        outside_tokens=total - sub - trial,
        plan_tokens=0,
        branch_tokens=sub + trial,
        merge_tokens=0,
        critical_path=path,
        subtask_tokens=sub,
        trial_tokens=trial,
        forced_tokens=0,
        branches_per_block=blocks,
        half_tags=half,
        duplicate_branches=repeated,
        well_formed=formed,
    )
    return Rollout(standing, metrics, reference)  # type: ignore[arg-type]


def totals(config: RewardConfig, *rollouts: Rollout) -> list[float | None]:
    return [reward.total for reward in score_group(config, Group(rollouts))]


def close(found: list[float | None], expected: list[float | None]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            assert one == pytest.approx(other, abs=1e-6)


def test_p_grpo_by_hand() -> None:
    """±1 + 1[correct] · 0.5 · min(1 − path / total, 0.2)."""
    found = totals(
        preset("p_grpo"),
        rollout(path=100, total=100),  # no gain
        rollout(path=90, total=100, blocks=(2,)),  # 0.1 → 0.05
        rollout(path=80, total=100, blocks=(2,)),  # 0.2 → 0.1
        rollout(path=40, total=100, blocks=(4,)),  # 0.6, cut at 0.2 → 0.1
        rollout("wrong", path=40, total=100, blocks=(4,)),
        rollout("unparsed"),
        rollout("truncated"),
    )
    close(found, [1.0, 1.05, 1.1, 1.1, -1.0, -1.0, -1.0])
    paper = totals(preset("p_grpo", wrong=0.0), rollout("wrong"), rollout(path=90, total=100))
    close(paper, [0.0, 1.05])


def test_pa_grpo_by_hand() -> None:
    """−1 + 2 · 1[correct] · (1 − α f(z_T) + β_s f(z_s) + β_t f(z_t) + min(ρη, clip))."""
    forked = rollout(path=80, total=125, sub=50, blocks=(2,))  # η 0.36, ρη 0.18, cut at 0.1
    line = rollout(path=120, total=120)
    # μ_T 100, σ_T 20: z −1 and 1; R_sub 0.4 and 0: z 1 and −1; R_trial does not vary: 0.
    one = math.tanh(1)
    expected = [1 + 2 * (0.1 * one + 0.05 * one + 0.1), 1 + 2 * (-0.1 * one - 0.05 * one)]
    close(totals(preset("pa_grpo"), forked, line), expected)
    assert expected == pytest.approx([1.4284782, 0.7715218])
    # Figures of wrong answers are in μ and σ, their reward is −1 whatever they are.
    wrong = totals(preset("pa_grpo"), forked, rollout("wrong", path=120, total=120))
    close(wrong, [expected[0], -1.0])
    # ρη below its cap; ratio form: η = 120 / 120 = 1.
    small = rollout(path=90, total=100, blocks=(2,))
    close(totals(preset("pa_grpo"), small, small), [1 + 2 * 0.05] * 2)
    close(totals(preset("pa_grpo", eta="ratio", rho=0.08), line), [1 + 2 * 0.08])


@pytest.mark.parametrize(
    ("f", "at_one"),
    [("tanh", 0.7615942), ("linear", 1.0), ("sigmoid", 0.4621172), ("clip", 1.0)],
)
def test_the_choices_of_f(f: str, at_one: float) -> None:
    settings = {"alpha": 0.2, "beta_sub": 0.0, "beta_trial": 0.1, "rho": 0.0, "f": f}
    found = totals(
        preset("pa_grpo", **settings),
        rollout(path=80, total=100, trial=60, blocks=(2,)),
        rollout(path=120, total=120),
    )
    close(found, [1 + 2 * 0.3 * at_one, 1 - 2 * 0.3 * at_one])


def test_group_terms_are_not_zero_for_want_of_a_group() -> None:
    """A z-score inside a call that sees one sample is always 0: the group must be whole."""
    alone = totals(preset("pa_grpo", rho=0.0), rollout(path=50))
    together = totals(preset("pa_grpo", rho=0.0), rollout(path=50), rollout(path=150))
    assert alone == [1.0]
    assert together[0] is not None and together[0] > 1.1


def test_parallel_r1_by_hand() -> None:
    answers = (
        rollout(blocks=(2,)),
        rollout(),
        rollout(blocks=(2,), formed=False),
        rollout("wrong", blocks=(2,)),
        rollout("wrong"),
    )
    close(totals(preset("tiers"), *answers), [1.2, 1.0, -1.0, -1.0, -1.0])
    close(totals(preset("accuracy"), *answers), [1.0, 1.0, 1.0, -1.0, -1.0])
    close(totals(preset("parallel_only"), *answers), [1.0, -1.0, -1.0, -1.0, -1.0])
    close(totals(preset("easy_maths"), *answers), [1.0, 0.0, 0.0, 0.0, 0.0])


def test_gain_against_the_sequential_length() -> None:
    """1 ± 0.5 · (1 − path / 200): a finer split counts, wasted trials do not."""
    found = totals(
        preset("sequential_gain"),
        rollout(path=200, total=200),  # the line: its length is the measure
        rollout(path=80, total=230, blocks=(2,)),
        rollout(path=60, total=240, blocks=(4,)),
        rollout(path=190, total=600, trial=500, blocks=(5,)),
        rollout(path=300, total=500, blocks=(2,)),
        rollout("wrong", path=10, total=20, blocks=(2,)),
    )
    close(found, [1.0, 1.3, 1.35, 1.025, 0.75, -1.0])
    published = totals(
        preset("p_grpo"),
        rollout(path=80, total=230, blocks=(2,)),
        rollout(path=60, total=240, blocks=(4,)),
        rollout(path=190, total=600, trial=500, blocks=(5,)),
    )
    close(published, [1.1, 1.1, 1.1])


def test_sources_of_the_sequential_length() -> None:
    config = preset("sequential_gain", weight=1.0)
    known = rollout(path=50, total=90, blocks=(2,), reference=100.0)
    close(totals(config, known), [1.5])
    # No line and no reference: against the group's mean path.
    fork = [rollout(path=path, total=200, blocks=(2,)) for path in (50, 150)]
    close(totals(config, *fork), [1.5, 0.5])
    assert totals(config, rollout("failed", 0, 0)) == [None]


def test_single_terms() -> None:
    close(
        totals(preset("half_tags"), rollout(half=3), rollout("wrong", half=1), rollout()),
        [0.8, -1.2, 1.0],
    )
    close(
        totals(
            preset("duplicate_branches"),
            rollout(blocks=(2, 2), repeated=1),
            rollout(blocks=(3,)),
            rollout(),
        ),
        [0.95, 1.0, 1.0],
    )
    close(totals(preset("format"), rollout(), rollout(formed=False)), [1.2, 1.0])
    close(totals(preset("parallel_use"), rollout(blocks=(2,)), rollout()), [1.2, 1.0])


def test_length_counts_only_where_the_group_is_right() -> None:
    right = [rollout(path=path) for path in (50, 75, 100)]
    close(totals(preset("path_length"), *right), [1.0, 0.9, 0.8])
    close(totals(preset("path_length"), *right, rollout("wrong")), [1.0, 0.9, 0.8, -1.0])
    many = [rollout("wrong")] * 2
    close(totals(preset("path_length"), *right, *many), [1.0, 1.0, 1.0, -1.0, -1.0])


def test_what_could_not_be_judged_is_not_wrong() -> None:
    found = totals(preset("p_grpo"), rollout(), rollout("ungradable"), rollout("failed"))
    assert found[1:] == [None, None]
    masked = RewardConfig.model_validate({"base": {"kind": "correctness", "truncated": None}})
    assert totals(masked, rollout("truncated"), rollout("wrong")) == [None, -1.0]
    # Figures of such answers do not move the group's mean either.
    config = preset("pa_grpo", rho=0.0)
    pair = totals(config, rollout(path=80), rollout(path=120))
    three = totals(config, rollout(path=80), rollout("failed", path=5000), rollout(path=120))
    close([three[0], three[2]], pair)


@pytest.mark.parametrize(
    ("status", "outcome", "sampled", "standing"),
    [
        ("correct", "answered", 3, "correct"),
        ("correct", "truncated", 3, "correct"),
        ("wrong", "answered", 3, "wrong"),
        ("wrong", "truncated", 3, "truncated"),
        ("unparsed", "context_exhausted", 3, "truncated"),
        ("unparsed", "answered", 3, "unparsed"),
        ("timeout", "answered", 3, "ungradable"),
        ("error", "truncated", 3, "ungradable"),
        ("wrong", "failed", 3, "failed"),
        ("wrong", "cancelled", 3, "failed"),
        ("wrong", "protocol_error", 3, "wrong"),
        ("unparsed", "answered", 0, "failed"),
    ],
)
def test_standing(status: str, outcome: str, sampled: int, standing: str) -> None:
    trajectory = Trajectory(
        segments=[
            Segment(origin="prompt", ids=(1,)),
            Segment(origin="sampled", ids=(2,) * sampled),
        ],
        requests=[Request(kind="main", context=(0,), output=1)],
        outcome=outcome,  # type: ignore[arg-type]
    )
    assert standing_of(trajectory, Verdict(status=status)) == standing  # type: ignore[arg-type]


def test_parts_add_up_and_have_names() -> None:
    config = RewardConfig.model_validate(
        {
            "terms": [
                {"kind": "format", "weight": 0.5, "when": "always"},
                {"kind": "format", "weight": 0.25},
            ]
        }
    )
    [reward] = score_group(config, Group((rollout(),)))
    assert reward.parts == {"base": 1.0, "format": 0.5, "format.2": 0.25}
    assert reward.total == 1.75


def test_a_term_that_is_no_number_stops() -> None:
    config = RewardConfig.model_validate({"terms": [{"kind": "format", "weight": math.inf}]})
    with pytest.raises(AnabranchError, match="'format' is inf"):
        score_group(config, Group((rollout(),)))


def test_unknown_names_are_one_line() -> None:
    with pytest.raises(UsageError, match="no reward preset 'pgrpo'; known: accuracy, p_grpo"):
        preset("pgrpo")
    with pytest.raises(UsageError, match="no such constant"):
        preset("p_grpo", alpha=1)
    with pytest.raises(UsageError, match=r"field 'terms\.0'"):
        load_config(RewardConfig, overrides=['terms=[{kind="speed"}]'])


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_z_scores_are_bounded(values: list[float]) -> None:
    scores = z_scores(values)
    assert all(abs(score) <= math.sqrt(len(values) - 1) + 1e-6 for score in scores)
    assert math.fsum(scores) == pytest.approx(0, abs=1e-6)


@given(st.sampled_from(sorted(SHAPES)), st.floats(-5, 5), st.floats(-5, 5))
def test_f_is_monotone_and_0_at_0(name: str, one: float, other: float) -> None:
    f = SHAPES[name]  # type: ignore[index]
    low, high = sorted((one, other))
    assert f(low) <= f(high)
    assert f(0.0) == 0.0


@given(
    st.sampled_from(sorted(PRESETS)),
    st.lists(
        st.tuples(
            st.sampled_from(["correct", "wrong", "truncated", "ungradable", "failed"]),
            st.integers(1, 500),
            st.integers(0, 500),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_every_preset_scores_every_group(name: str, answers: list[tuple[str, int, int]]) -> None:
    group = Group(
        tuple(rollout(s, path, path + more, sub=more, blocks=(2,)) for s, path, more in answers)
    )
    for reward, member in zip(score_group(preset(name), group), group.rollouts, strict=True):
        assert (reward.total is None) == (member.standing in ("ungradable", "failed"))
        assert reward.total is None or math.isfinite(reward.total)
