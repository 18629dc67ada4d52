"""The stages of a curation by name; each module is one, or a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from anabranch.curation.stage import Stage
from anabranch.curation.stages.check import Check
from anabranch.curation.stages.cut import Cut
from anabranch.curation.stages.group import GroupSteps
from anabranch.curation.stages.outline import Outline
from anabranch.curation.stages.render import Render
from anabranch.curation.stages.rewrite import Rewrite
from anabranch.curation.stages.sample import Sample
from anabranch.curation.stages.steps import Steps
from anabranch.curation.stages.written import ColdStart, Convert
from anabranch.errors import UsageError

STAGES: Mapping[str, type[Stage]] = {
    stage.name: stage
    for stage in (
        Sample, Steps, GroupSteps, Cut, Rewrite, Outline, Render, Convert, ColdStart, Check,
    )
}  # fmt: skip
#: ThreadWeaver's first stage, from traces to samples.
FROM_TRACES = ("steps", "group", "cut", "rewrite", "outline", "render", "check")


def make_stages(names: Sequence[str], settings: Mapping[str, Any] | None = None) -> list[Stage]:
    """Stages by name with their settings.

    Args:
        names: in order.
        settings: a table for each stage that has any.

    Raises:
        UsageError: no such stage, one that is there twice, or a setting that it does not have.
    """
    given = settings or {}
    unknown = [name for name in (*names, *given) if name not in STAGES]
    if unknown:
        raise UsageError(f"no stage {unknown[0]!r}; known: {', '.join(STAGES)}")
    if len(set(names)) < len(names):
        raise UsageError("a stage is there twice")
    idle = [name for name in given if name not in names]
    if idle:
        raise UsageError(f"settings of {idle[0]!r}, which is not among the stages")
    made = []
    for name in names:
        try:
            made.append(STAGES[name].model_validate(given.get(name, {})))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join([name, *map(str, first["loc"])])
            message = first["msg"].removeprefix("Value error, ")
            raise UsageError(f"field {field!r}: {message}") from None
    return made
