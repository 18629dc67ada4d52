"""TRL's ``AsyncGRPOTrainer`` with our rollouts: a rollout worker and a weight transfer for it.

TRL (1.16) trains; fork-join decoding, group rewards and advantages are ours. Every request of a
trajectory is one row, its context masked out, with the trajectory's advantage on each token that it
sampled: TRL's own trie shares what rows have in common. The worker makes whole steps and is ahead
of the trainer by at most ``max_staleness`` policy versions. What TRL normalises by is the trained
tokens of its own micro-batches; windows with a clip of their own are left out. Extra ``trl``.

Source: the protocols of a rollout worker and a weight transfer in ``trl.experimental.async_grpo``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from anabranch.errors import AnabranchError
from anabranch.records import Trajectory
from anabranch.training.rl import Task
from anabranch.training.rl_batch import ScoredGroup
from anabranch.training.rl_collect import Collector
from anabranch.training.rl_config import RLConfig
from anabranch.training.rl_problems import Problems
from anabranch.training.rollouts import Sampler

#: Seconds between looks at whether the trainer has used up its rows.
POLL = 0.05
#: Name under which TRL registers its tree attention.
TREE_ATTENTION = "tree_fa3"


def rows_of(group: ScoredGroup, number: int, version: int) -> Iterator[Any]:
    """A group as TRL's samples, one a request.

    Rollouts without a reward have no rows; those with advantage 0 have, for they count in the
    divisor of the loss.

    Args:
        group: scored.
        number: tells groups apart.
        version: of the policy that sampled it.

    Raises:
        AnabranchError: a request has no log-probs.
    """
    for trajectory, reward, advantage in zip(
        group.trajectories, group.rewards, group.advantages, strict=True
    ):
        if reward is not None:
            metrics = {"reward": float(reward)}
            yield from _rows(trajectory, advantage, number, version, metrics)


def _rows(
    trajectory: Trajectory, advantage: float, group: int, version: int, metrics: dict[str, float]
) -> Iterator[Any]:
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    for unit in trajectory.units():
        if unit.logprobs is None:
            raise AnabranchError(f"{trajectory.id}: request {unit.request} has no log-probs")
        before, own = len(unit.context), len(unit.completion)
        yield RolloutSample(
            prompt=[{"role": "user", "content": trajectory.prompt_text}],
            completion=[{"role": "assistant", "content": trajectory.text}],
            input_ids=np.array([*unit.context, *unit.completion], np.int64),
            completion_mask=np.repeat([0, 1], [before, own]),
            old_log_probs=np.concatenate([np.zeros(before), unit.logprobs]).astype(np.float32),
            advantage=advantage,
            model_version=version,
            group_id=group,
            metrics=metrics,
            enqueued_at=time.time(),
        )


class TreeRolloutWorker:
    """Makes steps of rollouts in a thread; a ``RolloutWorkerProtocol`` of TRL.

    Args:
        config: problems, rollouts, limits, schedule, advantage and staleness are read of it; how
            many steps there are is the trainer's matter.
        task: what is learned.
        sampler: where rollouts come from; :class:`SamplerWeights` gives it the weights.

    Attributes:
        rollout_buffer: rows for the trainer.
        metrics_queue: what was measured of each step.
    """

    def __init__(self, config: RLConfig, task: Task, sampler: Sampler) -> None:
        self.config, self.sampler = config, sampler
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.lock = threading.Lock()
        self._collector = Collector(
            config, sampler, Problems(task.problems, config.seed), task.setup, task.grade
        )
        self._turn = threading.Condition()
        self._version = 0
        self._made = 0
        self._stopped = False
        self._failure: BaseException | None = None
        self._active = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tree-rollouts", daemon=True)

    def start(self) -> None:
        """Begin; called by the trainer after its first hand-over of weights."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that is being made."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        """The policy that is live now."""
        with self._turn:
            self._version = model_version
            self._turn.notify_all()

    def check_health(self, stale_after_s: float) -> None:
        """Raise what ended the thread, or say that nothing comes.

        Raises:
            AnabranchError: the worker has failed, or was silent for so long.
        """
        if self._failure is not None:
            raise AnabranchError(f"the rollouts failed: {self._failure}") from self._failure
        if self._thread.is_alive() and time.monotonic() - self._active > stale_after_s:
            raise AnabranchError(f"no rollout came for {stale_after_s:g} s")

    def _run(self) -> None:
        try:
            while self._wait():
                self._step()
        except Exception as error:  # told to the trainer, which asks
            self._failure = error

    def _wait(self) -> bool:
        """Until a step may be made: never further ahead than rollouts may be stale.

        A trainer that has used everything up, or dropped it as stale, gets more all the same.
        """
        with self._turn:
            while not (self._stopped or self._wanted()):
                self._turn.wait(POLL)
            return not self._stopped

    def _wanted(self) -> bool:
        ahead = self.config.max_staleness
        return self._made <= self._version + ahead or self.rollout_buffer.empty()

    def _step(self) -> None:
        self._active = time.monotonic()
        with self.lock:
            version = self._version
            plan = self.config.schedule.at(self._made + 1)
            batch = self._collector.collect(self._made + 1, plan, version)
        for number, group in enumerate(batch.groups):
            for row in rows_of(group, self._made * self.config.prompts + number, version):
                self.rollout_buffer.put(row)
        self.metrics_queue.put({f"rollout/{name}": value for name, value in batch.figures.items()})
        self._made += 1
        self._active = time.monotonic()


