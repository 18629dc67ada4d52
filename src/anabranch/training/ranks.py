"""Which process this is, when several train together; accelerate's launcher says so.

Everything here is harmless in a single process. What the processes compute is elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def rank() -> int:
    """Number of this process among all, over all machines."""
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this process writes what belongs to all."""
    return rank() == 0


@contextmanager
def main_first() -> Iterator[None]:
    """The first process runs the body while the others wait, then they do.

    What the body writes must be seen by all: on several machines, a shared file system.
    """
    if world() == 1:
        yield
        return
    with _state().main_process_first():
        yield


def any_rank(flag: bool) -> bool:
    """True on every process as soon as it is true on one; all of them must call it."""
    if world() == 1:
        return flag
    import torch

    told = torch.tensor([int(flag)], device=_state().device)
    torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MAX)
    return bool(told.item())


def total(values: list[float]) -> list[float]:
    """Sums over all processes, in fp64; all of them must call it."""
    if world() == 1:
        return values
    import torch

    summed = torch.tensor(values, dtype=torch.float64, device=_state().device)
    torch.distributed.all_reduce(summed)
    return [float(value) for value in summed]


def barrier() -> None:
    """Wait until every process is here."""
    if world() > 1:
        _state().wait_for_everyone()


def shards_wanted() -> bool:
    """Whether the launcher was told to use FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def allow_shards_on_cpu() -> None:
    """Let accelerate shard on the CPU, between its process state and its accelerator's.

    Accelerate counts CPU processes as a kind of its own, for which it ignores FSDP without a word;
    torch shards on the CPU as anywhere. So that what runs on GPUs can be checked on a laptop, the
    processes are given out as the kind that may shard.
    """
    if world() == 1 or not shards_wanted():
        return
    from accelerate.state import DistributedType, PartialState

    if _state().distributed_type == DistributedType.MULTI_CPU:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def _state() -> Any:
    import torch
    from accelerate import PartialState

    # Without being told, accelerate gives every process of a machine without GPUs rank 0.
    return PartialState(cpu=not torch.accelerator.is_available())
