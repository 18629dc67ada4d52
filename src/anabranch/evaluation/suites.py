"""Suites: named sets of problems, with the fields they use and how their answers are graded.

A suite's problems are loaded from a local folder of JSON Lines (``FOLDER/NAME.jsonl``), one file,
or a Hugging Face data set; they are never bundled. What was loaded carries a hash of its content,
so that two runs can tell whether they saw the same problems. Running them is left to other modules.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anabranch.errors import RecordError, UsageError
from anabranch.grading.latex import normalised
from anabranch.grading.rules import DEFAULT, Rules
from anabranch.grading.values import Expression, Relation, readings
from anabranch.jsonl import dump_line, read_rows
from anabranch.records import Problem

#: Names that other publishers give to the three fields, tried in order.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "unique_id", "problem_id", "problem_idx", "question_id", "idx"),
    "problem": ("problem", "question", "prompt", "Problem", "Question"),
    "answer": ("answer", "gold", "final_answer", "expected_answer", "target", "Answer", "solution"),
}
_EXACT = Rules(steps=("boxed", "final_answer", "answer_is", "bare", "math"))
_MEASURED = Rules(gold_digits=2)


@dataclass(frozen=True)
class Suite:
    """What is known of a suite before its problems are there.

    Attributes:
        name: what it is asked for by; also the local file's name.
        title: what people call it.
        size: how many problems it has; None where that is free.
        rules: extraction and comparison.
        dataset, split: the default place at Hugging Face, where there is one.
        fields: this suite's own field names, before :data:`FIELDS`.
    """

    name: str
    title: str
    size: int | None = None
    rules: Rules = DEFAULT
    dataset: str | None = None
    split: str = "test"
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadedSuite:
    """A suite with its problems, where they came from, and their hash (of ids, texts, golds)."""

    suite: Suite
    problems: tuple[Problem, ...]
    origin: str
    version: str

    def __len__(self) -> int:
        return len(self.problems)


_known: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("aime24", "AIME 2024", 30, _EXACT, "HuggingFaceH4/aime_2024", "train"),
        Suite("aime25", "AIME 2025", 30, _EXACT, "math-ai/aime25"),
        Suite("amc23", "AMC 2023", 40, _EXACT, "math-ai/amc23"),
        Suite("math500", "MATH-500", 500, DEFAULT, "HuggingFaceH4/MATH-500"),
        Suite("minerva_math", "Minerva", 272, _MEASURED, "math-ai/minervamath"),
        Suite("olympiadbench", "OlympiadBench", 675, DEFAULT, "math-ai/olympiadbench"),
        Suite("gsm8k", "GSM8K", 1319, DEFAULT, "openai/gsm8k"),
        Suite(
            "hmmt_feb_2025", "HMMT February 2025", 30, _EXACT, "MathArena/hmmt_feb_2025", "train"
        ),
        Suite(
            "countdown",
            "Countdown",
            None,
            Rules(steps=("boxed", "final_answer", "answer_is", "bare"), checker="countdown"),
        ),
    )
}


def register_suite(suite: Suite) -> None:
    """Add a suite for this process.

    Raises:
        UsageError: a different suite already has the name.
    """
    if _known.setdefault(suite.name, suite) != suite:
        raise UsageError(f"there is already a different suite {suite.name!r}")


def suite_names() -> list[str]:
    """All names that :func:`get_suite` knows, sorted."""
    return sorted(_known)


def get_suite(name: str) -> Suite:
    """The suite of this name.

    Raises:
        UsageError: none has it; the message lists those there are.
    """
    if name not in _known:
        raise UsageError(f"unknown suite {name!r}; known are {', '.join(suite_names())}")
    return _known[name]


def load_suite(
    suite: Suite | str,
    source: Path | str | None = None,
    *,
    fields: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> LoadedSuite:
    """Load a suite's problems, and check all of them before any is used.

    Args:
        suite: a suite or its name.
        source: a folder with ``NAME.jsonl``, a JSON Lines file, or ``hf:ID`` (``hf:ID:SPLIT``)
            for a Hugging Face data set; None takes the suite's own data set.
        fields: ``id``, ``problem`` and ``answer`` to the names that the source uses.
        limit: only the first so many problems.

    Raises:
        UsageError: no such source, or the extra ``data`` is missing.
        RecordError: duplicate ids, a missing field, an empty gold; names file, line and field.
    """
    suite = get_suite(suite) if isinstance(suite, str) else suite
    rows, origin = _rows(suite, source)
    names = {**suite.fields, **(fields or {})}
    if unknown := sorted(set(names) - set(FIELDS)):
        raise UsageError(f"fields maps {', '.join(FIELDS)}, not {', '.join(unknown)}")
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    for number, row in rows:
        problem = _problem(row, names, suite, origin, number)
        if problem.id in seen:
            raise RecordError(
                f"id {problem.id!r} is that of line {seen[problem.id]} too; ids must be unique",
                path=origin,
                line=number,
                field="id",
            )
        seen[problem.id] = number
        problems.append(problem)
        if limit is not None and len(problems) >= limit:
            break
    if not problems:
        raise RecordError("no problems", path=origin)
    return LoadedSuite(suite, tuple(problems), origin, content_hash(problems))


def content_hash(problems: Iterable[Problem]) -> str:
    """SHA-256 over ids, texts and golds in their order, as 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for problem in problems:
        row = {"id": problem.id, "problem": problem.problem, "answer": problem.answer}
        digest.update(dump_line(row).encode("ascii") + b"\n")
    return digest.hexdigest()[:16]


