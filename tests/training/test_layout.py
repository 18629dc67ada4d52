"""The tree layout: what is shared, what is a target, and what is refused."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from tree_cases import groups, make_trajectory

from anabranch.decoding import Setup, trajectory_from_text
from anabranch.dialects import Block, Branch, Document, PlanItem, TextPart, get_dialect, write
from anabranch.records import Limits, Request, Segment, Trajectory
from anabranch.training.layout import LayoutError, Path, TreeLayout, build_layout, layout_paths


def ancestors(layout: TreeLayout, token: int) -> list[int]:
    return [k for k in range(token + 1) if layout.subtree_end[k] > token]


def fork_join(branches: int = 3) -> Trajectory:
    """Prompt 4, plan 3, branches 2, 3, 4 … with headers of 2, a join of 1, continuation 5."""
    segments = [
        Segment(origin="prompt", ids=(1, 2, 3, 4)),
        Segment(origin="sampled", ids=(5, 6, 7)),
    ]
    requests = [Request(kind="main", context=(0,), output=1)]
    joined: list[int] = []
    for number in range(branches):
        segments.append(Segment(origin="forced", ids=(10, 20 + number)))
        segments.append(Segment(origin="sampled", ids=tuple(range(30, 32 + number))))
        at = len(segments)
        requests.append(Request(kind="branch", context=(0, 1, at - 2), output=at - 1))
        joined += [at - 2, at - 1]
    segments += [Segment(origin="forced", ids=(9,)), Segment(origin="sampled", ids=(1, 1, 2, 3, 5))]
    main = (0, 1, *joined, len(segments) - 2)
    requests.append(Request(kind="main", context=main, output=len(segments) - 1))
    return Trajectory(id="fj", segments=segments, requests=requests)


def test_size_is_that_of_the_published_trie() -> None:
    layout = build_layout(fork_join(3))
    prompt, continuation = 4 + 3, 1 + 5
    threads = [2 + 2, 2 + 3, 2 + 4]
    assert len(layout) == prompt + sum(threads) + sum(threads[1:]) + continuation
    assert layout.raw_tokens == 7 + sum(7 + t for t in threads) + 7 + sum(threads) + 6


@settings(max_examples=150, deadline=None)
@given(groups())
def test_paths_positions_and_targets_are_those_of_the_requests(group: list[Trajectory]) -> None:
    layout = build_layout(group)
    edges: dict[tuple[int, int], list[int]] = {}
    for edge in range(len(layout.rows)):
        key = (int(layout.trajectory[edge]), int(layout.request[edge]))
        edges.setdefault(key, []).append(edge)
    for number, trajectory in enumerate(group):
        for unit in trajectory.units():
            own = edges.pop((number, unit.request))
            assert tuple(layout.tokens[own]) == unit.completion
            assert np.allclose(layout.logprobs[own], unit.logprobs)
            for offset, edge in enumerate(own):
                path = ancestors(layout, int(layout.rows[edge]))
                seen = (*unit.context, *unit.completion[:offset])
                assert tuple(layout.ids[path]) == seen
                assert layout.positions[path].tolist() == list(range(len(seen)))
    assert not edges, "targets that no request sampled"


@settings(max_examples=60, deadline=None)
@given(groups())
def test_every_sampled_token_is_a_target_once_and_no_other(group: list[Trajectory]) -> None:
    layout = build_layout(group)
    for number, trajectory in enumerate(group):
        mine = layout.trajectory == number
        assert int(mine.sum()) == trajectory.sampled_tokens
        marked = {r.output for r in trajectory.requests}
        others = [s for i, s in enumerate(trajectory.segments) if i not in marked]
        assert all(s.origin != "sampled" for s in others)


def test_first_token_of_every_branch_is_predicted_from_its_own_context() -> None:
    trajectory = fork_join(3)
    layout = build_layout(trajectory)
    for number in range(3):
        first = int(layout.rows[layout.request == 1 + number][0])
        assert layout.ids[first] == 20 + number  # the branch's own header, not its neighbour


def test_inserted_tokens_are_never_targets() -> None:
    """Restates Mr-DarkTesla/Parallel-R1-repro's audit: headers and closings carried loss."""
    layout = build_layout(fork_join(2))
    assert not set(layout.tokens.tolist()) & {9, 10, 20, 21, 22}
    assert len(layout.tokens) == 3 + 2 + 3 + 5


def test_branches_behind_one_header_share_their_first_row() -> None:
    paths = [Path(((1, 2), (3,)), (n, 7), request=n) for n in (4, 5, 6)]
    layout = layout_paths(paths)
    assert layout.ids.tolist() == [1, 2, 3, 4, 7, 5, 7, 6, 7]
    assert layout.rows.tolist() == [2, 3, 2, 5, 2, 7]
    assert layout.tokens.tolist() == [4, 7, 5, 7, 6, 7]


