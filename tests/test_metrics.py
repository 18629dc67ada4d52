"""Figures against tables that were computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.dialects import (
    MULTIVERSE,
    NPR,
    PARALLEL_R1,
    PARASON,
    THREADWEAVER,
    Dialect,
    Document,
    PlanItem,
    TextPart,
    parse,
    write,
)
from anabranch.dialects import (
    Block as TextBlock,
)
from anabranch.dialects import (
    Branch as TextBranch,
)
from anabranch.metrics import Metrics, document_metrics, speed_up, summarise, trajectory_metrics
from anabranch.records import Block, Branch, Origin, Request, Segment, Trajectory, Verdict


class Maker:
    """Builds trajectories from sizes: segments of so many tokens, requests over them."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.requests: list[Request] = []

    def segment(self, origin: Origin, size: int, text: str = "") -> int:
        self.segments.append(Segment(origin=origin, ids=tuple(range(size)), text=text))
        return len(self.segments) - 1

    def request(
        self,
        kind: str,
        context: list[int],
        size: int,
        block: tuple[int, ...] = (),
        branch: int | None = None,
        **more: object,
    ) -> int:
        output = self.segment("sampled", size)
        self.requests.append(
            Request(kind=kind, context=context, output=output, block=block, branch=branch, **more)
        )
        return output

    def done(self, blocks: list[Block], final: list[int], **more: object) -> Trajectory:
        return Trajectory(
            segments=self.segments, requests=self.requests, blocks=blocks, final=final, **more
        )


def two_threads(*, cached: tuple[int | None, ...] = (None,) * 4) -> Trajectory:
    """Prompt 100; 20 main of which 8 plan; branches of 30 and 50; join; 10 to the end."""
    make = Maker()
    prompt = make.segment("prompt", 100)
    main = make.request("main", [prompt], 20, cached_tokens=cached[0])
    fork, one, two, join = (make.segment("forced", size) for size in (1, 3, 3, 2))
    base = [prompt, main, fork]
    first = make.request("branch", [*base, one], 30, (1,), 1, cached_tokens=cached[1])
    second = make.request("branch", [*base, two], 50, (1,), 2, cached_tokens=cached[2])
    joined = [*base, one, first, two, second, join]
    last = make.request("main", joined, 10, cached_tokens=cached[3])
    branches = (
        Branch(number=1, kind="subtask", requests=(1,)),
        Branch(number=2, kind="trial", requests=(2,)),
    )
    block = Block(path=(1,), opener=0, plan_tokens=8, branches=branches)
    return make.done([block], [*joined, last])


def test_a_block_of_two_threads() -> None:
    figures = trajectory_metrics(two_threads())
    assert figures.total_tokens == 20 + 30 + 50 + 10
    assert figures.outside_tokens == 12 + 10
    assert figures.plan_tokens == 8
    assert figures.branch_tokens == 80
    assert figures.merge_tokens == 0
    assert figures.critical_path == 20 + 50 + 10
    assert figures.acceleration == pytest.approx(1 - 80 / 110)
    assert figures.acceleration_ratio == pytest.approx(110 / 80)
    assert figures.parallel_ratio == pytest.approx(88 / 110)
    assert figures.subtask_ratio == pytest.approx(30 / 110)
    assert figures.trial_ratio == pytest.approx(50 / 110)
    assert figures.forced_tokens == 1 + 3 + 3 + 2
    assert figures.prompt_tokens == 100
    assert figures.branches_per_block == (2,)
    assert figures.tokens_per_branch == (30, 50)


def test_prefill() -> None:
    figures = trajectory_metrics(two_threads())
    # Contexts: 100; 100 + 20 + 1 + 3; the same; 100 + 20 + 1 + 3 + 30 + 3 + 50 + 2.
    assert figures.context_tokens == 100 + 124 + 124 + 209
    assert figures.prefill_tokens is None and figures.cached_tokens is None
    # With a perfect cache: the prompt, fork text, header 1, header 2 twice, join, branch 2 again.
    assert figures.ideal_prefill_tokens == 100 + 1 + 3 + 3 + 3 + 50 + 2
    assert figures.recomputed_tokens == 50
    measured = trajectory_metrics(two_threads(cached=(0, 120, 121, 154)))
    assert measured.cached_tokens == 395
    assert measured.prefill_tokens == 557 - 395 == measured.ideal_prefill_tokens


