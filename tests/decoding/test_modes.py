"""Constrained and prompted decoding. On an untrained model only the grammar makes a form."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from anabranch.checkpoint import load_checkpoint_info
from anabranch.decoding import Setup, make_setup, read_mode, run, solve
from anabranch.decoding.constrained import whole
from anabranch.decoding.prompted import example, instructions
from anabranch.dialects import dialect_names, get_dialect, parse, write
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.errors import UsageError
from anabranch.lab.bundled import bundled_model
from anabranch.metrics import trajectory_metrics
from anabranch.records import Limits, Sampling, Trajectory

DIALECTS = ["threadweaver", "parason", "parallel-r1", "multiverse", "npr"]
LIMITS = Limits(
    max_total_tokens=400,
    max_path_tokens=320,
    max_branch_tokens=25,
    max_branches=3,
    max_blocks=3,
    max_depth=2,
    answer_reserve=12,
)
PROBLEM = "d:S8T(*2)U(-1)V(-1)W(*9)X(*5);f:k7l(*3)m(-9)o(-9)p(-9)q(*3)?"


@pytest.fixture(scope="module")
def untrained() -> Iterator[Any]:
    """An engine with random weights over the vocabulary of the bundled model."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("xgrammar")
    from anabranch.engines.local import LocalEngine

    tokenizer = load_tokenizer(bundled_model())
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    engine = LocalEngine(transformers.LlamaForCausalLM(config), tokenizer, threads=1)
    yield engine
    asyncio.run(engine.close())


def wanted(engine: Any, dialect: str, seed: int, **changes: Any) -> Setup:
    base = Setup(
        dialect=get_dialect(dialect),
        tokenizer=engine.tokenizer,
        prompt="<bos>12+34=?",
        prompt_ids=tuple(engine.tokenizer.encode("<bos>12+34=?")),
        sampling=Sampling(temperature=1.0, seed=seed),
        limits=LIMITS,
        mode="constrained",
        min_blocks=1,
        window=1024,
        id=str(seed),
    )
    return replace(base, **changes)


def decoded(engine: Any, setup: Setup) -> Trajectory:
    return solve(setup, engine, close=False)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_untrained_model_is_well_formed(untrained: Any, dialect: str) -> None:
    blocks = 0
    for seed in range(2):
        done = decoded(untrained, wanted(untrained, dialect, seed))
        document = parse(done.text, get_dialect(dialect))
        assert document.well_formed, (document.diagnostics, done.text)
        assert done.grammar == "xgrammar"
        assert done.outcome in ("answered", "truncated")
        blocks += len(done.blocks)
        assert done.sampled_tokens <= 400
    assert blocks


def test_without_the_grammar_it_is_not(untrained: Any) -> None:
    """What makes the test above one that can fail."""
    setups = [
        wanted(untrained, "parason", seed, mode="parallel", min_blocks=0) for seed in range(3)
    ]
    texts = [decoded(untrained, setup).text for setup in setups]
    assert not all(parse(text, get_dialect("parason")).well_formed for text in texts)


def test_ids_texts_and_log_probs_stay_exact(untrained: Any) -> None:
    done = decoded(untrained, wanted(untrained, "npr", 1))
    for request in done.requests:
        output = done.segments[request.output]
        assert output.logprobs is not None and len(output.logprobs) == len(output.ids)
        ids = [token for token in output.ids if token not in untrained.tokenizer.eos_ids]
        assert untrained.tokenizer.decode(ids) == output.text
        assert len(output.ids) <= (request.max_tokens or 0)
    assert max(max(s.logprobs) for s in done.segments if s.logprobs) < -1  # of the raw logits


def test_refused_forks_are_skipped_in_form(untrained: Any) -> None:
    limits = LIMITS.model_copy(update={"on_refused_fork": "sequential", "min_branch_tokens": 60})
    for seed in range(2):
        setup = wanted(untrained, "threadweaver", seed, limits=limits, min_blocks=0)
        assert parse(decoded(untrained, setup).text, setup.dialect).well_formed


def test_no_more_blocks_than_max_blocks(untrained: Any) -> None:
    limits = LIMITS.model_copy(update={"max_blocks": 0})
    for seed in range(3):
        done = decoded(untrained, wanted(untrained, "parallel-r1", seed, limits=limits))
        assert done.blocks == [] and "<Parallel>" not in done.text


