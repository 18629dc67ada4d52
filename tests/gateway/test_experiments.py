"""Arms, rails, feedback, and the rows that failures become."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import UsageError
from anabranch.gateway.bodies import ChatBody
from anabranch.gateway.experiments import (
    Arm,
    Assignment,
    Experiment,
    Rails,
    load_experiment,
    report,
)
from anabranch.gateway.failures import failures
from anabranch.gateway.ledger import StoreLedger
from anabranch.gateway.store import AuditTrail, Database, Keys
from anabranch.gateway.tickets import Ticket
from anabranch.lab.families import draw

ARMS = [Arm(name="control", mode="sequential"), Arm(name="forks", mode="parallel", weight=3)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    database = Database(str(tmp_path / "store.db"))
    database.migrate()
    yield database
    database.close()


def test_weights_and_stickiness() -> None:
    assignment = Assignment(Experiment(name="e", arms=ARMS))
    names = [assignment.arm(f"user {number}").name for number in range(4000)]
    assert 0.72 < names.count("forks") / 4000 < 0.78
    assert names == [assignment.arm(f"user {number}").name for number in range(4000)]
    other = Assignment(Experiment(name="another", arms=ARMS))
    assert names != [other.arm(f"user {number}").name for number in range(4000)]


@given(st.text(), st.lists(st.floats(0, 5), min_size=2, max_size=5))
def test_everybody_has_an_arm_of_some_weight(who: str, weights: list[float]) -> None:
    arms = [Arm(name=f"a{place}", weight=weight) for place, weight in enumerate(weights)]
    if sum(weights) > 0:
        chosen = Assignment(Experiment(name="e", arms=arms)).arm(who)
        assert chosen.weight > 0 or chosen is arms[0]


def test_what_a_client_asks_for_stays() -> None:
    arm = Arm.model_validate({"name": "a", "mode": "sequential", "join": "quorum:2", "width": 2,
                              "limits": {"max_blocks": 1, "max_depth": 1},
                              "prompt": "Be brief."})  # fmt: skip
    asked = {"mode": "parallel", "limits": {"max_blocks": 3}}
    body = ChatBody.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "anabranch": asked}
    )
    changed = arm.apply(body)
    assert changed.anabranch.mode == "parallel" and changed.anabranch.width == 2
    limits = changed.anabranch.limits.model_dump(exclude_none=True)
    assert limits == {"max_blocks": 3, "max_depth": 1}
    assert [message.role for message in changed.messages] == ["system", "user"]
    assert len(body.messages) == 1


@pytest.mark.parametrize(
    ("rails", "outcome", "seconds", "stops"),
    [
        (Rails(errors=0.1), "failed", 1.0, True),
        (Rails(errors=0.1), "answered", 1.0, False),
        (Rails(seconds=2), "answered", 3.0, True),
        (Rails(seconds=2), "answered", 1.0, False),
        (Rails(seconds=2), "gone", 9.0, False),
        (Rails(), "failed", 99.0, False),
    ],
)
def test_rails(rails: Rails, outcome: str, seconds: float, stops: bool) -> None:
    assignment = Assignment(Experiment(name="e", arms=ARMS, rails=rails))
    for arm in ("control", "forks"):
        for number in range(40):
            ticket = Ticket(route="x", arm=arm, outcome=outcome)
            ticket.seconds = seconds + number / 1000
            assignment.ended(ticket)
            assert "forks" not in assignment.stopped or number >= 19
    assert list(assignment.stopped) == (["forks"] if stops else [])
    arms = {assignment.arm(f"user {number}").name for number in range(100)}
    assert arms == ({"control"} if stops else {"control", "forks"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name = ", "no TOML"),
        ('name = "e"\narms = [{name = "a"}]', "arms"),
        ('name = "e"\narms = [{name = "a"}, {name = "a"}]', "the same name"),
        ('name = "e"\narms = [{name = "a"}, {name = "b", mode = "odd"}]', "arms.1.mode"),
        ('name = "e"\narms = [{name = "a"}, {name = "b", join = "odd"}]', "odd"),
        ('name = "e"\narms = [{name = "a"}, {name = "b", model = "other"}]', "not served"),
        ('name = "e"\narms = [{name = "a", weight = 0}, {name = "b", weight = 0}]', "weight"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=told) as failure:
        load_experiment(path, ["lab"])
    assert str(path) in str(failure.value)


async def talk(url: str, key: str) -> tuple[list[dict[str, Any]], list[int]]:
    """Twenty answers to different subjects, then words on two of them."""
    rng = random.Random(5)
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        answers = []
        for number in range(20):
            body = {"messages": [{"role": "user", "content": draw(rng, "chains", (3, 2)).text}],
                    "user": f"u{number}", "max_tokens": 30 if number == 7 else 400}  # fmt: skip
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                answers.append(await answer.json())
        said = [
            {"id": answers[0]["id"], "rating": "dislike"},
            {"id": answers[1]["id"], "rating": "like"},
            {"id": "chatcmpl-nobody", "rating": "like"},
            {"id": answers[1]["id"], "rating": "so so"},
        ]
        statuses = []
        for one in said:
            async with session.post(f"{url}/v1/feedback", json=one) as answer:
                statuses.append(answer.status)
        return answers, statuses


def test_through_the_gateway(
    make_gateway: Callable[..., Any], store: Database, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    experiment = Assignment(Experiment(name="e", arms=ARMS))
    ledger = StoreLedger(store, contents="full")
    gateway = make_gateway(ledger=ledger, experiment=experiment)
    key, stranger = (Keys(store).create(name)[1] for name in ("reader", "stranger"))
    answers, statuses = asyncio.run(talk(gateway.url, key))
    assert statuses == [204, 204, 404, 400]
    assert asyncio.run(rate(gateway.url, stranger, answers[0]["id"])) == 404
    assert asyncio.run(rate(gateway.url, "ab-none", answers[0]["id"])) == 401
    trail = AuditTrail(store)
    assert trail.verify()[1] is None
    arms = {arm.name: arm for arm in report(trail.read())}
    for arm in ARMS:
        expected = sum(experiment.arm(f"u{number}").name == arm.name for number in range(20))
        assert arms[arm.name].requests == expected > 0
    assert arms["control"].path is not None and arms["forks"].path is not None
    assert arms["control"].path[0] > arms["forks"].path[2], "forks have the shorter path"
    value, low, high = arms["forks"].seconds or (0, 0, 0)
    assert 0 < low <= value <= high
    assert "forks" in cli("experiment", "report", "--store", str(tmp_path / "store.db")).stdout
    rows = {row["id"].partition("-")[0]: row for row in failures(trail)}
    wrong = {answers[0]["id"].partition("-")[2]: "disliked",
             answers[7]["id"].partition("-")[2]: "truncated"}  # fmt: skip
    assert {id: row["reason"] for id, row in rows.items()} == wrong
    row = rows[answers[0]["id"].partition("-")[2]]
    assert row["problem"] and row["text"] and row["dialect"]
    output = tmp_path / "failures.jsonl"
    cli("gateway", "failures", str(output), "--store", str(tmp_path / "store.db"))
    assert output.read_text().count("\n") == 2


async def rate(url: str, key: str, id: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/v1/feedback", json={"id": id, "rating": "dislike"}) as answer,
    ):
        return answer.status
