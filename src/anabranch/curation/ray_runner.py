"""The stages that ask nothing, on Ray Data: the same lines from a cluster of machines.

An option for those who have Ray (extra ``ray``); :mod:`anabranch.curation.runner` needs none of it.
Stages that ask a model are left out: their rates and budgets are shared by one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from anabranch.curation.rows import Row
from anabranch.curation.stage import Stage
from anabranch.errors import UsageError
from anabranch.jsonl import dump_line

#: Rows that a task of Ray is given at a time.
BATCH = 64


def treat_on_ray(rows: Iterable[dict[str, Any]], stages: Sequence[Stage]) -> Iterator[str]:
    """The lines that :func:`anabranch.curation.treating.treat_lines` makes, in the rows' order.

    Args:
        rows: of a curation.
        stages: none of which asks.

    Raises:
        UsageError: Ray is not installed, or a stage asks.
    """
    asking = [stage.name for stage in stages if stage.asks]
    if asking:
        raise UsageError(f"{asking[0]} asks a model; on Ray run the stages that ask nothing")
    if find_spec("ray") is None:
        raise UsageError("Ray is not installed: pip install 'anabranch[ray]'")
    from ray import data

    context = data.DataContext.get_current()
    context.execution_options.preserve_order = True
    # As lines: Arrow would give rows of different shapes one common shape.
    lines = [{"row": dump_line(Row.model_validate(row))} for row in rows]
    treated = data.from_items(lines).map_batches(
        _treat, fn_kwargs={"stages": list(stages)}, batch_size=BATCH
    )
    for row in treated.iter_rows():
        yield row["row"]


def _treat(batch: dict[str, Any], stages: list[Stage]) -> dict[str, list[str]]:
    """What a worker of Ray does."""
    import json

    from anabranch.curation.treating import treat_lines

    rows = [json.loads(line) for line in batch["row"]]
    return {"row": [line for line, _ in treat_lines(rows, stages)]}