def test_a_sequential_answer_has_no_acceleration() -> None:
    make = Maker()
    prompt = make.segment("prompt", 7)
    output = make.request("main", [prompt], 40)
    figures = trajectory_metrics(make.done([], [prompt, output]))
    assert (figures.total_tokens, figures.critical_path) == (40, 40)
    assert (figures.acceleration, figures.acceleration_ratio) == (0.0, 1.0)
    assert figures.parallel_ratio == 0.0 and figures.blocks == 0


def test_an_empty_trajectory() -> None:
    figures = trajectory_metrics(Trajectory())
    assert (figures.total_tokens, figures.critical_path, figures.acceleration) == (0, 0, 0.0)
    assert figures.acceleration_ratio == 1.0


def test_merges_are_on_the_path() -> None:
    make = Maker()
    prompt = make.segment("prompt", 5)
    main = make.request("main", [prompt], 10)
    first = make.request("branch", [prompt, main], 4, (1,), 1)
    second = make.request("branch", [prompt, main], 6, (1,), 2)
    merge = make.request("merge", [prompt, main, first, second], 7, (1,))
    last = make.request("main", [prompt, main, first, second, merge], 3)
    branches = tuple(Branch(number=n, kind="path", requests=(n,)) for n in (1, 2))
    block = Block(path=(1,), opener=0, plan_tokens=1, branches=branches, merge=3)
    figures = trajectory_metrics(make.done([block], [last]))
    assert figures.total_tokens == 30 and figures.merge_tokens == 7
    assert figures.critical_path == 10 + 6 + 7 + 3
    assert figures.trial_tokens == 10 and figures.subtask_tokens == 0


def test_retries_and_cancelled_branches_count_what_they_sampled() -> None:
    make = Maker()
    prompt = make.segment("prompt", 5)
    main = make.request("main", [prompt], 10)
    make.request("branch", [prompt, main], 4, (1,), 1, finish="error")
    make.request("branch", [prompt, main], 9, (1,), 1, attempt=1)
    make.request("branch", [prompt, main], 11, (1,), 2, finish="cancelled")
    make.request("main", [prompt, main], 2)
    branches = (
        Branch(number=1, kind="trial", requests=(1, 2)),
        Branch(number=2, kind="trial", outcome="cancelled", requests=(3,)),
        Branch(number=3, kind="trial", outcome="skipped"),
    )
    figures = trajectory_metrics(make.done([Block(path=(1,), opener=0, branches=branches)], []))
    assert figures.total_tokens == 36
    assert figures.critical_path == 10 + (4 + 9) + 2
    assert figures.tokens_per_branch == (13, 11)
    assert figures.branches_per_block == (2,)


def test_nested_blocks_count_recursively() -> None:
    make = Maker()
    prompt = make.segment("prompt", 5)
    main = make.request("main", [prompt], 10)
    make.request("branch", [prompt, main], 30, (1,), 1)
    outer = make.request("branch", [prompt, main], 8, (1,), 2)
    make.request("branch", [prompt, main, outer], 20, (1, 2, 1), 1)
    make.request("branch", [prompt, main, outer], 15, (1, 2, 1), 2)
    make.request("branch", [prompt, main, outer], 5, (1,), 2)
    make.request("main", [prompt, main], 2)
    inner = tuple(Branch(number=n, kind="trial", requests=(n + 2,)) for n in (1, 2))
    branches = (
        Branch(number=1, kind="subtask", requests=(1,)),
        Branch(number=2, kind="subtask", requests=(2, 5)),
    )
    blocks = [
        Block(path=(1, 2, 1), opener=2, plan_tokens=3, branches=inner),
        Block(path=(1,), opener=0, plan_tokens=4, branches=branches),
    ]
    figures = trajectory_metrics(make.done(blocks, []))
    assert figures.total_tokens == 90
    assert figures.critical_path == 10 + max(30, 8 + 20 + 5) + 2
    assert figures.plan_tokens == 7 and figures.outside_tokens == 10 - 4 + 2
    assert figures.branch_tokens == 78 - 3
    assert figures.subtask_tokens == 30 + 13 - 3 and figures.trial_tokens == 35


