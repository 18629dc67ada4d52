"""Random fork-join trajectories and tiny models for the tests of training."""

from __future__ import annotations

import random
from typing import Any

import torch
from hypothesis import strategies as st

from anabranch.records import Request, Segment, Trajectory

VOCABULARY = 61


class Writer:
    """Builds a trajectory as decoding would: each request sees segments that are shared."""

    def __init__(self, rng: random.Random, vocabulary: int = VOCABULARY) -> None:
        self.rng, self.vocabulary = rng, vocabulary
        self.segments: list[Segment] = []
        self.requests: list[Request] = []

    def ids(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(self.vocabulary) for _ in range(count))

    def add(self, origin: str, ids: tuple[int, ...]) -> int:
        logprobs = tuple(-self.rng.random() for _ in ids) if origin == "sampled" else None
        self.segments.append(Segment(origin=origin, ids=ids, logprobs=logprobs))  # type: ignore[arg-type]
        return len(self.segments) - 1

    def sample(self, kind: Any, context: list[int], count: int) -> int:
        output = self.add("sampled", self.ids(count))
        self.requests.append(Request(kind=kind, context=tuple(context), output=output))
        return output

    def block(self, context: list[int], branches: list[int], depth: int) -> list[int]:
        """A fork and its join behind ``context``; returns the joined segments."""
        joined: list[int] = []
        for count in branches:
            header = self.add("forced", self.ids(self.rng.choice((0, 1, 2))))
            before = [*context, header]
            own = [header]
            if depth > 1 and count > 2:
                own.append(self.sample("branch", before, 2))
                own += self.block([*context, *own], [count - 2, 1], depth - 1)
                before = [*context, *own]
            own.append(self.sample("branch", before, count))
            joined += own
        return [*joined, self.add("forced", self.ids(1))]

    def trajectory(
        self, prompt: tuple[int, ...], rounds: list[list[int]], depth: int
    ) -> Trajectory:
        main = [self.add("prompt", prompt)]
        for branches in rounds:
            main.append(self.sample("main", main, self.rng.randint(1, 4)))
            main += self.block(main, branches, depth)
        main.append(self.sample("main", main, self.rng.randint(1, 4)))
        return Trajectory(
            id=f"t{self.rng.randrange(1000)}",
            segments=self.segments,
            requests=self.requests,
            final=tuple(main),
        )


def make_trajectory(
    seed: int, rounds: list[list[int]], depth: int = 1, prompt: tuple[int, ...] | None = None
) -> Trajectory:
    writer = Writer(random.Random(seed))
    return writer.trajectory(prompt or writer.ids(4), rounds, depth)


@st.composite
def groups(draw: st.DrawFn) -> list[Trajectory]:
    """One to three rollouts of one prompt: depth up to 3, up to 6 branches, some of them empty."""
    prompt = tuple(draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5)))
    group = []
    for _ in range(draw(st.integers(1, 3))):
        rounds = draw(
            st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=0, max_size=2)
        )
        depth = draw(st.integers(1, 3))
        group.append(make_trajectory(draw(st.integers(0, 10**6)), rounds, depth, prompt))
    return group


def tiny_model(family: str, **changes: Any) -> Any:
    """A seeded causal LM with grouped key-value heads, in fp32 and evaluation mode."""
    import transformers

    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **changes,
    }
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(
        getattr(transformers, f"{family}Config")(**config)
    )
    # Larger weights than a fresh model has: attention must not be nearly uniform.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)
    return model.eval()
