"""A fleet of simulated replicas in virtual time: routing, limits, health, failover, hedging."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.decoding import make_setup, run
from anabranch.engines.base import Call, Chunk, Engine
from anabranch.engines.failures import StatusError, UnreachableError
from anabranch.engines.fleet import FleetEngine, Health, Hedging
from anabranch.engines.fleet_replicas import Replica
from anabranch.engines.fleet_routing import choose
from anabranch.engines.simulated import ScriptedReply, SimulatedEngine
from anabranch.engines.symbols import CharTokenizer
from anabranch.engines.virtual_time import run_virtual
from anabranch.errors import ContextWindowError, EngineError, UsageError

TOKENIZER = CharTokenizer()
RATE = 10.0


class Mortal(SimulatedEngine):
    """Dies and comes back on order; while dead, calls and checks cannot reach it."""

    def __init__(self, script=lambda _: "y" * 9, name="r", **options):
        options.setdefault("decode_rate", RATE)
        super().__init__(script, TOKENIZER, name=name, **options)
        self.alive = True
        self.checks = 0
        self._deaths: set[asyncio.Future[None]] = set()

    def die(self) -> None:
        self.alive = False
        for death in self._deaths:
            if not death.done():
                death.set_result(None)

    async def check(self) -> None:
        self.checks += 1
        self._reach()

    def _reach(self) -> None:
        if not self.alive:
            raise UnreachableError(f"cannot reach {self.name}")

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        self._reach()
        death = asyncio.get_running_loop().create_future()
        self._deaths.add(death)
        try:
            async with aclosing(super().generate(call)) as chunks:
                while True:
                    step = asyncio.ensure_future(anext(chunks, None))
                    try:
                        await asyncio.wait([step, death], return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        if not step.done():
                            step.cancel()
                            await asyncio.gather(step, return_exceptions=True)
                    self._reach()
                    chunk = step.result()
                    if chunk is None:
                        return
                    yield chunk
        finally:
            self._deaths.discard(death)


def call(prompt: str = "x", key: str = "k", **options: object) -> Call:
    return Call(tuple(TOKENIZER.encode(prompt)), (), 1000, affinity=key, **options)  # type: ignore[arg-type]


async def text(engine: Engine, wanted: Call) -> str:
    return "".join([chunk.text async for chunk in engine.generate(wanted)])


def replicas(number: int = 2, **options) -> list[Mortal]:
    return [Mortal(name=f"r{index}", **options) for index in range(number)]


def alone() -> bool:
    """Whether no task but the test's own is left."""
    return len(asyncio.all_tasks()) == 1


def test_a_fleet_is_an_engine_and_as_able_as_its_weakest_replica():
    wide, narrow = Mortal(window=100), Mortal(window=50)
    wide.capabilities = replace(wide.capabilities, prefix_cache=True, notes=("new",))
    fleet = FleetEngine([wide, narrow])
    assert isinstance(fleet, Engine)
    assert (fleet.capabilities.window, fleet.capabilities.prefix_cache) == (50, False)
    assert fleet.capabilities.notes == ("r: new",)
    assert [r.name for r in fleet.statistics().replicas] == ["r", "r#2"]


def test_mistakes_are_refused():
    with pytest.raises(UsageError, match="at least one replica"):
        FleetEngine([])
    with pytest.raises(UsageError, match="2 limits were given for 1"):
        FleetEngine(replicas(1), limit=[1, 2])
    with pytest.raises(UsageError, match="at least 1"):
        FleetEngine(replicas(1), limit=0)
    other = SimulatedEngine(lambda _: "", CharTokenizer(["<Parallel>"]))
    with pytest.raises(UsageError, match="different tokenizers"):
        FleetEngine([Mortal(), other])


def test_different_names_of_the_model_are_noted():
    fleet = FleetEngine([Mortal(model="a"), Mortal(model="b")])
    assert fleet.capabilities.notes == ("the replicas name their model differently: a, b",)


@settings(max_examples=25, deadline=None)
@given(
    names=st.lists(st.text(min_size=1), min_size=2, max_size=8, unique=True),
    key=st.text(min_size=1),
    gone=st.integers(0, 7),
)
def test_only_the_keys_of_a_lost_replica_move(names, key, gone):
    members = [Replica(Mortal(), name, None) for name in names]
    before = choose("affinity", key, members)
    lost = members[gone % len(members)]
    after = choose("affinity", key, [member for member in members if member is not lost])
    assert after is before or before is lost
    assert choose("affinity", key, reversed(members)) is before


