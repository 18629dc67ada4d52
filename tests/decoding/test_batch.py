"""Files of trajectories: the same records whatever stopped the run, in bounded memory."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.decoding import make_setup
from anabranch.decoding.batch import config_file, decode_file, decode_stream
from anabranch.decoding.width import LoadGate
from anabranch.engines.load import Load
from anabranch.engines.load_watch import LoadWatch
from anabranch.engines.simulated import SimulatedEngine
from anabranch.errors import EngineError, RecordError, UsageError
from anabranch.jsonl import cut_torn_tail, read_records
from anabranch.lab.bundled import bundled_model
from anabranch.records import Problem, Trajectory

PLAN = "<think><Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"
SCRIPT = {
    "<Thread>1:": "one</Thread>",
    "<Thread>2:": "two</Thread>",
    "</Parallel>": "so</think>\\boxed{1}",
}
PROBLEMS = [Problem(id=f"p{n}", problem=f"question {n}") for n in range(7)]


def engine() -> SimulatedEngine:
    return SimulatedEngine(_reply, decode_rate=1e6)


def _reply(call: Any) -> str:
    prompt = engine_tokenizer.decode(call.ids)
    return next((text for end, text in SCRIPT.items() if prompt.endswith(end)), PLAN)


engine_tokenizer = SimulatedEngine(SCRIPT).tokenizer


def make(one: SimulatedEngine) -> Any:
    return lambda problem, sample, name: make_setup(
        problem, one, dialect="parason:compact", id=name
    )


def decode(output: Path, **options: Any) -> Any:
    one = engine()
    return asyncio.run(decode_file(PROBLEMS, make(one), one, output, samples=2, **options))


def records(output: Path) -> dict[str, Any]:
    """What does not depend on the clock."""
    return {
        t.id: (t.text, t.outcome, [r.seed for r in t.requests])
        for t in read_records(output, Trajectory)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("batch") / "out.jsonl"
    tally = decode(output)
    assert tally.done == 14 and tally.outcomes == {"answered": 14}
    return output


def test_every_sample_is_there_once(whole: Path) -> None:
    found = records(whole)
    assert set(found) == {f"p{n}#{k}" for n in range(7) for k in range(2)}
    seeds = [seeds[0] for _, _, seeds in found.values()]
    assert len(set(seeds)) == len(seeds)


@given(st.data())
def test_cut_anywhere_it_resumes_to_the_same_records(whole: Path, data: st.DataObject) -> None:
    content = whole.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    output = whole.with_name("cut.jsonl")
    output.write_bytes(content[:cut])
    tally = decode(output)
    assert tally.found == content[:cut].count(b"\n") and tally.done == 14
    assert records(output) == records(whole)


def test_damage_in_the_middle_is_refused(whole: Path, tmp_path: Path) -> None:
    lines = whole.read_text().splitlines(keepends=True)
    output = tmp_path / "out.jsonl"
    output.write_text(lines[0] + "{broken\n" + lines[1])
    with pytest.raises(RecordError, match=":2: not JSON"):
        decode(output)
    output.write_text(lines[0] * 2)
    with pytest.raises(RecordError, match="twice"):
        decode(output)


def test_another_configuration_is_refused_unless_forced(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    decode(output, config={"seed": 1})
    with pytest.raises(UsageError, match="seed"):
        decode(output, config={"seed": 2})
    assert decode(output, config={"seed": 2}, force=True).found == 14
    assert '"seed": 2' in config_file(output).read_text()


def test_a_stop_ends_in_order_and_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"

    async def main() -> Any:
        one, stop = engine(), asyncio.Event()

        def on_done(tally: Any, trajectory: Trajectory) -> None:
            if tally.done == 3:
                stop.set()

        tally = await decode_file(
            PROBLEMS, make(one), one, output, samples=2, concurrency=2, stop=stop, on_done=on_done
        )
        assert one.running == 0
        return tally

    tally = asyncio.run(main())
    assert tally.stopped and 3 <= tally.done < 14
    assert decode(output).done == 14


def test_no_more_is_begun_than_is_taken() -> None:
    async def main() -> int:
        one = engine()
        setups = (make(one)(Problem(id=str(n), problem="q"), 0, str(n)) for n in range(200))
        async for _ in decode_stream(setups, one, concurrency=3):
            pass
        return one.peak

    assert asyncio.run(main()) <= 6  # three trajectories of two branches


def test_failures_are_records(tmp_path: Path) -> None:
    one = SimulatedEngine(lambda call: (_ for _ in ()).throw(EngineError("gone")))
    output = tmp_path / "out.jsonl"
    tally = asyncio.run(decode_file(PROBLEMS[:2], make(one), one, output))
    assert tally.failed == 2
    assert {t.outcome for t in read_records(output, Trajectory)} == {"failed"}
    # The failure was the engine's: when it is back, the same command asks again.
    again = engine()
    tally = asyncio.run(decode_file(PROBLEMS[:3], make(again), again, output))
    assert (tally.found, tally.failed, tally.outcomes["answered"]) == (0, 0, 3)
    done = list(read_records(output, Trajectory))
    assert sorted(t.id for t in done) == ["p0#0", "p1#0", "p2#0"]
    assert {t.outcome for t in done} == {"answered"}


def test_torn_tails(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert cut_torn_tail(path) == 0
    rng = random.Random(1)
    for size in (0, 1, 10, 70_000, 200_000):
        torn = bytes(rng.choices(b"abc", k=size))
        path.write_bytes(b"whole\n" + torn)
        assert cut_torn_tail(path) == size and path.read_bytes() == b"whole\n"


def test_the_command(cli: Any, fails: Any, tmp_path: Path, bundled_server: str) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text(
        '{"id": "a", "problem": "a:A3(+4)(*2);b:B7(-1)(+5)?"}\n{"id": "b", "problem": "x"}\n'
    )
    arguments = ("decode", problems, "-o", tmp_path / "out.jsonl", "--samples", 2)
    assert "4 of 4" in cli(*arguments).stdout
    assert "new: none" in cli(*arguments).stdout
    assert "other settings (sampling)" in fails(*arguments, "--seed", 3)
    problems.write_text('{"id": "a", "problem": "x"}\n' * 2)
    assert "twice" in fails(*arguments)
    problems.write_text("")
    assert "no problem" in fails(*arguments)


@pytest.mark.parametrize("room", [0, 5])
def test_branches_are_held_back_while_there_is_no_room(tmp_path: Path, room: int) -> None:
    one, output = engine(), tmp_path / "out.jsonl"
    work = decode_file(PROBLEMS[:2], make(one), one, output, gate=lambda: LoadGate(lambda: room))
    asyncio.run(work)
    for done in read_records(output, Trajectory):
        assert done.outcome == "answered"
        # One branch of each always runs; the other waits for it, or does not.
        assert sum(f.code == "held_back" for f in done.findings) == (room == 0)


def test_the_command_reads_the_load_of_its_server(
    cli: Any, fails: Any, tmp_path: Path, bundled_server: str
) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"id": "a", "problem": "a:A3(+4)(*2);b:B7(-1)(+5)?"}\n')
    arguments = ("decode", problems, "-o", tmp_path / "out.jsonl", "--hold-above", 1)
    assert "load of one server" in fails(*arguments)
    tokenizer = bundled_model()
    done = cli(*arguments, "--engine", bundled_server, "--tokenizer", tokenizer)
    assert "1 of 1" in done.stdout


def test_a_watch_keeps_the_last_load_when_the_server_is_silent() -> None:
    class Reader:
        """Answers twice, then fails."""

        def __init__(self) -> None:
            self.loads = [Load(3, 2), Load(1, 0)]
            self.looked, self.closed = asyncio.Event(), False

        async def read(self) -> Load:
            if not self.loads:
                self.looked.set()
                raise EngineError("busy")
            return self.loads.pop(0)

        async def close(self) -> None:
            self.closed = True

    async def main() -> tuple[int, int, bool]:
        reader: Any = Reader()
        async with LoadWatch(reader, every=0.001) as watch:
            first = watch.room(8)
            await asyncio.wait_for(reader.looked.wait(), 10)
            second = watch.room(8)
        return first, second, reader.closed

    assert asyncio.run(main()) == (3, 7, True)
