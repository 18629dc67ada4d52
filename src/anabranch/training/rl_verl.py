"""An agent loop for verl (0.9): fork-join rollouts on its servers, one output a request.

verl draws prompts, runs its vLLM or SGLang servers, computes the group's advantages and trains; the
machine, limits, grading and rewards are ours. The loop returns a list, every request of a
trajectory once and the final one last, with the reward on it; verl's trainer of version 1 (its
transfer queue) gives the reward, and so the advantage, to all of them. Its older trainer takes one
output only and is left out, and so are rewards that need the whole group: verl scores answers one
by one. Settings that go with it are in ``presets/verl``.

Importable without verl but for :class:`ForkJoinAgentLoop`, which is made when verl is there.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from anabranch.decoding import Setup
from anabranch.decoding.decoder import run as run_machine
from anabranch.dialects import get_dialect
from anabranch.engines.base import Call, Capabilities, Chunk, Tokenizer
from anabranch.engines.output import IdOutput
from anabranch.engines.tokenizers import HFTokenizer
from anabranch.errors import AnabranchError, EngineError, UsageError
from anabranch.records import Limits, Problem, Sampling, Trajectory, Verdict
from anabranch.training.rewards.compose import RewardConfig, score_group
from anabranch.training.rewards.group import group_of
from anabranch.training.rewards.presets import preset

#: Terms that one rollout is enough for.
ALONE = frozenset({"acceleration", "parallel_use", "format", "half_tags", "duplicate_branches"})
Grade = Callable[[Problem, Trajectory], Verdict]


class ServerEngine:
    """verl's server client as an engine of ours: whole answers, no stream.

    Args:
        client: verl's ``LLMServerClient``, or whatever has its ``generate``.
        tokenizer: of the policy.
        window: tokens of prompt and response together.
        extra: further sampling parameters of the rollout, such as ``repetition_penalty``.
    """

    name = "verl"

    def __init__(
        self,
        client: Any,
        tokenizer: Tokenizer,
        *,
        window: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.client, self.tokenizer = client, tokenizer
        self.model = "policy"
        self.extra = dict(extra or {})
        self._capabilities = Capabilities(window=window, prefix_cache=True)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def close(self) -> None:
        return None

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """One request; calls of one affinity go to one server, for its prefix cache."""
        parameters = {
            **self.extra,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "top_k": call.top_k or -1,
            "seed": call.seed % 2**31,
            "max_tokens": call.max_tokens,
            "logprobs": True,
            "stop": list(call.stop),
            "include_stop_str_in_output": True,
        }
        found = await self.client.generate(
            request_id=call.affinity or uuid4().hex,
            prompt_ids=list(call.ids),
            sampling_params=parameters,
        )
        yield self._chunk(call, list(found.token_ids), found.log_probs, found.stop_reason)

    def _chunk(
        self, call: Call, ids: list[int], logprobs: list[float] | None, reason: str | None
    ) -> Chunk:
        if reason == "aborted":
            raise EngineError("verl aborted the request, for new weights", retryable=True)
        if logprobs is None or len(logprobs) < len(ids):
            raise EngineError("verl gave no log-probs: set rollout.calculate_log_probs=True")
        output = IdOutput(self.tokenizer, call.stop, call.max_tokens)
        ended = bool(ids) and ids[-1] in self.tokenizer.eos_ids
        kept, text = output.push(ids[:-1] if ended else ids)
        rest, tail = output.close() if output.stop is None else ([], "")
        taken = [*kept, *rest]
        if output.stop is not None:
            finish, own = "stop", taken
        elif ended:
            finish, own = "eos", ids
        else:
            finish, own = "length", taken
        return Chunk(
            ids=tuple(own),
            text=text + tail,
            logprobs=tuple(logprobs[: len(own)]),
            finish=finish,  # type: ignore[arg-type]  # one of the three above
            stop=output.stop,
            prompt_tokens=len(call.ids),
        )


def outputs_of(trajectory: Trajectory, prompt: int) -> Iterator[dict[str, Any]]:
    """The fields of verl's outputs: each request behind the prompt, the final one last.

    Args:
        trajectory: finished.
        prompt: tokens of the prompt.

    Raises:
        AnabranchError: a request has no log-probs.
    """
    units = list(trajectory.units())
    mains = [n for n, unit in enumerate(units) if trajectory.requests[unit.request].kind == "main"]
    if mains:
        units.append(units.pop(mains[-1]))
    for unit in units:
        if unit.logprobs is None:
            raise AnabranchError(f"{trajectory.id}: request {unit.request} has no log-probs")
        before = unit.context[prompt:]
        yield {
            "prompt_ids": list(unit.context[:prompt]),
            "response_ids": [*before, *unit.completion],
            "response_mask": [0] * len(before) + [1] * len(unit.completion),
            "response_logprobs": [0.0] * len(before) + list(unit.logprobs),
        }


def reward_alone(config: RewardConfig, trajectory: Trajectory, verdict: Verdict) -> float | None:
    """The reward of one rollout.

    Raises:
        UsageError: a term needs the group.
    """
    grouped = [term.kind for term in (*config.terms, *config.factors) if term.kind not in ALONE]
    if grouped:
        raise UsageError(
            f"the reward term {grouped[0]!r} compares the rollouts of a group, and verl scores "
            f"them one by one; possible here: {', '.join(sorted(ALONE))}"
        )
    return score_group(config, group_of([trajectory], [verdict]))[0].total


def named(path: str) -> Any:
    """The object that ``module:name`` names.

    Raises:
        UsageError: there is none.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise UsageError(f"{path!r}: no such function; write it like module:name") from None