def test_what_is_read_from_the_text() -> None:
    make = Maker()
    text = (
        "<think><Parallel><Outlines><Trial>1:a</Trial><Trial>2:b</Trial><Trial>3:c</Trial>"
        "<Trial>4:d</Trial></Outlines><Thread>1:Same  Text</Thread><Thread>2: same text\n</Thread>"
        "<Thread>3:[cancelled]</Thread><Thread>4:[cancelled]</Thread></Parallel></</think>"
    )
    final = make.segment("sampled", 3, text)
    verdict = Verdict(status="correct")
    done = make.done([], [final], dialect="parason", verdict=verdict)
    figures = trajectory_metrics(done)
    assert (figures.half_tags, figures.duplicate_branches) == (1, 1)
    assert figures.well_formed is False and figures.correct is True
    unknown = done.model_copy(update={"dialect": "nobody knows"})
    assert trajectory_metrics(unknown).half_tags is None
    assert trajectory_metrics(unknown, PARASON).half_tags == 1


def test_a_text_is_counted_as_it_would_be_decoded() -> None:
    plan = [PlanItem(1, "subtask", "aa"), PlanItem(2, "trial", "bbb")]
    branches = [TextBranch(1, "subtask", "xxxx"), TextBranch(2, "trial", "y")]
    document = Document([TextPart("12345"), TextBlock(plan, branches), TextPart("678")])
    figures = document_metrics(document, PARASON.compact(), len)
    opening = "<Parallel><Outlines><Subtask>1:aa</Subtask><Trial>2:bbb</Trial></Outlines>"
    assert figures.plan_tokens == len(opening)
    assert figures.outside_tokens == 8
    assert figures.subtask_tokens == len("xxxx</Thread>")
    assert figures.trial_tokens == len("y</Thread>")
    assert figures.critical_path == 8 + len(opening) + len("xxxx</Thread>")
    assert figures.total_tokens == 8 + len(opening) + len("xxxx</Thread>y</Thread>")
    assert figures.forced_tokens == len("<Thread>1:<Thread>2:</Parallel>")
    assert figures.prompt_tokens is None and figures.tokens_per_branch == (13, 10)


def test_a_text_with_a_merge() -> None:
    branches = [TextBranch(1, "path", "xxxx"), TextBranch(2, "path", "y")]
    document = Document([TextBlock([], branches, "sum")])
    figures = document_metrics(document, PARALLEL_R1, len)
    assert figures.plan_tokens == len("<Parallel>")
    assert figures.branch_tokens == len("xxxx\n</Path>y\n</Path>")
    assert figures.merge_tokens == len("sum\n</Summary>")
    assert figures.forced_tokens == len("\n<Path>\n" + "\n<Path>\n" + "\n</Parallel>\n<Summary>\n")
    written = len(
        "<Parallel>\n<Path>\nxxxx\n</Path>\n<Path>\ny\n</Path>\n</Parallel>\n"
        "<Summary>\nsum\n</Summary>"
    )
    assert figures.total_tokens + figures.forced_tokens == written


def test_sampled_and_forced_text_make_up_a_canonical_text(shared_data: Path) -> None:
    with (shared_data / "traces" / "parallel_r1_gsm8k.jsonl").open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    found = []
    for text in texts:
        document = parse(text, PARALLEL_R1)
        figures = document_metrics(document, PARALLEL_R1, len)
        found.append(figures)
        if document.well_formed:
            canonical = write(document, PARALLEL_R1)
            assert figures.total_tokens + figures.forced_tokens == len(canonical)
    summary = summarise(found)
    assert summary.rows == 341
    assert summary.activation_ratio == pytest.approx(338 / 341)
    assert summary.format_correctness == pytest.approx(340 / 341)
    assert summary.half_tag_share == 0
    assert summary.branches_per_block == pytest.approx((427 * 2 + 11 * 3 + 4) / 439)
    assert 0 < summary.acceleration < 0.5 < summary.parallel_ratio < 1


def test_nested_texts() -> None:
    inner = TextBlock([], [TextBranch(1, "path", "aaaa"), TextBranch(2, "path", "b")], "m")
    branches = [TextBranch(1, "path", parts=[TextPart("pre"), inner]), TextBranch(2, "path", "c")]
    compact = PARALLEL_R1.compact()
    figures = document_metrics(Document([TextBlock([], branches, "n")]), compact, len)
    close, begin, merge = len("</Path>"), len("<Parallel>"), len("m</Summary>")
    path = begin + (3 + begin + 4 + close + merge + close) + merge
    assert figures.critical_path == path
    assert figures.total_tokens == path + (1 + close) + (1 + close)