def odd_golds(loaded: LoadedSuite) -> list[tuple[str, str, str]]:
    """Golds that will only ever match by their text: ``(id, gold, why)``.

    Words, numbers, lists and so on are read; an expression or equation must be one that the
    algebra's reader takes. For suites with a checker the gold is not read. Needs the extra
    ``math`` where there are expressions.
    """
    if loaded.suite.rules.checker is not None:
        return []
    found = []
    for problem in loaded.problems:
        gold = problem.answer or ""
        read = readings(gold)
        if not read:
            found.append((problem.id, gold, "says nothing"))
        elif isinstance(read[0], Expression | Relation) and (why := _unreadable(gold)):
            found.append((problem.id, gold, why))
    return found


def _unreadable(gold: str) -> str:
    try:
        from anabranch.grading.algebra import Unreadable, read
    except ImportError:
        return ""
    text = normalised(gold)
    if len(text) > 300 or re.search(r"\^\{?[^{}]*\^", text):
        return ""  # towers are read in workers only
    try:
        read(text)
    except Unreadable:
        return "no expression that can be read; only the same text matches"
    return ""


def _rows(
    suite: Suite, source: Path | str | None
) -> tuple[Iterator[tuple[int, dict[str, Any]]], str]:
    if source is None or str(source).startswith("hf:"):
        place = str(source).removeprefix("hf:") if source is not None else suite.dataset
        if not place:
            raise UsageError(f"suite {suite.name!r} has no data set of its own: name a folder")
        name, _, split = place.partition(":")
        return _dataset(name, split or suite.split), f"hf:{name}:{split or suite.split}"
    path = Path(source)
    if path.is_dir():
        path = path / f"{suite.name}.jsonl"
        if not path.is_file():
            there = ", ".join(sorted(p.stem for p in path.parent.glob("*.jsonl"))) or "none"
            raise UsageError(f"no {path.name} in {path.parent}; suites there: {there}")
    return read_rows(path), str(path)


def _dataset(name: str, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise UsageError(
            "loading from Hugging Face needs the extra: pip install 'anabranch[data]'"
        ) from None
    config = "main" if name == "openai/gsm8k" else None
    try:
        rows = load_dataset(name, config, split=split)
    except Exception as error:  # network, missing set, missing split: foreign and many
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"data set {name} ({split}) cannot be loaded: {first}") from error
    return ((number, dict(row)) for number, row in enumerate(rows, start=1))


def _problem(
    row: dict[str, Any], names: Mapping[str, str], suite: Suite, origin: str, number: int
) -> Problem:
    text = _value(row, "problem", names, origin, number)
    answer = _value(row, "answer", names, origin, number)
    if "####" in answer:
        answer = answer.rpartition("####")[2].strip().replace(",", "")
    if not text.strip():
        raise RecordError("the problem is empty", path=origin, line=number, field="problem")
    if not answer.strip():
        raise RecordError("the gold is empty", path=origin, line=number, field="answer")
    wanted = names.get("id")
    if wanted is not None or any(name in row for name in FIELDS["id"]):
        identity = _value(row, "id", names, origin, number)
    else:
        identity = f"{suite.name}/{number}"
    kept = {k: v for k, v in row.items() if k not in ("id", "problem", "answer", "family")}
    kept.setdefault("source", suite.name)
    return Problem(id=identity, problem=text, answer=answer, family=suite.name, **kept)


def _value(
    row: dict[str, Any], name: str, names: Mapping[str, str], origin: str, number: int
) -> str:
    tried = (names[name],) if name in names else FIELDS[name]
    for key in tried:
        value = row.get(key)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return _plain(value)
    there = ", ".join(sorted(row)) or "none"
    raise RecordError(
        f"no {name} (fields here: {there}); map it, for example {name}={next(iter(row), 'NAME')}",
        path=origin,
        line=number,
        field=tried[0],
    )


def _plain(value: str | int | float) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def with_rules(suite: Suite, **changes: Any) -> Suite:
    """The suite with some of its rules changed."""
    return replace(suite, rules=suite.rules.model_copy(update=changes))