def test_keys_spread_evenly_over_replicas():
    members = [Replica(Mortal(), f"http://10.0.0.{n}:8000", None) for n in range(4)]
    counts = [0] * 4
    for number in range(2000):
        counts[members.index(choose("affinity", f"problem-{number}", members))] += 1
    assert min(counts) > 400


def test_affinity_keeps_siblings_together():
    engines = replicas(3)
    fleet = FleetEngine(engines)

    async def main():
        await asyncio.gather(*(text(fleet, call(f"p{n}", f"key {n % 5}")) for n in range(50)))

    run_virtual(main())
    homes = {}
    for engine in engines:
        for served in engine.served:
            homes.setdefault(served.call.affinity, set()).add(engine.name)
    assert all(len(places) == 1 for places in homes.values())
    assert len(set().union(*homes.values())) > 1


def test_spread_sends_siblings_to_different_replicas():
    engines = replicas(4)
    fleet = FleetEngine(engines, routing="spread")

    async def main():
        await asyncio.gather(*(text(fleet, call(f"p{n}")) for n in range(8)))

    run_virtual(main())
    assert [engine.peak for engine in engines] == [2, 2, 2, 2]


def test_least_load_follows_the_limits():
    engines = replicas(2)
    fleet = FleetEngine(engines, routing="least_load", limit=[1, 3])

    async def main():
        await asyncio.gather(*(text(fleet, call(f"p{n}", f"{n}")) for n in range(4)))

    run_virtual(main())
    assert [engine.peak for engine in engines] == [1, 3]


def test_a_full_replica_spills_over_and_then_calls_wait_in_order():
    engines = replicas(2)
    fleet = FleetEngine(engines, limit=2)
    order, waiting = [], []

    async def one(number):
        await text(fleet, call(f"{number}"))
        order.append(number)

    async def main():
        tasks = [asyncio.create_task(one(number)) for number in range(8)]
        await asyncio.sleep(0.5)
        waiting.append(fleet.statistics().waiting)
        await asyncio.gather(*tasks)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(2 * 10 / RATE)
    assert waiting == [4]
    assert [engine.peak for engine in engines] == [2, 2]
    assert sorted(order[:4]) == [0, 1, 2, 3] and sorted(order[4:]) == [4, 5, 6, 7]
    begun = sorted(served.started for engine in engines for served in engine.served)
    assert begun == pytest.approx([0] * 4 + [1] * 4)


def test_a_cancelled_call_leaves_the_queue_and_its_slot():
    engines = replicas(1)
    fleet = FleetEngine(engines, limit=1)

    async def main():
        first, second, third = (asyncio.create_task(text(fleet, call(f"{n}"))) for n in range(3))
        await asyncio.sleep(0.3)
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert await third == "y" * 9
        assert alone()
        return fleet.statistics()

    seen = run_virtual(main())
    (one,) = seen.replicas
    assert (one.calls, one.finished, one.left, one.running, seen.waiting) == (2, 1, 1, 0, 0)
    assert engines[0].cancelled == 1 and engines[0].running == 0


@settings(max_examples=15, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=25),
    hedging=st.none() | st.sampled_from([0.0, 0.3]).map(Hedging),
)
def test_no_slot_is_lost_whatever_is_cancelled(moves, hedging):
    def script(wanted):
        return ScriptedReply("y" * 9, stall=wanted.ids[-1] % 3 / 4)

    engines = replicas(2, script=script)
    fleet = FleetEngine(engines, limit=1, routing="spread", hedging=hedging)

    async def main():
        tasks = []
        for wait, cancel in moves:
            if cancel and tasks:
                tasks[wait % len(tasks)].cancel()
            else:
                tasks.append(asyncio.create_task(text(fleet, call(f"{len(tasks)}"))))
            await asyncio.sleep(wait % 7 / 10)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert alone()
        return fleet.statistics()

    seen = run_virtual(main())
    assert seen.waiting == 0
    for one in seen.replicas:
        assert one.running == 0 and one.peak <= 1
        assert one.calls == one.finished + one.left
    assert [engine.running for engine in engines] == [0, 0]