@pytest.mark.parametrize("dialect", [MULTIVERSE, NPR], ids=lambda d: d.name)
def test_nested_texts_with_a_merge_inside_the_block(dialect: Dialect) -> None:
    compact, kind = dialect.compact(), dialect.branch_kind
    plan = [PlanItem(1, kind, "a"), PlanItem(2, kind, "b")]
    inner = TextBlock(plan, [TextBranch(1, kind, "xx"), TextBranch(2, kind, "xxxx")], "m")
    nested = TextBranch(2, kind, parts=[TextPart("pre"), inner, TextPart("post")])
    outer = TextBlock(plan, [TextBranch(1, kind, "y" * 9), nested], "nn")
    text = write(Document([TextPart("in"), outer, TextPart("end")]), compact)
    figures = document_metrics(parse(text, compact), compact, len)
    assert compact.merge is not None
    close, merge = len(compact.branch.close), len(compact.merge.close)
    begin = text.index(compact.fork_tag) + len(compact.fork_tag) - len("in")
    deep = begin + (4 if compact.dotted else 0)  # 2.1: and 2.2: in place of 1: and 2:
    inside = len("pre") + deep + (4 + close) + (1 + merge) + len("post") + close
    assert inside > 9 + close
    assert figures.critical_path == len("inend") + begin + inside + (2 + merge)
    assert figures.total_tokens == figures.critical_path + (9 + close) + (2 + close)
    assert figures.plan_tokens == begin + deep
    assert figures.merge_tokens == (1 + merge) + (2 + merge)
    assert figures.branches_per_block == (2, 2) and figures.well_formed
    assert figures.total_tokens + figures.forced_tokens == len(text)


def test_multiverse_traces_are_measured(shared_data: Path) -> None:
    rows = []
    with (shared_data / "traces/multiverse_1k_examples.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            document = parse(row["text"], MULTIVERSE)
            figures = document_metrics(document, MULTIVERSE, lambda text: len(text.split()))
            assert figures.blocks == row["blocks"]
            assert 0 < figures.critical_path < figures.total_tokens
            rows.append(figures)
    summary = summarise(rows)
    assert summary.activation_ratio == 1 and summary.format_correctness == pytest.approx(23 / 24)


def figures_of(total: int, critical: int, *blocks: int, **more: object) -> Metrics:
    values: dict[str, object] = dict.fromkeys(
        ["outside_tokens", "plan_tokens", "merge_tokens", "trial_tokens", "forced_tokens"], 0
    )
    values |= {"branch_tokens": total, "subtask_tokens": total}
    values |= {"total_tokens": total, "critical_path": critical, "branches_per_block": blocks}
    return Metrics.model_validate(values | more)


def test_summary_of_a_table() -> None:
    rows = [
        figures_of(
            100, 50, 2, 4, well_formed=True, half_tags=0, duplicate_branches=1, correct=True
        ),
        figures_of(60, 60, well_formed=False, half_tags=2, duplicate_branches=0, correct=False),
        figures_of(40, 10, 4, correct=None),
    ]
    summary = summarise(rows)
    assert summary.rows == 3
    assert summary.activation_ratio == pytest.approx(2 / 3)
    assert summary.format_correctness == summary.half_tag_share == summary.accuracy == 0.5
    assert summary.duplicate_branch_share == pytest.approx(1 / 6)
    assert summary.total_tokens == pytest.approx(200 / 3)
    assert summary.critical_path == 40
    assert summary.acceleration == pytest.approx((0.5 + 0 + 0.75) / 3)
    assert summary.acceleration_ratio == pytest.approx(200 / 120)
    assert summary.mean_acceleration_ratio == pytest.approx((2 + 1 + 4) / 3)
    assert summary.branches_per_block == pytest.approx(10 / 3)
    assert summary.tokens_per_branch is None and summary.prefill_tokens is None
    with pytest.raises(ValueError, match="no metrics"):
        summarise([])


def test_speed_up_against_a_sequential_model() -> None:
    sequential = [figures_of(100, 100), figures_of(50, 50)]
    parallel = [figures_of(120, 60, 2), figures_of(50, 40, 2)]
    assert speed_up(sequential, parallel) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="2 sequential and 1 parallel"):
        speed_up(sequential, parallel[:1])
    with pytest.raises(ValueError, match="no tokens"):
        speed_up([], [])


def test_malformed_texts_have_figures_too() -> None:
    for text in ("<Parallel>", "<Parallel><Path>a", "</Summary>", ""):
        assert document_metrics(parse(text, PARALLEL_R1), PARALLEL_R1, len).total_tokens >= 0
    for text in ("<Parallel><Outlines><Outline>a", "<Parallel><Thread>1:x"):
        assert document_metrics(parse(text, THREADWEAVER), THREADWEAVER, len).total_tokens > 0
