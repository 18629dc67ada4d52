"""Steps: filled by budget, the same from any place, bad samples left out."""

from collections.abc import Iterator
from pathlib import Path as FilePath

import numpy as np
import pytest
from tree_cases import make_trajectory

from anabranch.errors import UsageError
from anabranch.jsonl import dump_line, write_records
from anabranch.records import Trajectory
from anabranch.training.batches import Batches, BatchPlan, Place, Step
from anabranch.training.data import Endless, Stream, TrajectoryFile
from anabranch.training.layout import LayoutError, build_layout

DATA = [make_trajectory(n, [[1 + n % 4, 2]] * (1 + n % 2)) for n in range(23)]


def take(batches: Batches, count: int) -> list[Step]:
    return [step for step, _ in zip(batches, range(count), strict=False)]


def same(one: Step, other: Step) -> bool:
    return (one.total_weight, one.tokens, one.after) == (
        other.total_weight,
        other.tokens,
        other.after,
    ) and all(
        np.array_equal(a.ids, b.ids) and np.array_equal(a.rows, b.rows)
        for a, b in zip(one.micro, other.micro, strict=True)
    )


def test_steps_keep_the_budget_and_use_every_item_once_in_a_pass() -> None:
    batches = Batches(DATA, BatchPlan(tokens=120))
    steps = []
    while batches.place.epoch == 0:
        steps.append(batches.next_step())
    assert all(step.tokens <= 120 for step in steps)
    used = sum(step.tokens for step in steps)
    # The last step may reach into the next pass.
    assert used >= sum(len(build_layout(t)) for t in DATA)
    assert used - steps[-1].tokens < sum(len(build_layout(t)) for t in DATA)


def test_any_place_gives_the_same_steps_again() -> None:
    steps = take(Batches(DATA, BatchPlan(tokens=90, seed=5)), 30)
    for start in (1, 7, 20):
        batches = Batches(DATA, BatchPlan(tokens=90, seed=5))
        batches.place = steps[start - 1].after
        assert all(
            same(a, b) for a, b in zip(steps[start:], take(batches, 30 - start), strict=True)
        )


def test_passes_are_shuffled_by_seed_and_pass() -> None:
    def first(seed: int, epoch: int) -> list[int]:
        batches = Batches(DATA, BatchPlan(tokens=90, seed=seed))
        batches.place = Place(epoch, 0)
        step = batches.next_step()
        assert step is not None
        return step.micro[0].ids.tolist()

    assert first(1, 0) == first(1, 0)
    assert first(1, 0) != first(2, 0) and first(1, 0) != first(1, 1)


@pytest.mark.parametrize(("micro", "world"), [(2, 1), (4, 1), (1, 2), (2, 3)])
def test_micro_batches_and_ranks_divide_one_global_batch(micro: int, world: int) -> None:
    whole = Batches(DATA, BatchPlan(tokens=150, row_tokens=80)).next_step()
    parts = [
        Batches(
            DATA,
            BatchPlan(tokens=150, row_tokens=80, micro_batches=micro, rank=rank, world=world),
        ).next_step()
        for rank in range(world)
    ]
    assert whole is not None
    batches = [m for part in parts for m in part.micro]  # type: ignore[union-attr]
    assert len(batches) == micro * world
    assert sum(len(m.rows) for m in batches) == len(whole.micro[0].rows)
    assert {part.total_weight for part in parts} == {whole.total_weight}  # type: ignore[union-attr]


def test_a_bad_sample_is_reported_once_and_left_out() -> None:
    data = [*DATA[:5], Trajectory(id="broken"), *DATA[5:]]
    told: list[tuple[int, str]] = []
    batches = Batches(data, BatchPlan(tokens=90), on_skip=lambda i, why: told.append((i, why)))
    take(batches, 40)
    assert told == [(5, "broken: no request sampled anything")]
    assert batches.skipped == {5: "broken: no request sampled anything"}


def test_trees_longer_than_a_row_are_skipped_or_an_error() -> None:
    limit = max(len(build_layout(t)) for t in DATA) - 1
    batches = Batches(DATA, BatchPlan(tokens=90, row_tokens=limit))
    take(batches, 20)
    assert batches.skipped and all("a row only" in why for why in batches.skipped.values())
    with pytest.raises(LayoutError, match="a row only"):
        take(Batches(DATA, BatchPlan(tokens=90, row_tokens=limit, too_long="error")), 20)


def test_nothing_usable_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(LayoutError, match="no usable sample among 3"):
        Batches([Trajectory(id="x")] * 3, BatchPlan()).next_step()
    with pytest.raises(LayoutError, match="no usable sample"):
        Batches(Endless(lambda i: Trajectory(id="x")), BatchPlan()).next_step()
    with pytest.raises(UsageError, match="empty"):
        Batches([], BatchPlan())


def test_functions_and_generators_give_the_same_steps() -> None:
    def items() -> Iterator[Trajectory]:
        for number in range(40):
            yield make_trajectory(number, [[2, 3]])

    endless = Batches(Endless(lambda i: make_trajectory(i, [[2, 3]])), BatchPlan(tokens=70))
    streamed = take(Batches(Stream(items), BatchPlan(tokens=70)), 8)
    assert all(same(a, b) for a, b in zip(streamed, take(endless, 8), strict=True))
    resumed = Batches(Stream(items), BatchPlan(tokens=70))
    resumed.place = streamed[3].after
    assert all(same(a, b) for a, b in zip(streamed[4:], take(resumed, 4), strict=True))
    assert len(take(Batches(Stream(items), BatchPlan(tokens=10**6)), 5)) == 1


def test_files_are_read_in_place_and_bad_lines_are_skipped(tmp_path: FilePath) -> None:
    path = tmp_path / "t.jsonl"
    write_records(path, DATA[:4])
    with path.open("a") as handle:
        handle.write('\n{"segments": 3}\nnot json\n' + dump_line(DATA[4]) + "\n")
    source = TrajectoryFile(path)
    assert len(source) == 7 and source[6] == DATA[4] and source[2] == DATA[2]
    batches = Batches(source, BatchPlan(tokens=90))
    take(batches, 10)
    assert sorted(batches.skipped) == [4, 5]
    assert f"{path}:6: field 'segments'" in batches.skipped[4]
    assert f"{path}:7: not JSON" in batches.skipped[5]


def test_lengths_of_a_pass_are_counted() -> None:
    batches = Batches(DATA, BatchPlan(tokens=90))
    count = batches.steps_in(2)
    assert batches.place == Place()
    take(batches, count)
    assert batches.place.epoch * len(DATA) + batches.place.cursor >= 2 * len(DATA)
