"""Schedules: which reward, pool and difficulty each step has."""

import pytest

from anabranch.config import load_config
from anabranch.errors import UsageError
from anabranch.training.rl_config import RLConfig
from anabranch.training.schedules import Schedule, easy_first, named_schedule


def rewards(schedule: Schedule, last: int, first: int = 1) -> str:
    """One letter a step: a(ccuracy), t(iers), e(asy_maths), p."""
    return "".join(schedule.at(step).reward[0] for step in range(first, last + 1))


def test_alternation_is_8_and_2_of_every_10() -> None:
    schedule = named_schedule("s2")
    assert rewards(schedule, 20) == "aaaaaaaatt" * 2
    for step in range(1, 60):
        assert (schedule.at(step).reward == "tiers") == ((step - 1) % 10 >= 8)
    assert schedule.at(9).clip_high == 0.28
    assert schedule.at(8).clip_high is None


def test_scaffold_ends_at_its_step() -> None:
    schedule = named_schedule("scaffold", until=15)
    assert rewards(schedule, 20) == "aaaaaaaattaaaaa" + "aaaaa"
    assert schedule.at(10).stage == "scaffold"
    assert schedule.at(16).stage == "accuracy only"
    assert "t" not in rewards(schedule, 300, 16)
    assert named_schedule("scaffold").stages[0].until == 200


def test_easy_maths_first_and_the_cycle_begins_anew_behind_it() -> None:
    schedule = easy_first(3, then=named_schedule("alternating"))
    assert rewards(schedule, 13) == "eee" + "aaaaaaaatt"
    assert schedule.at(3).pool == "easy"
    assert schedule.at(4).pool == "main"
    assert easy_first(3, named_schedule("scaffold", until=10)).stages[1].until == 13


def test_curriculum_rises_in_a_line() -> None:
    plain = named_schedule("s1").model_dump()
    schedule = Schedule.model_validate({**plain, "curriculum": {"steps": 10, "start": 0.5}})
    assert [schedule.at(step).difficulty for step in (1, 6, 11, 99)] == [0.5, 0.75, 1.0, 1.0]


def test_the_end_of_the_last_stage() -> None:
    schedule = Schedule.model_validate(
        {"stages": [{"until": 2, "cycle": [{"reward": "accuracy"}]}]}
    )
    with pytest.raises(UsageError, match="step 3 is after the end of the last stage, 2"):
        schedule.at(3)


def test_from_configuration(tmp_path: object) -> None:
    config = load_config(RLConfig, overrides=["schedule.name=scaffold", "schedule.until=5"])
    assert rewards(config.schedule, 12) == "a" * 12
    assert load_config(RLConfig, overrides=["schedule=p_grpo"]).schedule.at(7).reward == "p_grpo"
    own = load_config(
        RLConfig,
        overrides=[
            'schedule.stages=[{cycle=[{reward="mine", steps=2}, {reward="tiers"}]}]',
            'schedule.rewards.mine={terms=[{kind="acceleration", clip=0.3}]}',
        ],
    )
    assert rewards(own.schedule, 6) == "mmtmmt"
    assert RLConfig.model_validate(own.model_dump(mode="json")) == own


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("schedule=slow", "no schedule 'slow'; known: constant"),
        ("schedule.name=scaffold", None),
        ("schedule={name='scaffold', to=3}", "no such constant"),
        ("schedule.stages=[{cycle=[{reward='x'}]}]", "no reward preset 'x'"),
        ("schedule.stages=[{cycle=[]}]", "schedule.stages.0.cycle"),
        ("temperature=0.7", "temperature"),
        ("loss.clip_low=1.5", "loss.clip_low"),
    ],
)
def test_mistakes_are_one_line(override: str, message: str | None) -> None:
    if message is None:
        load_config(RLConfig, overrides=[override])
        return
    with pytest.raises(UsageError, match="field") as raised:
        load_config(RLConfig, overrides=[override])
    assert message in str(raised.value)
