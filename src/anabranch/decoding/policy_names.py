"""Join policies by name: ``quorum:2``, ``deadline:5s,after=first``, ``confidence:0.8``.

One textual form for the command line, for configuration files and for the record. Judges that are
functions cannot be written this way; such policies are made in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from anabranch.decoding.joins import (
    Confidence,
    Deadline,
    FirstConclusive,
    JoinPolicy,
    Quorum,
    WaitForAll,
)
from anabranch.decoding.judges import Confident, Contains, Judge
from anabranch.errors import UsageError

#: What each policy is written like, and what it does: for help texts.
POLICIES: dict[str, str] = {
    "all": "every branch runs to its end",
    "first_conclusive": "the first branch that states an answer ends the others",
    "first_conclusive:contains=TEXT": "the first branch that holds TEXT",
    "first_conclusive:logprob=-0.3": "the first answer with at least this mean log-prob",
    "quorum:N": "N branches with one answer",
    "deadline:SECONDSs": "seconds from the block's start, such as 5s",
    "deadline:TOKENSt": "tokens of each branch, such as 200t",
    "deadline:…,after=first": "counted from the first branch that states an answer",
    "confidence:SHARE": "the votes for one answer, weighted by log-probs, exceed SHARE of all",
}


def make_policy(text: str, judge: Judge | None = None) -> JoinPolicy:
    """The policy that a text names.

    Args:
        text: a name and its parameters, as in :data:`POLICIES`.
        judge: instead of the default one, where the policy judges single branches.

    Raises:
        UsageError: no policy has this name, or a parameter is wrong; the message says which.
    """
    name, colon, rest = text.strip().partition(":")
    maker = _MAKERS.get(name)
    if maker is None:
        raise UsageError(f"unknown join policy {name!r}: use one of {', '.join(_MAKERS)}")
    if colon and not rest:
        raise UsageError(f"join policy {text!r}: nothing follows the colon")
    policy = maker(text.strip(), rest)
    if judge is not None and isinstance(policy, FirstConclusive | Deadline):
        return replace(policy, judge=judge)
    return policy


def policy_help() -> str:
    """All textual forms, in one paragraph."""
    return "; ".join(f"{form} ({what})" for form, what in POLICIES.items())


def _all(text: str, rest: str) -> JoinPolicy:
    if rest:
        raise UsageError(f"join policy {text!r}: all takes no parameter")
    return WaitForAll()


def _first(text: str, rest: str) -> JoinPolicy:
    if not rest:
        return FirstConclusive()
    key, equals, value = rest.partition("=")
    if key == "contains" and value:
        return FirstConclusive(Contains(value), text)
    if key == "logprob" and equals:
        floor = _number(text, value, "a mean log-prob such as -0.3", lambda x: x <= 0)
        return FirstConclusive(Confident(floor), text, logprobs=True)
    raise UsageError(f"join policy {text!r}: use contains=TEXT or logprob=NUMBER")


def _quorum(text: str, rest: str) -> JoinPolicy:
    def right(value: float) -> bool:
        return value >= 2 and value == int(value)

    return Quorum(int(_number(text, rest, "a number of branches from 2 on, as quorum:2", right)))


def _confidence(text: str, rest: str) -> JoinPolicy:
    what = "a share between 0 and 1, as confidence:0.8"
    return Confidence(_number(text, rest, what, lambda x: 0 < x < 1))


def _deadline(text: str, rest: str) -> JoinPolicy:
    amount, comma, option = rest.partition(",")
    if comma and option != "after=first":
        raise UsageError(f"join policy {text!r}: {option!r} is no option; use after=first")
    what = "seconds or tokens above 0, as deadline:5s or deadline:200t"
    value = _number(text, amount[:-1], what, lambda x: x > 0)
    if amount.endswith("s"):
        return Deadline(seconds=value, after_first=bool(comma))
    if amount.endswith("t") and value == int(value):
        return Deadline(tokens=int(value), after_first=bool(comma))
    raise UsageError(f"join policy {text!r}: {what}")


def _number(text: str, value: str, what: str, right: Callable[[float], bool]) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not (right(number) and abs(number) < float("inf")):
        raise UsageError(f"join policy {text!r}: it takes {what}")
    return number


_MAKERS: dict[str, Callable[[str, str], JoinPolicy]] = {
    "all": _all,
    "first_conclusive": _first,
    "quorum": _quorum,
    "deadline": _deadline,
    "confidence": _confidence,
}
