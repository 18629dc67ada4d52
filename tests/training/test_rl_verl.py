"""verl's agent loop: rollouts on a client that answers from the in-process engine."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from anabranch.engines.base import Call
from anabranch.engines.local import LocalEngine
from anabranch.errors import EngineError, UsageError
from anabranch.lab.bundled import bundled_model
from anabranch.lab.families import draw_distinct
from anabranch.lab.rl_tasks import grade_lab as grade  # noqa: F401 - named by its path below
from anabranch.lab.structure import prompt_of
from anabranch.records import Problem, Trajectory, Verdict
from anabranch.training import presets, rl_verl
from anabranch.training.advantages import advantages
from anabranch.training.rewards.presets import preset
from anabranch.training.rl_verl import Rollouts, ServerEngine, named, outputs_of, reward_alone

LAB = {
    "dialect": "parason:compact",
    "limits": {"max_total_tokens": 400},
    "grader": "anabranch.lab.rl_tasks:grade_lab",
}


class Client:
    """Has the ``generate`` of verl's server client, and a real model behind it."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.seen: list[tuple[str, dict[str, Any]]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        self.seen.append((request_id, sampling_params))
        ids: list[int] = []
        logprobs: list[float] = []
        call = Call(
            tuple(prompt_ids),
            tuple(sampling_params["stop"]),
            sampling_params["max_tokens"],
            temperature=sampling_params["temperature"],
            seed=sampling_params["seed"],
        )
        async for chunk in self.engine.generate(call):
            ids += chunk.ids
            logprobs += chunk.logprobs or ()
        return SimpleNamespace(token_ids=ids, log_probs=logprobs, stop_reason="completed")


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(bundled_model())


def decode(count: int = 4) -> tuple[list[tuple[Trajectory, float | None]], Client]:
    async def main() -> Any:
        engine = LocalEngine(bundled_model())
        client = Client(engine)
        rollouts = Rollouts(client, tokenizer(), window=1024, **LAB)  # type: ignore[arg-type]
        made = []
        try:
            for problem in draw_distinct(2, "chains", (3, 5), count):
                prompt = prompt_of(problem.text, "parallel")
                ids = rollouts.tokenizer.encode(prompt)
                record = Problem(id=problem.text, problem=problem.text)
                made.append(await rollouts.run(ids, record, {"temperature": 1.0, "top_p": 1.0}))
        finally:
            await engine.close()
        return made, client

    return asyncio.run(main())  # type: ignore[no-any-return]


def test_rollouts_fork_on_the_client_and_are_rewarded() -> None:
    made, client = decode()
    for done, reward in made:
        assert [len(block.branches) for block in done.blocks] == [3]
        assert done.verdict is not None and done.verdict.correct
        # ±1 and 0.5 · min(1 − path / total, 0.2), as published.
        assert reward == pytest.approx(1.1)
    requests = {name for name, _ in client.seen}
    assert len(requests) == len(made) and len(client.seen) == 5 * len(made)
    assert all(settings["include_stop_str_in_output"] for _, settings in client.seen)


def test_outputs_are_the_requests_with_the_final_one_last() -> None:
    (done, _), *_ = decode(1)[0]
    prompt = done.prompt_tokens
    outputs = list(outputs_of(done, prompt))
    assert len(outputs) == 5
    sampled = [
        [i for i, m in zip(o["response_ids"], o["response_mask"], strict=True) if m]
        for o in outputs
    ]
    assert sum(map(len, sampled)) == done.sampled_tokens
    assert {tuple(ids) for ids in sampled} == {unit.completion for unit in done.units()}
    # The final output is the whole answer as the model saw it in the end.
    assert (
        outputs[-1]["response_ids"]
        == [token for index in done.final for token in done.segments[index].ids][prompt:]
    )
    for one in outputs:
        assert one["prompt_ids"] == outputs[0]["prompt_ids"]
        assert len(one["response_ids"]) == len(one["response_logprobs"])
        pairs = zip(one["response_logprobs"], one["response_mask"], strict=True)
        assert all(score == 0 for score, mask in pairs if not mask)


def test_rewards_of_a_group_are_refused_before_anything_is_sampled() -> None:
    for name in ("pa_grpo", "path_latency", "sequential_gain"):
        with pytest.raises(UsageError, match="verl scores them one by one"):
            Rollouts(None, tokenizer(), reward=name)
    (done, reward), *_ = decode(1)[0]
    assert done.verdict is not None
    assert reward_alone(preset("p_grpo"), done, done.verdict) == reward
    assert reward_alone(preset("p_grpo"), done, Verdict(status="wrong")) == -1