def test_a_group_shares_its_prompt() -> None:
    group = [make_trajectory(seed, [[2, 3]], prompt=(7, 8, 9)) for seed in (1, 2)]
    alone = sum(len(build_layout(t)) for t in group)
    assert len(build_layout(group)) == alone - 3


def test_equal_rollouts_are_laid_out_once_and_counted_twice() -> None:
    one = make_trajectory(3, [[2, 2]])
    layout = build_layout([one, one])
    assert len(layout) == len(build_layout(one))
    assert len(layout.rows) == 2 * one.sampled_tokens


def test_training_ids_are_the_ids_that_were_sampled() -> None:
    """Restates huggingface/trl#5224: nothing is decoded and encoded again."""
    trajectory = make_trajectory(5, [[3, 1, 2], [2, 2]], depth=2)
    layout = build_layout(trajectory)
    for index, request in enumerate(trajectory.requests):
        own = np.flatnonzero(layout.request == index)
        if len(own):
            last = ancestors(layout, int(layout.rows[own[-1]]))
            ids = (*layout.ids[last].tolist(), int(layout.tokens[own[-1]]))
            assert ids == trajectory.ids_of((*request.context, request.output))


class Characters:
    """One token a character."""

    eos_ids = frozenset({0})
    bos_id = None

    def encode(self, text: str) -> list[int]:
        return [ord(char) for char in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


@pytest.mark.parametrize("name", ["multiverse", "npr"])
def test_blocks_inside_branches_are_laid_out_as_they_are_decoded(name: str) -> None:
    kind = get_dialect(name).branch_kind
    plan = [PlanItem(1, kind, "a"), PlanItem(2, kind, "b")]
    inner = Block(plan, [Branch(1, kind, "one"), Branch(2, kind, "two")], "inside")
    nested = Branch(2, kind, parts=[TextPart("then "), inner, TextPart(" so")])
    outer = Block(plan, [Branch(1, kind, "first"), nested], "outside")
    text = write(Document([TextPart("x"), outer, TextPart("end")]), get_dialect(name))
    setup = Setup(get_dialect(name), Characters(), "Q", (81,), limits=Limits(max_depth=2))
    trajectory = trajectory_from_text(text, setup)
    assert [request.kind for request in trajectory.requests].count("branch") == 5
    layout = build_layout(trajectory)
    assert len(layout.rows) == trajectory.sampled_tokens
    for index, unit in enumerate(trajectory.units()):
        edges = np.flatnonzero(layout.request == unit.request)
        assert tuple(layout.tokens[edges]) == unit.completion, index
        seen = tuple(layout.ids[ancestors(layout, int(layout.rows[edges[0]]))])
        assert seen == unit.context
    # The join holds what was sampled in the branch as it stands: only siblings stand twice.
    assert len(layout) < layout.raw_tokens / 2


def test_weights_and_requests_that_are_left_out() -> None:
    trajectory = fork_join(3)
    layout = build_layout(trajectory, weight=lambda t, r: {"main": 0.5, "branch": 0.0}[r.kind])
    assert set(layout.request.tolist()) == {0, 4}
    assert layout.weight == pytest.approx(0.5 * 8)


def test_missing_logprobs_are_nan() -> None:
    assert all(math.isnan(x) for x in build_layout(fork_join(2)).logprobs)


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        (Trajectory(id="e"), "no request sampled anything"),
        (
            Trajectory(
                id="e",
                segments=[Segment(origin="sampled", ids=(1,))],
                requests=[Request(kind="main", context=(), output=0)],
            ),
            "empty context",
        ),
        (
            Trajectory(
                id="e",
                segments=[Segment(origin="prompt", ids=(1,)), Segment(origin="sampled", ids=(1,))],
                requests=[Request(kind="main", context=(0,), output=1)] * 2,
            ),
            "output of requests 0 and 1",
        ),
        (
            Trajectory(
                id="e",
                segments=[
                    Segment(origin="prompt", ids=(1,)),
                    Segment(origin="sampled", ids=(1, 2), logprobs=(0.0,)),
                ],
                requests=[Request(kind="main", context=(0,), output=1)],
            ),
            "2 sampled tokens but 1 log-probs",
        ),
    ],
)
def test_what_cannot_be_laid_out_is_named(trajectory: Trajectory, message: str) -> None:
    with pytest.raises(LayoutError, match=message) as caught:
        build_layout(trajectory)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("e:")
