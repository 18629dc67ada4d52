"""Experiments on live traffic: arms with weights, who gets which, and rails that stop an arm.

An arm sets what its requests leave unsaid; what a client asks for itself stays. The same subject
(or key) always gets the same arm. Rails look at the last requests of this process; what an arm did
over all processes and time is in the audit, which :func:`report` reads.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from anabranch.decoding import make_policy
from anabranch.errors import UsageError
from anabranch.gateway.bodies import B, ChatBody, LimitsBody, Message
from anabranch.gateway.ledger import Prices
from anabranch.gateway.tickets import Ticket
from anabranch.metrics.intervals import mean, wilson

_WINDOW = 500


class Rails(BaseModel):
    """What stops an arm: its 95 % interval lies above one of these as a whole.

    Attributes:
        errors: share of failed requests.
        seconds, cost: mean of a request.
        least: ended requests before a rail is asked.
    """

    model_config = ConfigDict(extra="forbid")
    errors: float | None = Field(default=None, ge=0, le=1)
    seconds: float | None = Field(default=None, gt=0)
    cost: float | None = Field(default=None, gt=0)
    least: int = Field(default=20, ge=5)


class Arm(BaseModel):
    """One way to answer; ``prompt`` is a system message that is put before a conversation."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,40}$")
    weight: float = Field(default=1.0, ge=0)
    model: str | None = None
    mode: Literal["parallel", "sequential", "constrained", "prompted"] | None = None
    join: str | None = None
    width: int | None = Field(default=None, ge=1, le=64)
    limits: LimitsBody = Field(default_factory=LimitsBody)
    prompt: str | None = None

    def apply(self, body: B) -> B:
        """The body with what it leaves unsaid."""
        wish = body.anabranch
        mine = {name: getattr(self, name) for name in ("mode", "join", "width")}
        limits = {**self.limits.model_dump(), **wish.limits.model_dump(exclude_none=True)}
        changed = {name: value for name, value in mine.items() if getattr(wish, name) is None}
        extension = wish.model_copy(update={**changed, "limits": LimitsBody(**limits)})
        update: dict[str, Any] = {"anabranch": extension}
        if self.model is not None:
            update["model"] = self.model
        if self.prompt is not None and isinstance(body, ChatBody):
            update["messages"] = [Message(role="system", content=self.prompt), *body.messages]
        return body.model_copy(update=update)


class Experiment(BaseModel):
    """Arms; the first is the control, which no rail stops and which stands in for stopped ones."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1)
    arms: list[Arm] = Field(min_length=2)
    rails: Rails = Field(default_factory=Rails)

    @model_validator(mode="after")
    def _check(self) -> Experiment:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError("two arms have the same name")
        if not sum(arm.weight for arm in self.arms):
            raise ValueError("no arm has any weight")
        for arm in self.arms:
            if arm.join is not None:
                try:
                    make_policy(arm.join)
                except UsageError as error:
                    raise ValueError(f"arm {arm.name}: {error}") from None
        return self


def load_experiment(path: Path, models: Iterable[str]) -> Experiment:
    """An experiment from a TOML file.

    Raises:
        UsageError: naming the file and the field.
    """
    try:
        experiment = Experiment.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is no TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the experiment"
        raise UsageError(f"{path}: {field}: {first['msg'].removeprefix('Value error, ')}") from None
    for arm in experiment.arms:
        if arm.model is not None and arm.model not in models:
            raise UsageError(f"{path}: arm {arm.name}: model {arm.model!r} is not served")
    return experiment


class Assignment:
    """Who gets which arm; an observer that stops arms at the rails."""

    def __init__(self, experiment: Experiment, prices: Prices | None = None) -> None:
        self.experiment = experiment
        self.stopped: dict[str, str] = {}
        self._prices = prices or Prices()
        self._past = {
            arm.name: deque[tuple[bool, float, float]](maxlen=_WINDOW) for arm in experiment.arms
        }

    def arm(self, who: str) -> Arm:
        """The arm of a subject or key: the same one while weights stay the same."""
        arms = self.experiment.arms
        seen = hashlib.sha256(f"{self.experiment.name}\0{who}".encode()).digest()
        place = int.from_bytes(seen[:8], "big") / 2**64 * sum(arm.weight for arm in arms)
        for arm in arms:
            place -= arm.weight
            if place < 0:
                return arms[0] if arm.name in self.stopped else arm
        return arms[0]

    def began(self, ticket: Ticket) -> None:
        pass

    def refused(self, status: int, code: str | None) -> None:
        pass

    def ended(self, ticket: Ticket) -> None:
        past = self._past.get(ticket.arm)
        if past is None or ticket.outcome == "gone":
            return
        cost = self._prices.of(ticket.spent.prompt, ticket.spent.sampled)
        past.append((ticket.outcome == "failed", ticket.seconds or 0.0, cost))
        control = self.experiment.arms[0].name
        # Every fifth time: an interval of a mean costs milliseconds.
        if ticket.arm == control or ticket.arm in self.stopped or len(past) % 5:
            return
        if (why := self._over(list(past))) is not None:
            self.stopped[ticket.arm] = why

    def _over(self, past: list[tuple[bool, float, float]]) -> str | None:
        rails = self.experiment.rails
        if len(past) < rails.least:
            return None
        errors, seconds, costs = zip(*past, strict=True)
        lows = {
            "errors": wilson(sum(errors), len(errors))[0],
            "seconds": mean(seconds, samples=200)[1],
            "cost": mean(costs, samples=200)[1],
        }
        for name, low in lows.items():
            rail = getattr(rails, name)
            if rail is not None and low > rail:
                return f"{name}: at least {low:.4g} (95 %), the rail is {rail:g}"
        return None


@dataclass(frozen=True)
class ArmReport:
    """What an arm did; intervals are ``(value, low, high)`` at 95 %, None without answers."""

    name: str
    requests: int
    failed: tuple[float, ...]
    truncated: tuple[float, ...]
    disliked: tuple[float, ...] | None
    seconds: tuple[float, ...] | None
    sampled: tuple[float, ...] | None
    path: tuple[float, ...] | None
    cost: tuple[float, ...] | None


def report(records: Iterable[Any]) -> list[ArmReport]:
    """Figures of each arm from the audit's records, by name."""
    rows: dict[str, list[dict[str, Any]]] = {}
    ratings: dict[str, str] = {}
    for record in records:
        if record.event == "ended" and record.data.get("arm"):
            row = {**record.data, "ticket": record.ticket}
            if row["outcome"] != "gone":
                rows.setdefault(record.data["arm"], []).append(row)
        elif record.event == "feedback":
            ratings[record.ticket] = record.data["rating"]
    return [_arm_report(name, rows[name], ratings) for name in sorted(rows)]


def _arm_report(name: str, rows: list[dict[str, Any]], ratings: dict[str, str]) -> ArmReport:
    answered = [row for row in rows if row["outcome"] in ("answered", "truncated")]
    rated = [ratings[row["ticket"]] for row in rows if row["ticket"] in ratings]

    def share(count: int, among: int) -> tuple[float, ...]:
        return (count / among, *wilson(count, among))

    def average(field: str) -> tuple[float, ...] | None:
        return mean([float(row[field]) for row in answered]) if answered else None

    return ArmReport(
        name,
        len(rows),
        share(sum(row["outcome"] == "failed" for row in rows), len(rows)),
        share(sum(row["outcome"] == "truncated" for row in rows), len(rows)),
        share(rated.count("dislike"), len(rated)) if rated else None,
        average("seconds"),
        average("sampled"),
        average("path"),
        average("cost"),
    )