def test_bad_graders_and_answers_are_named() -> None:
    with pytest.raises(UsageError, match="write it like module:name"):
        named("anabranch.nothing:at_all")

    async def ask(**found: Any) -> None:
        class Odd:
            async def generate(self, **_: Any) -> Any:
                return SimpleNamespace(**{"log_probs": None, "stop_reason": None, **found})

        engine = ServerEngine(Odd(), Rollouts(None, tokenizer(), **LAB).tokenizer)  # type: ignore[arg-type]
        async for _ in engine.generate(Call((1,), (), 4)):
            pass

    with pytest.raises(EngineError, match="calculate_log_probs"):
        asyncio.run(ask(token_ids=[5]))
    with pytest.raises(EngineError, match="aborted"):
        asyncio.run(ask(token_ids=[5], stop_reason="aborted"))


def test_the_agent_loop_in_verl_itself() -> None:
    pytest.importorskip("verl.experimental.agent_loop.agent_loop", reason="verl is not installed")
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap

    async def main() -> Any:
        engine = LocalEngine(bundled_model())
        config = OmegaConf.create(
            {
                "actor_rollout_ref": {"rollout": {"prompt_length": 128, "response_length": 600}},
                "data": {},
            }
        )
        own = tokenizer()
        own.chat_template = prompt_of("{{ messages[0]['content'] }}", "parallel")
        loop = rl_verl.ForkJoinAgentLoop(
            trainer_config=DictConfigWrap(config=config),
            server_manager=Client(engine),
            tokenizer=own,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(config.data),
            **LAB,
        )
        problem = draw_distinct(2, "chains", (3, 5), 1)[0]
        message = {"role": "user", "content": problem.text}
        try:
            return await loop.run({"temperature": 1.0}, raw_prompt=[message], uid="7")
        finally:
            await engine.close()

    outputs = asyncio.run(main())
    assert len(outputs) == 5
    assert [one.reward_score for one in outputs[:-1]] == [None] * 4
    assert outputs[-1].reward_score == pytest.approx(1.1)
    assert all(len(o.response_ids) == len(o.response_mask) for o in outputs)
    assert outputs[-1].as_dict()["rm_scores"][-1] == outputs[-1].reward_score


def test_verls_advantages_are_those_of_the_loop() -> None:
    pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    rewards = [1.1, -1.0, 1.0, 1.05]
    mask = torch.ones(4, 3)
    scores = torch.zeros(4, 3)
    scores[:, -1] = torch.tensor(rewards)
    found, _ = compute_grpo_outcome_advantage(
        scores, mask, index=np.array(["a"] * 4), norm_adv_by_std_in_grpo=False
    )
    ours = advantages(list(rewards), "mean")
    assert found[:, 0].tolist() == pytest.approx(ours, abs=1e-6)
    assert (found == found[:, :1]).all()


def test_the_launch_file_says_what_the_paper_says() -> None:
    folder = Path(presets.__file__).parent / "verl"
    text = (folder / "threadweaver-8b.sh").read_text()
    settings = dict(re.findall(r"^  (?:\+)?([\w.]+)=(\S+) \\$", text, re.M))
    assert settings["algorithm.norm_adv_by_std_in_grpo"] == "False"
    assert settings["actor_rollout_ref.actor.loss_agg_mode"] == "token-mean"
    assert (settings["data.train_batch_size"], settings["actor_rollout_ref.rollout.n"]) == (
        "128",
        "8",
    )
    clip = [settings[f"actor_rollout_ref.actor.clip_ratio_{side}"] for side in ("low", "high")]
    assert clip == ["0.2", "0.28"]
    import yaml

    (loop,) = yaml.safe_load((folder / "agent_loops.yaml").read_text())
    target = loop.pop("_target_")
    assert target == "anabranch.training.rl_verl.ForkJoinAgentLoop"
    assert loop.pop("name") == "fork_join"
    Rollouts(None, tokenizer(), **loop)


def test_verl_knows_every_setting_of_the_launch_file() -> None:
    verl = pytest.importorskip("verl", reason="verl is not installed")
    from hydra import compose, initialize_config_dir

    text = (Path(presets.__file__).parent / "verl" / "threadweaver-8b.sh").read_text()
    given = re.findall(r'^  ([\w.]+)=("?[^\s"]+"?)', text, re.M)
    plain = [f"{name}=x" if "$" in value else f"{name}={value}" for name, value in given]
    plain = [one for one in plain if not one.startswith(("trainer.nnodes", "trainer.n_gpus"))]
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=plain)
    assert config.algorithm.norm_adv_by_std_in_grpo is False
    assert config.trainer.use_v1 is True