@pytest.mark.parametrize("steps", range(8))
def test_cancelling_at_any_step_of_a_race_frees_both_slots(steps):
    engines = replicas(2, decode_rate=None)
    fleet = FleetEngine(engines, limit=1, hedging=Hedging(after=0))

    async def main():
        task = asyncio.create_task(text(fleet, call()))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert alone()

    run_virtual(main())
    assert [one.running for one in fleet.statistics().replicas] == [0, 0]
    assert [engine.running for engine in engines] == [0, 0]


def home_first(fleet: FleetEngine, key: str = "k") -> list[Mortal]:
    """The replicas in the order in which a key prefers them."""
    members = list(fleet._members)
    ranked = []
    while members:
        best = choose("affinity", key, members)
        ranked.append(best.engine)
        members.remove(best)
    return ranked


def test_a_call_that_cannot_begin_goes_elsewhere_at_once():
    fleet = FleetEngine(replicas(3))
    home, *others = home_first(fleet)

    async def main():
        home.die()
        async with fleet:
            assert await text(fleet, call()) == "y" * 9
            return asyncio.get_running_loop().time(), fleet.statistics()

    seconds, seen = run_virtual(main())
    assert seconds == pytest.approx(1.0)
    assert seen.failovers == 1
    lost = next(one for one in seen.replicas if one.name == home.name)
    assert not lost.healthy and lost.ejections == 1 and "cannot reach" in lost.last_error
    assert sum(len(other.served) for other in others) == 1


def test_an_ejected_replica_is_probed_with_back_off_and_returns():
    fleet = FleetEngine(replicas(2), health=Health(backoff=1, longest=4))
    home, other = home_first(fleet)

    async def main():
        home.die()
        await text(fleet, call())  # 1 s; checks follow 1, 2, 4 and 4 s apart
        await asyncio.sleep(9.5)
        assert home.checks == 3
        home.alive = True
        await text(fleet, call())
        assert len(other.served) == 2
        await asyncio.sleep(1)
        await text(fleet, call())
        assert home.checks == 4 and len(home.served) == 1
        assert alone()

    run_virtual(main())
    assert all(one.healthy for one in fleet.statistics().replicas)


def test_closing_ends_the_probes_and_refuses_who_waits():
    fleet = FleetEngine(replicas(1))

    async def main():
        fleet._members[0].engine.die()
        with pytest.raises(EngineError):
            await text(fleet, call())
        waiting = asyncio.create_task(text(fleet, call()))
        await asyncio.sleep(0.1)
        await fleet.close()
        with pytest.raises(EngineError, match="the fleet was closed"):
            await waiting
        assert alone()

    run_virtual(main())


def test_calls_wait_for_a_replica_to_return_but_not_for_ever():
    fleet = FleetEngine(replicas(2), health=Health(backoff=1, longest=1, patience=10))
    engines = home_first(fleet)

    async def main():
        for engine in engines:
            engine.die()
        with pytest.raises(UnreachableError) as caught:
            await text(fleet, call())
        assert caught.value.retryable
        began = asyncio.get_running_loop().time()
        with pytest.raises(EngineError, match=r"no replica was there for 10 s \(r0: cannot") as end:
            await text(fleet, call())
        assert asyncio.get_running_loop().time() - began == pytest.approx(10)
        assert not end.value.retryable
        task = asyncio.create_task(text(fleet, call()))
        await asyncio.sleep(3.5)
        engines[1].alive = True
        assert await task == "y" * 9
        await fleet.close()

    run_virtual(main())


def test_failures_in_a_row_eject_and_refusals_of_the_request_do_not():
    errors = [
        ContextWindowError("too long", window=5),
        StatusError("no", status=400),
        StatusError("busy", status=429, retryable=True),
        *[StatusError("broken", status=500)] * 3,
    ]
    pending = list(errors)

    def script(_):
        return ScriptedReply("abc", error=pending.pop(0)) if pending else "fine"

    one = Mortal(script, name="one")
    fleet = FleetEngine([one], health=Health(failures=3))

    async def main():
        healthy = []
        for _ in errors:
            with pytest.raises(EngineError):
                await text(fleet, call())
            healthy.append(fleet.statistics().replicas[0].healthy)
        assert await text(fleet, call()) == "fine"  # after a check
        assert alone()
        return healthy

    assert run_virtual(main()) == [True] * 5 + [False]