def grade_maths(problem: Problem, trajectory: Trajectory) -> Verdict:
    """The project's own grader, one for each process."""
    global _grader
    if _grader is None:
        from anabranch.grading import Grader

        _grader = Grader(workers=1)
    found: Verdict = _grader.grade(problem, trajectory)
    return found


_grader: Any = None


class Rollouts:
    """What the agent loop does, without verl: a prompt to a graded trajectory.

    Args:
        client: as of :class:`ServerEngine`.
        tokenizer: a fast tokenizer of transformers.
        window: tokens of prompt and response together.
        dialect, limits: of the decoding.
        reward: a preset's name, or a reward as plain data.
        grader: ``module:name`` of a grader; default the project's own for maths.
    """

    def __init__(
        self,
        client: Any,
        tokenizer: Any,
        *,
        window: int | None = None,
        dialect: str = "threadweaver",
        limits: Mapping[str, Any] | None = None,
        reward: str | Mapping[str, Any] = "p_grpo",
        grader: str = "anabranch.training.rl_verl:grade_maths",
    ) -> None:
        from tokenizers import Tokenizer as Raw

        raw = Raw.from_str(tokenizer.backend_tokenizer.to_str())
        self.tokenizer = HFTokenizer(raw, eos_ids=[tokenizer.eos_token_id])
        self.client, self.window = client, window
        self.dialect = get_dialect(dialect)
        self.limits = Limits.model_validate(dict(limits or {}))
        self.reward = (
            preset(reward) if isinstance(reward, str) else RewardConfig.model_validate(dict(reward))
        )
        self.grade: Grade = named(grader)
        # Refused before anything is sampled.
        reward_alone(
            self.reward,
            Trajectory(dialect=self.dialect.name),
            Verdict(status="error", reason="nothing yet"),
        )

    async def run(
        self, prompt_ids: list[int], problem: Problem, sampling: Mapping[str, Any]
    ) -> tuple[Trajectory, float | None]:
        """The graded trajectory of a prompt, with its reward; None leaves it out."""
        own = ("temperature", "top_p", "top_k")
        extra = {k: v for k, v in sampling.items() if k not in (*own, "logprobs", "max_tokens")}
        engine = ServerEngine(self.client, self.tokenizer, window=self.window, extra=extra)
        name = uuid4().hex
        setup = Setup(
            dialect=self.dialect,
            tokenizer=self.tokenizer,
            prompt=self.tokenizer.decode(prompt_ids),
            prompt_ids=tuple(prompt_ids),
            limits=self.limits,
            sampling=Sampling(
                temperature=float(sampling.get("temperature", 1.0)),
                top_p=float(sampling.get("top_p", 1.0)),
                top_k=max(0, int(sampling.get("top_k", 0))),
                seed=int(name[:8], 16),
            ),
            window=self.window,
            logprobs=True,
            id=name,
            affinity=name,
            problem=problem,
            model=engine.model,
            engine=engine.name,
        )
        done = await run_machine(setup, engine)
        if done.outcome == "failed":
            reason = done.findings[-1].message if done.findings else "unknown reason"
            raise EngineError(f"a rollout failed: {reason}")
        verdict = self.grade(problem, done)
        return done.model_copy(update={"verdict": verdict}), reward_alone(
            self.reward, done, verdict
        )


def _loop_class() -> Any:
    """The agent loop; made here, since its base class is verl's."""
    from verl.experimental.agent_loop.agent_loop import (
        AgentLoopBase,
        AgentLoopMetrics,
        AgentLoopOutput,
    )

    class ForkJoinAgentLoop(AgentLoopBase):  # type: ignore[misc]
        """Named in verl's file of agent loops, with the settings of :class:`Rollouts`."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            names = ("dialect", "limits", "reward", "grader")
            settings = {name: kwargs.pop(name) for name in names if name in kwargs}
            super().__init__(*args, **kwargs)
            self.response_length = self.rollout_config.response_length
            self.rollouts = Rollouts(
                self.server_manager,
                self.tokenizer,
                window=self.rollout_config.prompt_length + self.response_length,
                **settings,
            )

        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[Any]:
            """One output for each request, the final one last and with the reward."""
            prompt = await self.ct_build_initial_tokens(list(kwargs["raw_prompt"]))
            gold = (kwargs.get("reward_model") or {}).get("ground_truth")
            text = "\n".join(str(message["content"]) for message in kwargs["raw_prompt"])
            problem = Problem(
                id=str(kwargs.get("uid") or kwargs.get("index") or ""),
                problem=text,
                answer=None if gold is None else str(gold),
            )
            done, reward = await self.rollouts.run(list(prompt), problem, sampling_params)
            made = []
            for fields in outputs_of(done, len(prompt)):
                if len(fields["response_ids"]) > self.response_length:
                    raise AnabranchError(
                        f"a request has {len(fields['response_ids'])} tokens behind the prompt, "
                        f"and data.max_response_length is {self.response_length}: raise it, or "
                        "lower limits.max_total_tokens"
                    )
                made.append(AgentLoopOutput(**fields, num_turns=2, metrics=AgentLoopMetrics()))
            if reward is not None:
                made[-1].reward_score = reward
            assert done.verdict is not None
            made[-1].extra_fields["reward_extra_info"] = {"verdict": done.verdict.status}
            return made

    return ForkJoinAgentLoop


def __getattr__(name: str) -> Any:
    if name == "ForkJoinAgentLoop":
        made = _loop_class()
        made.__module__, made.__qualname__ = __name__, name
        globals()[name] = made
        return made
    raise AttributeError(name)