def test_a_trained_model_writes_the_same_as_without() -> None:
    pytest.importorskip("xgrammar")
    from anabranch.engines.local import LocalEngine

    engine = LocalEngine(bundled_model(), threads=1)
    info = load_checkpoint_info(bundled_model())

    async def main() -> tuple[Trajectory, Trajectory]:
        free = await run(make_setup(PROBLEM, engine, info=info), engine)
        bound = await run(make_setup(PROBLEM, engine, info=info, mode="constrained"), engine)
        await engine.close()
        return free, bound

    free, bound = asyncio.run(main())
    assert bound.blocks and bound.ids == free.ids
    assert [s.logprobs for s in bound.segments] == [s.logprobs for s in free.segments]
    assert (free.grammar, bound.grammar) == (None, "xgrammar")
    assert trajectory_metrics(bound).critical_path == trajectory_metrics(free).critical_path


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a < b", "a < b"),
        ("a <", "a "),
        ("a </Thr", "a "),
        ("a <Thread 1", "a "),
        ("so <Parallel><Outlines><Outline>1: x", "so "),
        ("so <Paral", "so "),
    ],
)
def test_what_a_limit_leaves_is_whole(text: str, kept: str) -> None:
    assert whole(text, get_dialect("threadweaver")) == kept


@pytest.mark.parametrize("name", DIALECTS)
def test_the_worked_example_is_well_formed(name: str) -> None:
    dialect = get_dialect(name)
    text = write(example(dialect), dialect)
    assert parse(text, dialect, strict=True).blocks
    message = instructions("How many?", dialect)
    assert text in message and message.endswith("Problem: How many?")


def test_every_dialect_has_instructions() -> None:
    assert all(instructions("x", get_dialect(name)) for name in dialect_names())


def test_an_engine_without_grammars_is_refused_by_name() -> None:
    tokenizer = load_tokenizer(bundled_model())

    async def main() -> None:
        server = LoopbackServer(tokenizer, "12")
        async with server, CompletionsEngine(server.url, tokenizer=tokenizer) as engine:
            assert await engine.find_grammar() is None
            with pytest.raises(UsageError, match=rf"constrained needs .* {engine.name} takes"):
                await run(make_setup("1", engine, mode="constrained"), engine)
            with pytest.raises(UsageError, match="min_blocks needs"):
                await run(make_setup("1", engine, mode="prompted", min_blocks=1), engine)
            done = await run(make_setup("1", engine, mode="prompted"), engine)
            assert done.grammar is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "flavour"),
    [
        (("structured_outputs",), "xgrammar"),
        (("grammar",), "gbnf"),
    ],
)
def test_the_field_that_takes_a_grammar_is_found(fields: tuple[str, ...], flavour: str) -> None:
    tokenizer = load_tokenizer(bundled_model())

    def script(request: Any) -> str:
        """Obeys a grammar of one text, in the field that it knows."""
        for field in fields:
            value = request.body.get(field)
            rule = value.get("grammar") if isinstance(value, dict) else value
            if rule and rule.count('"') == 2:
                return str(rule.split('"')[1])
        return "12"

    async def main() -> None:
        server = LoopbackServer(tokenizer, script)
        async with server, CompletionsEngine(server.url, tokenizer=tokenizer) as engine:
            assert await engine.find_grammar() == flavour
            await run(make_setup("1", engine, mode="constrained"), engine)
            assert all(field in server.served[-1].body for field in fields)
            asked = len(server.served)
            assert await engine.find_grammar() == flavour
            assert len(server.served) == asked

    asyncio.run(main())


def test_modes_by_name() -> None:
    assert [read_mode(name) for name in ("native", "parallel", "tools")] == [
        "parallel",
        "parallel",
        "tools",
    ]
    with pytest.raises(UsageError, match="unknown mode 'best': use native, constrained, prompted"):
        read_mode("best")


def test_what_does_not_fit_is_refused(untrained: Any) -> None:
    with pytest.raises(UsageError, match="needs a chat engine"):
        make_setup("1", untrained, mode="tools")
    with pytest.raises(UsageError, match="no means to force"):
        make_setup("1", untrained, min_blocks=1)
