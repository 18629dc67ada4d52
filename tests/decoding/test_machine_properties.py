"""Whatever a model writes and however an engine fails, the machine ends within its limits."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.decoding import Answer, FirstConclusive, OnText, Start, make_policy
from anabranch.dialects import Block, PlanItem, get_dialect
from anabranch.dialects.writer import opening
from anabranch.engines import Chunk
from anabranch.errors import ContextWindowError, EngineError
from anabranch.metrics import trajectory_metrics
from anabranch.records import Trajectory

POLICIES = [
    FirstConclusive(OnText(lambda text: "yes" in text)),
    *map(
        make_policy,
        [
            "all",
            "quorum:2",
            "confidence:0.2",
            "deadline:9t",
            "deadline:4t,after=first",
            "deadline:0.3s",
        ],
    ),
]
DIALECTS = [
    "parason:compact",
    "threadweaver",
    "parallel-r1",
    "parason",
    "multiverse",
    "npr:compact",
]


def fork(dialect):
    """What a model writes to fork in two."""
    if dialect.plan is None:
        return dialect.fork_tag
    kind = dialect.plan.default_kind
    return opening(Block([PlanItem(1, kind, "a"), PlanItem(2, kind, "b")]), dialect)


def soup(dialect):
    tags = [text for tag in dialect.tags() for text in (tag.open, tag.close)]
    pieces = st.sampled_from(
        [*tags, *tags, fork(dialect), "1:", "2: x", "\n", "<", "</", "yes", "word " * 12]
    )
    return st.lists(pieces, max_size=12).map("".join)


@st.composite
def limits(draw):
    reserve = draw(st.integers(0, 15))
    cap = st.one_of(st.none(), st.integers(reserve + 1, 300))
    return {
        "answer_reserve": reserve,
        "max_total_tokens": draw(cap),
        "max_path_tokens": draw(cap),
        "max_prefill_tokens": draw(st.one_of(st.none(), st.integers(1, 600))),
        "max_branch_tokens": draw(st.one_of(st.none(), st.integers(1, 40))),
        "min_branch_tokens": draw(st.integers(1, 20)),
        "max_branches": draw(st.integers(1, 4)),
        "max_blocks": draw(st.one_of(st.none(), st.integers(0, 3))),
        "max_depth": draw(st.integers(0, 3)),
        "on_exhausted": draw(st.sampled_from(["answer", "stop"])),
        "on_refused_fork": draw(st.sampled_from(["fewer", "sequential", "stop"])),
    }


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_output_ends_within_its_limits(setup_factory, play, data):
    name = data.draw(st.sampled_from(DIALECTS))
    dialect = get_dialect(name)
    caps = data.draw(limits())
    made = setup_factory(name, limits=caps, retries=data.draw(st.integers(0, 2)))
    made = replace(made, policy=data.draw(st.sampled_from(POLICIES)))
    if data.draw(st.booleans()):  # dialects of AND blocks race too
        kinds = frozenset({"subtask", "trial", "path", "plan", "outline"})
        made = replace(made, dialect=replace(dialect, or_kinds=kinds))
    if data.draw(st.booleans()):
        made = replace(made, window=data.draw(st.integers(1, 400)))
    game = play(made)
    calls = 0

    def script(start):
        nonlocal calls
        calls += 1
        game.pace = 0.01
        if calls > 40:  # a model that comes to an end
            return [Chunk((0,), "", (0.0,)), Chunk(finish="eos")]
        fault = data.draw(st.sampled_from(["", "", "", "lost", "fatal", "window"]))
        text = data.draw(soup(dialect))
        if start.kind != "merge" and data.draw(st.booleans()):
            text = fork(dialect)
        chunks = list(game.answer(start.call, text))
        if fault:
            errors = {
                "lost": EngineError("reset", retryable=True),
                "fatal": EngineError("bad request"),
                "window": ContextWindowError("too long", window=data.draw(st.integers(1, 300))),
            }
            chunks = [*chunks[: max(len(chunks) - 1, len(chunks) // 2)], errors[fault]]
        return chunks

    game.script = script
    expire = data.draw(st.one_of(st.none(), st.integers(1, 200)))
    done = game.run(expire_after=expire)
    check(done, game, caps)


def check(done, game, caps):
    assert sum(isinstance(event, Answer) for event in game.events) == 1
    assert isinstance(game.events[-1], Answer)
    if caps["max_total_tokens"] is not None:
        assert done.sampled_tokens <= caps["max_total_tokens"]
    if caps["max_path_tokens"] is not None:
        assert trajectory_metrics(done).critical_path <= caps["max_path_tokens"]
    if caps["max_prefill_tokens"] is not None:
        assert computed(done) <= caps["max_prefill_tokens"]
    answer = sum(len(done.segments[r.output]) for r in done.requests[-1:] if r.kind == "main")
    for name in ("max_total_tokens",):
        if caps[name] is not None:  # all but the answer stays clear of the reserve
            assert done.sampled_tokens - answer <= caps[name] - caps["answer_reserve"]
    for request in done.requests:
        assert len(done.segments[request.output].ids) <= request.max_tokens
    outputs = [r.output for r in done.requests]
    assert len(outputs) == len(set(outputs)), "a sampled token has two requests"
    sampled = [i for i, s in enumerate(done.segments) if s.origin == "sampled"]
    assert sorted(outputs) == sampled, "a sampled token without a request"
    started = {start.request: start for start in game.starts}
    for number, request in enumerate(done.requests):
        assert done.ids_of(request.context) == started[number].call.ids
    assert len(done.blocks) <= (caps["max_blocks"] if caps["max_blocks"] is not None else 99)
    for block in done.blocks:
        assert (len(block.path) + 1) // 2 <= caps["max_depth"]
        assert block.path[:-2] in {(), *(outer.path for outer in done.blocks)}
    own = [index for block in done.blocks for b in block.branches for index in b.requests]
    branches = [n for n, request in enumerate(done.requests) if request.kind == "branch"]
    assert sorted(own) == branches, "a call of a branch that is not in its record"
    assert Trajectory.model_validate(done.to_json()) == done


def computed(done):
    """Prompt tokens that no request before has left in a perfect prefix cache."""
    seen, total = set(), 0
    for request in done.requests:
        ids = done.ids_of(request.context)
        total += sum(ids[: end + 1] not in seen for end in range(len(ids)))
        whole = ids + done.segments[request.output].ids
        seen.update(whole[:end] for end in range(1, len(whole) + 1))
    return total


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_abort_at_any_moment_keeps_what_was_sampled(setup_factory, play, data):
    from anabranch.decoding import Machine

    made = setup_factory("parason:compact")
    game, machine = play(made), Machine(made)
    dialect = get_dialect("parason:compact")
    fed = 0
    outputs = machine.start()
    for _ in range(data.draw(st.integers(0, 6))):
        starts = [o for o in outputs if isinstance(o, Start)]
        if not starts:
            break
        outputs = []
        for start in starts:
            for chunk in game.answer(start.call, data.draw(soup(dialect))):
                fed += len(chunk.ids) if machine.waits_for(start.request) else 0
                outputs += machine.feed(start.request, chunk)
    already = machine.done
    machine.abort()
    assert machine.trajectory.sampled_tokens == fed
    assert already or machine.trajectory.outcome == "cancelled"
