"""What passes at an engine's edge is written down exactly, and comes back exactly."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.decoding import make_policy, make_setup, run
from anabranch.engines.base import Call, Capabilities, Chunk, Engine
from anabranch.engines.failures import StatusError, UnreachableError
from anabranch.engines.recording import (
    RecordedCall,
    error_from_json,
    error_to_json,
    read_recording,
)
from anabranch.engines.replay import RecordingEngine, ReplayEngine
from anabranch.engines.simulated import ScriptedReply, SimulatedEngine
from anabranch.engines.symbols import CharTokenizer
from anabranch.engines.virtual_time import run_virtual
from anabranch.errors import ContextWindowError, EngineError, RecordError, UsageError
from anabranch.jsonl import dump_line

TOKENIZER = CharTokenizer()
PLAN = "<think>p<Parallel><Outlines><Trial>1:a</Trial><Trial>2:b</Trial></Outlines>"
SCRIPT = {
    "Q": PLAN,
    "<Thread>1:": "A" * 30 + "</Thread>",
    "<Thread>2:": "B" * 10 + "\\boxed{3}</Thread>",
    "</Parallel>": "r</think>\\boxed{3}",
}


def call(prompt="x", **options):
    options = {"stop": ("</a>",), "max_tokens": 100, **options}
    return Call(tuple(TOKENIZER.encode(prompt)), **options)


async def collect(engine, wanted):
    return [chunk async for chunk in engine.generate(wanted)]


def record(path, script, *calls, **options):
    """Makes calls one after another; what each gave, or its error."""

    async def main():
        results = []
        async with RecordingEngine(SimulatedEngine(script, TOKENIZER, **options), path) as engine:
            assert isinstance(engine, Engine)
            for one in calls:
                try:
                    results.append(await collect(engine, one))
                except EngineError as error:
                    results.append(error)
        return results

    return run_virtual(main())


def setup(engine, **changes):
    changes = {"dialect": "parason:compact", "id": "t", **changes}
    made = make_setup("Q", engine, **changes)
    return replace(made, prompt="Q", prompt_ids=tuple(TOKENIZER.encode("Q")))


def timeless(trajectory):
    data = trajectory.to_json()
    data["seconds"] = None
    for request in data["requests"]:
        for name in ("started", "first_token", "finished"):
            request.pop(name, None)
    return data


def test_chunks_come_back_byte_for_byte(tmp_path):
    path = tmp_path / "calls.jsonl"
    calls = [call(), call("other", logprobs=False), call("cut", max_tokens=3)]
    odd = "é\u2028\ud800 \U0001f600 </a>"
    recorded = record(path, lambda _: odd, *calls, decode_rate=10, window=500)
    engine = ReplayEngine(path, TOKENIZER)
    assert isinstance(engine, Engine)
    assert (engine.name, engine.model) == ("simulated", "script")
    assert engine.capabilities == Capabilities(window=500)
    again = [run_virtual(collect(engine, one)) for one in reversed(calls)]
    assert again == recorded[::-1]
    assert engine.unused == 0
    assert path.read_bytes().isascii()


def test_times_are_kept_and_can_be_replayed(tmp_path):
    path = tmp_path / "calls.jsonl"
    record(path, lambda _: "abc", call(), prefill_rate=1, decode_rate=2)
    _, (only,) = read_recording(path)
    assert only.times == pytest.approx([1.5, 2.0, 2.5, 3.0, 3.0])
    assert only.seconds == pytest.approx(3.0)

    async def seconds(engine):
        await collect(engine, call())
        return asyncio.get_running_loop().time()

    assert run_virtual(seconds(ReplayEngine(path, TOKENIZER, timed=True))) == pytest.approx(3.0)
    assert run_virtual(seconds(ReplayEngine(path, TOKENIZER))) == 0


def test_the_same_call_twice_gives_its_recordings_in_order(tmp_path):
    path = tmp_path / "calls.jsonl"
    texts = iter("abc")
    record(path, lambda _: next(texts), call(), call(affinity="elsewhere"), call())
    engine = ReplayEngine(path, TOKENIZER)

    async def main():
        return [(await collect(engine, call()))[0].text for _ in "123"]

    assert run_virtual(main()) == ["a", "b", "c"]
    with pytest.raises(EngineError, match="was recorded 3 times and is made once more"):
        run_virtual(collect(engine, call()))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (call(seed=7), r"number 1, differs in seed \(0 was recorded, 7 is asked\)$"),
        (call("second one"), r"number 2, differs in the prompt from token 7 on \(10 tokens were"),
        (call(stop=(), top_k=4), r"stop \(\('</a>',\) was recorded, \(\) is asked\); top_k"),
    ],
)
def test_an_unknown_call_is_one_clear_error(tmp_path, asked, says):
    path = tmp_path / "calls.jsonl"
    record(path, lambda _: "a", call("x"), call("second x!!"))
    engine = ReplayEngine(path, TOKENIZER)
    with pytest.raises(EngineError, match=says) as caught:
        run_virtual(collect(engine, asked))
    assert "\n" not in str(caught.value) and not caught.value.retryable


def test_an_empty_recording_knows_no_call(tmp_path):
    path = tmp_path / "calls.jsonl"
    record(path, lambda _: "a")
    with pytest.raises(EngineError, match="holds no call"):
        run_virtual(collect(ReplayEngine(path, TOKENIZER), call()))


@pytest.mark.parametrize(
    "error",
    [
        EngineError("torn", retryable=True),
        UnreachableError("gone", retryable=True),
        StatusError("busy", status=503, retryable=True),
        ContextWindowError("too long", window=9, prompt_tokens=12),
        UsageError("wrong"),
    ],
)
def test_errors_come_back_as_they_were(tmp_path, error):
    again = error_from_json(json.loads(json.dumps(error_to_json(error))))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
    if not isinstance(error, EngineError):
        return
    path = tmp_path / "calls.jsonl"
    record(path, lambda _: ScriptedReply("abcdef", error=error, after=2), call())
    pieces = []

    async def main():
        async for chunk in ReplayEngine(path, TOKENIZER).generate(call()):
            pieces.append(chunk.text)

    with pytest.raises(type(error), match=str(error)):
        run_virtual(main())
    assert pieces == ["a", "b"]


def test_a_call_that_was_left_ends_where_it_was_left(tmp_path):
    path = tmp_path / "calls.jsonl"

    async def leave(engine):
        async with aclosing(engine.generate(call())) as chunks:
            async for chunk in chunks:
                if chunk.text == "c":
                    return

    async def main():
        async with RecordingEngine(SimulatedEngine(lambda _: "abcdef", TOKENIZER), path) as engine:
            await leave(engine)

    run_virtual(main())
    _, (only,) = read_recording(path)
    assert only.ending == "left" and len(only.chunks) == 3
    run_virtual(leave(ReplayEngine(path, TOKENIZER)))
    with pytest.raises(EngineError, match="the recording ends here, its caller left"):
        run_virtual(collect(ReplayEngine(path, TOKENIZER), call()))


@pytest.mark.parametrize("policy", ["all", "first_conclusive"])
def test_a_whole_trajectory_is_recorded_and_replayed(tmp_path, policy):
    path = tmp_path / "calls.jsonl"
    broken = [ScriptedReply("A" * 9, error=EngineError("torn", retryable=True), after=4)]

    def script(wanted):
        text = TOKENIZER.decode(wanted.ids)
        if text.endswith("<Thread>1:") and broken:
            return broken.pop()
        return next(reply for end, reply in SCRIPT.items() if text.endswith(end))

    async def main(engine):
        try:
            return await run(setup(engine, policy=make_policy(policy)), engine)
        finally:
            await engine.close()

    simulated = SimulatedEngine(script, TOKENIZER, decode_rate=10)
    first = run_virtual(main(RecordingEngine(simulated, path)))
    assert first.outcome == "answered" and any(r.attempt for r in first.requests)
    if policy == "first_conclusive":
        assert any(r.finish == "cancelled" for r in first.requests)
    replayed = ReplayEngine(path, TOKENIZER)
    second = run_virtual(main(replayed))
    assert timeless(second) == timeless(first)
    assert replayed.unused == 0
    assert second.seconds == 0
    timed = run_virtual(main(ReplayEngine(path, TOKENIZER, timed=True)))
    assert timeless(timed) == timeless(first)
    assert timed.seconds == pytest.approx(first.seconds)


def test_calls_at_once_come_in_the_recorded_order(tmp_path):
    path = tmp_path / "calls.jsonl"
    prompts = ["slow", "fast", "mid"]

    async def main(engine):
        seen = []

        async def one(prompt):
            async for chunk in engine.generate(call(prompt)):
                seen.append((prompt, chunk.text))

        await asyncio.gather(*(one(prompt) for prompt in prompts))
        return seen

    def script(wanted):
        text = TOKENIZER.decode(wanted.ids)
        return ScriptedReply(text * 3, stall={"slow": 0.45, "fast": 0, "mid": 0.2}[text], after=3)

    recording = RecordingEngine(SimulatedEngine(script, TOKENIZER, decode_rate=10), path)
    first = run_virtual(main(recording))
    run_virtual(recording.close())
    for turn in range(3):
        prompts = prompts[turn:] + prompts[:turn]  # who asks first does not matter
        assert run_virtual(main(ReplayEngine(path, TOKENIZER))) == first


def test_another_program_does_not_wait_for_ever(tmp_path):
    path = tmp_path / "calls.jsonl"

    async def both(engine):
        await asyncio.gather(*(collect(engine, call(prompt)) for prompt in "ab"))

    recording = RecordingEngine(
        SimulatedEngine(lambda _: "y" * 40, TOKENIZER, decode_rate=10), path
    )
    run_virtual(both(recording))
    run_virtual(recording.close())

    async def one_after_the_other():
        engine = ReplayEngine(path, TOKENIZER, patience=2)
        for prompt in "ba":
            await collect(engine, call(prompt))
        return asyncio.get_running_loop().time()

    assert run_virtual(one_after_the_other()) <= 4


def test_a_recording_is_not_overwritten_by_accident(tmp_path):
    path = tmp_path / "deep" / "calls.jsonl"
    record(path, lambda _: "a", call())
    inner = SimulatedEngine(lambda _: "b", TOKENIZER)
    with pytest.raises(RecordError, match="is there already"):
        RecordingEngine(inner, path)
    with pytest.raises(RecordError, match="cannot be written"):
        RecordingEngine(inner, tmp_path, overwrite=True)  # a folder
    run_virtual(RecordingEngine(inner, path, overwrite=True).close())
    assert read_recording(path)[1] == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the recording is empty"),
        ('{"id": "t"}\n', "1: not a recording of format 1"),
        ("{not json\n", "1: not JSON"),
    ],
)
def test_other_files_are_refused_with_their_place(tmp_path, content, says):
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(RecordError, match=says):
        ReplayEngine(path, TOKENIZER)


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "calls.jsonl"
    record(path, lambda _: "a", call(), call())
    lines = path.read_text().splitlines(keepends=True)
    row = json.loads(lines[2])
    del row["chunks"]
    path.write_text("".join([*lines[:2], json.dumps(row)]))
    with pytest.raises(RecordError, match=r":3: not a recorded call: KeyError\('chunks'\)"):
        read_recording(path)


TEXT = st.text(st.characters(codec=None), max_size=8)
CHUNKS = st.builds(
    Chunk,
    ids=st.lists(st.integers(0, 2**31), max_size=4).map(tuple),
    text=TEXT,
    logprobs=st.none() | st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
    finish=st.sampled_from([None, "stop", "eos", "length"]),
    stop=st.none() | TEXT,
    prompt_tokens=st.none() | st.integers(0, 9),
    cached_tokens=st.none() | st.integers(0, 9),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHUNKS, max_size=4), TEXT)
def test_any_call_survives_the_file(chunks, stop):
    wanted = Call((1, 2), (stop,), 9, temperature=0.1, affinity=stop)
    times = [0.1 * n for n in range(len(chunks))]
    before = RecordedCall(wanted, 1, 0.5, chunks, list(range(len(chunks))), times, "done", 99, 1.25)
    line = dump_line(before.to_json())
    assert line.isascii()
    assert RecordedCall.from_json(json.loads(line)) == before
