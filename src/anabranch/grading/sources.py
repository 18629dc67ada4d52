"""What counts of an answer's text: the main line, behind the reasoning, outside branches.

Cuts a text or a trajectory to the part in which :mod:`anabranch.grading.extract` may look. The
prompt is never part of it, nor is anything behind the opening of a block that is never closed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from anabranch.dialects import Dialect, Document, TextPart, dialect_names, get_dialect, parse
from anabranch.errors import DialectError
from anabranch.grading.rules import Rules
from anabranch.records import Trajectory

_BLOCK_TAGS = re.compile(r"<(?:Parallel|Path|Thread|guideline|step|Outlines)(?: ?\d+)?>")
_THINK = re.compile(r"<(/?)(think)>", re.I)


@dataclass(frozen=True)
class Source:
    """The text to look in; ``blocked`` says why there is nothing to look in."""

    text: str
    truncated: bool = False
    blocked: str = ""


def source_of(
    prediction: str | Trajectory, rules: Rules, dialect: str | Dialect | None, truncated: bool
) -> Source:
    """The part of a prediction that holds its final answer.

    Raises:
        DialectError: no dialect has the name.
    """
    if isinstance(prediction, Trajectory):
        truncated = truncated or prediction.outcome in ("truncated", "context_exhausted")
        dialect = dialect or prediction.dialect or None
        text = prediction.text
        opening = _opened_in_prompt(prediction)
        text = opening + text
    else:
        text = prediction
    chosen = get_dialect(dialect) if isinstance(dialect, str) else dialect
    if chosen is None and _BLOCK_TAGS.search(text):
        chosen = _guess(text)
    if chosen is not None:
        text, blocked = _main_line(text, chosen, rules)
        if blocked:
            return Source("", truncated, blocked)
    return _behind_reasoning(text, rules, truncated)


def _opened_in_prompt(trajectory: Trajectory) -> str:
    """``<think>`` where the prompt ends inside the reasoning."""
    prompt = trajectory.prompt_text
    return "<think>" if prompt.rfind("<think>") > prompt.rfind("</think>") else ""


def _guess(text: str) -> Dialect | None:
    """The built-in dialect that finds blocks in a text, with the fewest errors."""
    scored = []
    for name in dialect_names():
        try:
            dialect = get_dialect(name)
        except DialectError:
            continue
        document = parse(text, dialect)
        errors = sum(d.is_error for d in document.diagnostics)
        scored.append((not document.blocks, errors, -len(document.blocks), name))
    return get_dialect(min(scored)[3]) if scored else None


def _main_line(text: str, dialect: Dialect, rules: Rules) -> tuple[str, str]:
    """The text outside blocks (merges count as outside); why nothing of it counts."""
    document = parse(text, dialect)
    if _ends_open(document, text, dialect):
        return "", "the text ends inside a block that is never closed"
    if rules.branches:
        return text, ""
    parts = [
        part.text if isinstance(part, TextPart) else f" {part.merge or ''} "
        for part in document.parts
    ]
    return "".join(parts), ""


def _ends_open(document: Document, text: str, dialect: Dialect) -> bool:
    """Whether the last block, or its merge, is never closed: then all behind it is inside it."""
    if not document.blocks:
        return False
    begin = document.blocks[-1].span[0]
    tail = text[begin:]
    if dialect.block is not None:
        _, closed, tail = tail.rpartition(dialect.block.close)
        if not closed:
            return any(d.code == "missing_close" and d.start >= begin for d in document.diagnostics)
    merge = dialect.merge
    return merge is not None and merge.open in tail and merge.close not in tail


def _behind_reasoning(text: str, rules: Rules, truncated: bool) -> Source:
    tags = list(_THINK.finditer(text))
    if not tags:
        return Source(text, truncated)
    if not tags[-1][1]:
        return Source("", truncated, "the reasoning is never closed")
    answer = text[tags[-1].end() :]
    if rules.reasoning and not answer.strip():
        return Source(text[: tags[-1].start()], truncated)
    return Source(answer, truncated)