class SamplerWeights:
    """Hands the trainer's weights to a sampler; a ``WeightTransferProtocol`` of TRL.

    Args:
        worker: whose sampling is held up meanwhile.
        model: a model of the same architecture that the sampler reads: the sampler's own in this
            process, or what is saved for an engine by its own
            :class:`anabranch.training.weight_sync.WeightSync`.

    Attributes:
        gap: between engine and trainer after the last hand-over, where the sampler measures it.
    """

    def __init__(self, worker: TreeRolloutWorker, model: Any) -> None:
        self.worker, self.model = worker, model
        self.gap: float | None = None

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def pause(self) -> None:
        """Wait for the step that is being sampled."""
        self.worker.lock.acquire()

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Copy the weights.

        Raises:
            AnabranchError: the trainer has a weight that the model lacks.
        """
        own = self.model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, tensor in iterator:
                if name not in own:
                    raise AnabranchError(f"the sampler's model has no weight {name!r}")
                own[name].copy_(tensor)
        self.gap = self.worker.sampler.update(self.model)

    def resume(self) -> None:
        """Sampling goes on."""
        self.worker.lock.release()

    def destroy(self) -> None:
        """Nothing to release."""


def attend_on_cpu(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    tree_kv_index: torch.Tensor,
    tree_cu_seqlens_q: torch.Tensor,
    tree_cu_seqlens_k: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """TRL's tree attention without its CUDA kernel: each segment attends to its path.

    Args:
        module: unused.
        query, key, value: ``[1, heads, N, d]``; key and value may have fewer heads.
        attention_mask: unused.
        tree_kv_index: ``[K]``, the paths of all segments end to end.
        tree_cu_seqlens_q, tree_cu_seqlens_k: ``[S + 1]``, where segments and paths begin.
        scaling: of the scores.

    Returns:
        ``[1, N, heads, d]``.
    """
    pieces = []
    groups = query.shape[1] != key.shape[1]
    begins: Sequence[int] = tree_cu_seqlens_q.tolist()
    paths: Sequence[int] = tree_cu_seqlens_k.tolist()
    for segment in range(len(begins) - 1):
        start, end = begins[segment], begins[segment + 1]
        index = tree_kv_index[paths[segment] : paths[segment + 1]]
        size, length = end - start, len(index)
        # Aligned at the end: the last token of a segment sees its whole path.
        seen = torch.ones(size, length, dtype=torch.bool).tril(length - size)
        pieces.append(
            torch.nn.functional.scaled_dot_product_attention(
                query[:, :, start:end],
                key[:, :, index],
                value[:, :, index],
                attn_mask=seen,
                scale=scaling,
                enable_gqa=groups,
            )
        )
    return torch.cat(pieces, dim=2).transpose(1, 2), None


def use_cpu_attention() -> None:
    """Register :func:`attend_on_cpu` in the place of TRL's kernel; after its trainer was made."""
    from transformers import AttentionInterface

    AttentionInterface.register(TREE_ATTENTION, attend_on_cpu)