def test_a_refusal_is_not_carried_from_replica_to_replica():
    def script(_):
        return ScriptedReply("", error=StatusError("bad request", status=400))

    engines = [Mortal(script, name=f"r{n}") for n in range(3)]
    fleet = FleetEngine(engines)
    with pytest.raises(StatusError):
        run_virtual(text(fleet, call()))
    assert sum(len(engine.served) for engine in engines) == 1


def test_a_busy_fleet_is_asked_once_each():
    def script(_):
        return ScriptedReply("", error=StatusError("busy", status=503, retryable=True))

    engines = [Mortal(script, name=f"r{n}") for n in range(3)]
    fleet = FleetEngine(engines)
    with pytest.raises(StatusError):
        run_virtual(text(fleet, call()))
    assert [len(engine.served) for engine in engines] == [1, 1, 1]
    assert fleet.statistics().failovers == 2


def test_an_error_in_the_middle_goes_up_and_its_retry_goes_elsewhere():
    broken = EngineError("torn stream", retryable=True)
    first = [ScriptedReply("abcdef", error=broken, after=3)]

    def script(_):
        return first.pop() if first else "abcdef"

    engines = [Mortal(script, name=f"r{n}") for n in range(2)]
    fleet = FleetEngine(engines)

    async def main():
        pieces = []
        with pytest.raises(EngineError, match="torn stream"):
            async for chunk in fleet.generate(call()):
                pieces.append(chunk.text)
        assert pieces == ["a", "b", "c"]
        assert await text(fleet, call()) == "abcdef"

    run_virtual(main())
    assert [len(engine.served) for engine in engines] == [1, 1]
    assert all(one.healthy for one in fleet.statistics().replicas)
    assert (fleet.statistics().broken, fleet.statistics().failovers) == (1, 0)


def test_a_stream_that_just_ends_is_a_failure():
    class Short(SimulatedEngine):
        async def generate(self, call):
            yield Chunk((65,), "A")

    fleet = FleetEngine([Short(lambda _: "", TOKENIZER)])
    with pytest.raises(EngineError, match="the stream broke off") as caught:
        run_virtual(text(fleet, call()))
    assert caught.value.retryable


def test_a_defect_keeps_its_type_and_frees_the_slot():
    class Broken(SimulatedEngine):
        async def generate(self, call):
            raise ZeroDivisionError("a defect")
            yield

    for hedging in (None, Hedging(after=1)):
        fleet = FleetEngine([Broken(lambda _: "", TOKENIZER)], limit=1, hedging=hedging)
        with pytest.raises(ZeroDivisionError):
            run_virtual(text(fleet, call()))
        assert fleet.statistics().replicas[0].running == 0


# Hedging ---------------------------------------------------------------------------------------


def straggler(seconds: float):
    return lambda _: ScriptedReply("y" * 9, stall=seconds, after=0)


def test_a_straggler_is_overtaken_by_a_second_copy():
    fleet = FleetEngine(replicas(2), hedging=Hedging(after=2))
    home, other = home_first(fleet)
    home._script = straggler(50)

    async def main():
        assert await text(fleet, call()) == "y" * 9
        assert alone()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(3)
    seen = fleet.statistics()
    assert (seen.hedges, seen.hedges_won) == (1, 1)
    assert (home.cancelled, home.running, other.running) == (1, 0, 0)
    assert {one.name: one.left for one in seen.replicas}[home.name] == 1


def test_a_first_copy_that_wakes_up_in_time_wins():
    fleet = FleetEngine(replicas(2), hedging=Hedging(after=2))
    home, other = home_first(fleet)
    home._script = straggler(2.5)
    other._script = straggler(5)
    assert run_virtual(text(fleet, call())) == "y" * 9
    assert (fleet.statistics().hedges, fleet.statistics().hedges_won) == (1, 0)
    assert other.cancelled == 1 and other.running == 0


def test_no_second_copy_without_need_or_without_room():
    quick = FleetEngine(replicas(2), hedging=Hedging(after=2))
    run_virtual(text(quick, call()))
    single = FleetEngine([Mortal(straggler(50))], hedging=Hedging(after=2))
    assert run_virtual(text(single, call())) == "y" * 9
    assert quick.statistics().hedges == single.statistics().hedges == 0


