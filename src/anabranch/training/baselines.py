"""The same rows under another objective: what fork-join training is to be compared with.

``sequential`` is the answer as one line without tags; ``seen`` is the parallel text under plain
causal attention, every token behind the prompt a target, since such a model is decoded without a
runtime; ``structured`` is Parallel-R1's variant, in :mod:`anabranch.training.structured`; ``tree``
is the library's own. All of them go through the same trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, get_args

from anabranch.checkpoint import CheckpointInfo
from anabranch.decoding import Setup, trajectory_from_text
from anabranch.decoding.prompts import encode_prompt
from anabranch.dialects import Block, Dialect, Document, TextPart, get_dialect, parse
from anabranch.engines.base import Tokenizer
from anabranch.errors import DialectError, UsageError
from anabranch.records import Trajectory
from anabranch.training.data import Item, TrajectoryFile
from anabranch.training.layout import LayoutError, TreeLayout, layout_paths
from anabranch.training.layout import Path as Run
from anabranch.training.structured import structured_attention, structured_layout

Objective = Literal["tree", "seen", "structured", "sequential"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def separator_of(dialect: Dialect) -> str:
    """What stands between joined branches: an empty line, or nothing in a dialect without space."""
    return "\n\n" if any(char.isspace() for char in _skeleton(dialect)) else ""


def one_line(document: Document, separator: str) -> str:
    """A document as if its branches had been worked one after another.

    Texts of the main line stay as they are. Of a block stay the branches in their order, and the
    merge behind them, without the white space around each and joined by ``separator``; tags,
    numbers and plan go. The reasoning wrapper, which is part of the main line, stays.
    """
    return _line(document.parts, separator)


def sequential(
    trajectory: Trajectory,
    dialect: Dialect,
    tokenizer: Tokenizer,
    prompt: Callable[[str], str],
    *,
    separator: str | None = None,
) -> Trajectory:
    """The same answer in one line, as sequential decoding would have recorded it.

    Args:
        trajectory: of a well-formed answer, with its problem.
        dialect: what it is written in.
        tokenizer: of the model that is trained.
        prompt: from a problem's text to the plain question.
        separator: between branches; default :func:`separator_of`.

    Raises:
        DialectError: the answer is malformed, or a tag is left in its text.
        LayoutError: the trajectory does not carry its problem.
    """
    if trajectory.problem is None:
        raise LayoutError(f"{trajectory.id}: the sequential form needs the problem's text")
    document = parse(trajectory.text, dialect, strict=True)
    text = one_line(document, separator_of(dialect) if separator is None else separator)
    left = parse(text, dialect)
    if left.blocks or not left.well_formed:
        raise DialectError(f"{trajectory.id}: a tag is left in the joined text")
    rendered = prompt(trajectory.problem.problem)
    setup = Setup(
        dialect=dialect,
        tokenizer=tokenizer,
        prompt=rendered,
        prompt_ids=encode_prompt(tokenizer, rendered),
        mode="sequential",
        id=trajectory.id,
        problem=trajectory.problem,
    )
    return trajectory_from_text(text, setup)


def seen(trajectory: Trajectory) -> TreeLayout:
    """The finished text as one causal row: everything behind the prompt is a target, tags included.

    Raises:
        LayoutError: the trajectory does not begin with its prompt.
    """
    first, *rest = (trajectory.segments[index] for index in trajectory.final)
    if first.origin != "prompt" or not first.ids:
        raise LayoutError(f"{trajectory.id}: the finished text does not begin with a prompt")
    answer = tuple(token for segment in rest for token in segment.ids)
    return layout_paths([Run((first.ids,), answer)], name=trajectory.id)


class ObjectiveFile(TrajectoryFile):
    """Trajectories of files, each as the objective wants it.

    Args:
        paths: JSON Lines of trajectories.
        objective: see the module.
        dialect, tokenizer, prompt: for ``sequential``.
    """

    def __init__(
        self,
        *paths: Path | str,
        objective: Objective,
        tokenizer: Tokenizer | None = None,
        dialect: Dialect | None = None,
        prompt: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(*paths)
        self.objective: Objective = objective
        self._tokenizer, self._dialect, self._prompt = tokenizer, dialect, prompt

    def identity(self) -> dict[str, str]:
        """Of the files, and the objective: a run resumes with the same one."""
        same = {} if self.objective == "tree" else {"objective": str(self.objective)}
        return {**super().identity(), **same}

    def __getitem__(self, index: int) -> Item:  # type: ignore[override]
        trajectory = super().__getitem__(index)
        if self.objective == "seen":
            return seen(trajectory)
        if self.objective == "structured":
            return structured_layout(trajectory)
        if self.objective == "sequential":
            assert self._tokenizer is not None and self._prompt is not None
            dialect = self._dialect or get_dialect(trajectory.dialect)
            return sequential(trajectory, dialect, self._tokenizer, self._prompt)
        return trajectory


def objective_file(
    name: str, path: Path | str, info: CheckpointInfo, tokenizer: Tokenizer
) -> tuple[ObjectiveFile, Objective]:
    """A file of trajectories under the objective of a name, with the checkpoint's own prompts.

    Raises:
        UsageError: no such objective.
        ModelError: ``sequential``, and the checkpoint has no prompt for it.
    """
    objective = next((known for known in OBJECTIVES if known == name), None)
    if objective is None:
        raise UsageError(f"unknown objective {name!r}: use {', '.join(OBJECTIVES)}")

    def prompt(problem: str) -> str:
        return info.prompt(problem, "sequential")

    if objective == "sequential":
        prompt("")
    dialect = get_dialect(info.dialect)
    source = ObjectiveFile(
        path, objective=objective, tokenizer=tokenizer, dialect=dialect, prompt=prompt
    )
    return source, objective


def attention_of(objective: Objective, model: Any) -> AbstractContextManager[None]:
    """What must be active around training for the objective."""
    return structured_attention(model) if objective == "structured" else nullcontext()


def _line(parts: Sequence[TextPart | Block], separator: str) -> str:
    pieces = []
    for part in parts:
        if isinstance(part, TextPart):
            pieces.append(part.text)
            continue
        texts = [_line(b.parts, separator) if b.parts else b.text for b in part.branches]
        texts += [part.merge] if part.merge is not None else []
        pieces.append(separator.join(text.strip() for text in texts))
    return "".join(pieces)


def _skeleton(dialect: Dialect) -> str:
    """What the runtime writes around branches."""
    return "".join(
        [
            dialect.fork_text,
            dialect.branch_header(1),
            dialect.spacing.body_open,
            dialect.close_branch,
            dialect.branch_separator,
            dialect.join_text(),
        ]
    )
