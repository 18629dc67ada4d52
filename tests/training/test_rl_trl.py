"""TRL's trainer with our rollouts: its protocols, its gradient, and some steps on the CPU."""

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from rl_cases import fresh_model, parts, small_config

from anabranch.errors import AnabranchError
from anabranch.lab.bundled import bundled_model
from anabranch.training.loss import edge_logits, edge_logprobs
from anabranch.training.policy_loss import policy_loss
from anabranch.training.rl_batch import policy_batch
from anabranch.training.rl_trl import (
    SamplerWeights,
    TreeRolloutWorker,
    rows_of,
    use_cpu_attention,
)

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
trl = pytest.importorskip("trl", reason="trl is not installed (extra `trl`)")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture
def trainer_of(tmp_path: Path) -> Iterator[Any]:
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    from trl.experimental.async_grpo import async_grpo_trainer as module

    def make(worker: Any, transfer: Any, **settings: Any) -> Any:
        given = {
            "max_steps": 2,
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-3,
            "use_cpu": True,
            "bf16": False,
            "dtype": "float32",
            "report_to": [],
            "weight_sync_steps": 1,
            "max_staleness": 0,
            "logging_steps": 1,
            "save_strategy": "no",
            "token_budget": -1,
            "gradient_checkpointing": False,
            "epsilon": 0.2,
            "epsilon_high": 0.28,
            "disable_tqdm": True,
        }
        trainer = AsyncGRPOTrainer(
            str(bundled_model()),
            args=AsyncGRPOConfig(str(tmp_path), **{**given, **settings}),
            train_dataset=Dataset.from_dict({"prompt": ["x"] * 8}),
            rollout_worker=worker,
            weight_transfer=transfer,
        )
        use_cpu_attention()
        return trainer

    # It asks CUDA for the device's name, for a figure of its log.
    with patch.object(module, "get_peak_flops_per_device", return_value=None):
        yield make


def test_the_protocols_are_those_of_the_installed_version() -> None:
    from trl.experimental.async_grpo.async_grpo_trainer import (
        RolloutWorkerProtocol,
        WeightTransferProtocol,
    )

    for protocol, ours in (
        (RolloutWorkerProtocol, TreeRolloutWorker),
        (WeightTransferProtocol, SamplerWeights),
    ):
        wanted = {n: f for n, f in vars(protocol).items() if inspect.isfunction(f) and n[0] != "_"}
        assert wanted
        for name, function in wanted.items():
            if name == "__init__":
                continue
            mine = inspect.signature(getattr(ours, name)).parameters
            assert list(mine) == list(inspect.signature(function).parameters), name
    model, _, sampler, task = parts()
    worker = TreeRolloutWorker(small_config(), task, sampler)
    assert worker.rollout_buffer.empty() and worker.metrics_queue.empty()
    SamplerWeights(worker, model).destroy()


def test_the_gradient_is_that_of_the_loop(trainer_of: Any) -> None:
    from trl.experimental.async_grpo.async_grpo_trainer import DataCollatorForRollout
    from trl.experimental.async_grpo.packing import TreeRow

    model, _, sampler, task = parts()
    config = small_config("prompts=3", "rollouts=4")
    worker = TreeRolloutWorker(config, task, sampler)
    batch = worker._collector.collect(1, config.schedule.at(1), 0)
    assert batch.learnable

    ours, _ = fresh_model()
    for micro in policy_batch(batch.groups, config.loss).micro:
        logits = edge_logits(ours, micro.tensors)
        logprobs = edge_logprobs(logits, micro.tensors.tokens)
        loss, _ = policy_loss(logprobs, micro.values, config.loss)
        loss.backward()

    trainer = trainer_of(worker, SamplerWeights(worker, model))
    row = TreeRow()
    for number, group in enumerate(batch.groups):
        for sample in rows_of(group, number, 0):
            row.add(
                {
                    name: getattr(sample, name)
                    for name in (
                        "input_ids",
                        "completion_mask",
                        "old_log_probs",
                        "advantage",
                        "group_id",
                        "metrics",
                    )
                }
            )
    collator = DataCollatorForRollout(0, 1, groups_trained=set(), metrics=trainer._metrics["train"])
    inputs = collator([[row]])
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.eval()
    trainer.compute_loss(trainer.model, inputs).backward()

    theirs = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    compared = 0
    for name, parameter in ours.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(theirs[name], parameter.grad, atol=1e-5, rtol=1e-4)
            compared += 1
    assert compared > 20
    assert max(float(grad.abs().max()) for grad in theirs.values()) > 1e-3


def test_some_steps_on_the_cpu(trainer_of: Any) -> None:
    model, _, sampler, task = parts()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    worker = TreeRolloutWorker(small_config(), task, sampler)
    trainer = trainer_of(worker, SamplerWeights(worker, model))
    trainer.train()
    assert trainer.state.global_step == 2
    assert not worker._thread.is_alive()
    logged = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logged) == 2 and "rollout/accuracy" in logged[0]
    # The sampler has the trainer's weights, and they are others than at the start.
    after = dict(trainer.model.named_parameters())
    moved = 0
    for name, value in model.named_parameters():
        torch.testing.assert_close(value, after[name].detach(), rtol=0, atol=0)
        moved += not torch.equal(value, before[name])
    assert moved > 20


def test_rows_are_the_requests_with_their_contexts_masked() -> None:
    _, _, sampler, task = parts()
    config = small_config()
    collector = TreeRolloutWorker(config, task, sampler)._collector
    group = collector.collect(1, config.schedule.at(1), 0).groups[0]
    rows = list(rows_of(group, 7, 3))
    sampled = sum(t.sampled_tokens for t in group.trajectories)
    assert sum(int(row.completion_mask.sum()) for row in rows) == sampled
    assert {(row.group_id, row.model_version) for row in rows} == {(7, 3)}
    assert {row.advantage for row in rows} == set(group.advantages)
    units = [unit for t in group.trajectories for unit in t.units()]
    for row, unit in zip(rows, units, strict=True):
        assert row.input_ids.tolist() == [*unit.context, *unit.completion]
        assert row.old_log_probs[row.completion_mask == 0].any() == False  # noqa: E712


def test_a_failure_of_the_rollouts_reaches_the_trainer() -> None:
    _, _, sampler, task = parts(grade=lambda *_: 1 / 0)
    worker = TreeRolloutWorker(small_config(), task, sampler)
    worker.start()
    worker._thread.join(60)
    with pytest.raises(AnabranchError, match="the rollouts failed: the grader failed on 8 of 8"):
        worker.check_health(1.0)
    worker.stop()


def test_a_weight_that_the_sampler_lacks_is_named() -> None:
    model, _, sampler, task = parts()
    transfer = SamplerWeights(TreeRolloutWorker(small_config(), task, sampler), model)
    with pytest.raises(AnabranchError, match=r"no weight 'lm_head\.extra'"):
        transfer.send_weights(iter([("lm_head.extra", torch.zeros(1))]))