def test_tokens_of_the_copy_that_lost_are_counted():
    class Instant(SimulatedEngine):
        """Gives its first chunk in the same step as its twin."""

        async def generate(self, call):
            await asyncio.sleep(5 if self.name == "late" else 3)
            yield Chunk((65, 66), "AB")
            yield Chunk((67,), "C", finish="eos")

    early, late = (Instant(lambda _: "", TOKENIZER, name=name) for name in ("early", "late"))
    fleet = FleetEngine([late, early], routing="least_load", hedging=Hedging(after=2))
    assert run_virtual(text(fleet, call())) == "ABC"
    seen = {one.name: one for one in fleet.statistics().replicas}
    assert sum(one.lost_tokens for one in seen.values()) == 2
    assert sum(one.tokens for one in seen.values()) == 5


def test_a_first_copy_that_fails_leaves_the_race_to_the_second():
    fleet = FleetEngine(replicas(2), hedging=Hedging(after=1))
    home, other = home_first(fleet)
    home._script = lambda _: ScriptedReply("", stall=2, error=UnreachableError("gone"))
    other._script = straggler(3)

    async def main():
        assert await text(fleet, call()) == "y" * 9
        await fleet.close()
        assert alone()

    run_virtual(main())
    assert fleet.statistics().hedges_won == 1


def test_leaving_in_the_middle_of_a_race_aborts_both_copies():
    fleet = FleetEngine(replicas(2, script=straggler(50)), hedging=Hedging(after=1))

    async def main():
        task = asyncio.create_task(text(fleet, call()))
        await asyncio.sleep(2)
        assert [one.running for one in fleet.statistics().replicas] == [1, 1]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert alone()

    run_virtual(main())
    assert [one.running for one in fleet.statistics().replicas] == [0, 0]


# With the decoder --------------------------------------------------------------------------------

PLAN = "<think>p<Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"
SCRIPT = {
    "Q": PLAN,
    "<Thread>1:": "A" * 30 + "</Thread>",
    "<Thread>2:": "B" * 10 + "</Thread>",
    "</Parallel>": "r</think>\\boxed{3}",
}
FULL = (
    f"{PLAN}<Thread>1:{'A' * 30}</Thread><Thread>2:{'B' * 10}</Thread></Parallel>"
    "r</think>\\boxed{3}"
)


def setup(engine):
    made = make_setup("Q", engine, dialect="parason:compact", id="t")
    return replace(made, prompt="Q", prompt_ids=tuple(TOKENIZER.encode("Q")))


@pytest.mark.parametrize("routing", ["affinity", "spread", "least_load"])
def test_a_replica_that_dies_in_a_branch_costs_one_retry_elsewhere(routing):
    engines = replicas(3, script=SCRIPT)
    fleet = FleetEngine(engines, routing=routing)

    async def main():
        async with fleet:
            task = asyncio.create_task(run(setup(fleet), fleet))
            await asyncio.sleep((len(PLAN) + 24) / RATE)  # branch 2 is over, branch 1 is not
            victim = next(engine for engine in engines if engine.running)
            victim.die()
            done = await task
        assert alone()
        return done

    done = run_virtual(main())
    assert done.text == FULL and done.outcome == "answered"
    attempts = [(r.branch, r.attempt, r.finish) for r in done.requests if r.kind == "branch"]
    assert attempts == [(1, 0, "error"), (2, 0, "stop"), (1, 1, "stop")]
    # Everything that was sampled is in the record, and each call was served once.
    assert done.sampled_tokens == sum(one.tokens for one in fleet.statistics().replicas)
    assert fleet.statistics().broken == 1
    served = [served for engine in engines for served in engine.served]
    assert len(served) == len(done.requests)
    again = next(r for r in done.requests if r.attempt == 1)
    assert again.started >= next(r for r in done.requests if r.finish == "error").finished
    assert all(other.running == 0 for other in engines)


def test_many_trajectories_survive_the_loss_of_a_replica():
    engines = replicas(4, script=SCRIPT, record=False)
    fleet = FleetEngine(engines, limit=8, health=Health(backoff=100))

    async def main():
        async with fleet:
            setups = [replace(setup(fleet), id=f"t{n}") for n in range(12)]
            tasks = [asyncio.create_task(run(one, fleet)) for one in setups]
            await asyncio.sleep((len(PLAN) + 5) / RATE)
            engines[0].die()
            return await asyncio.gather(*tasks)

    done = run_virtual(main())
    assert [one.text for one in done] == [FULL] * 12
    retried = sum(request.attempt for one in done for request in one.requests)
    assert retried == fleet.statistics().broken > 0
