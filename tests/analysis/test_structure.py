"""Ideal paths: against every schedule of small cases, and between their bounds."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.analysis.structure import Step, Structure, schedule


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[float], list[list[int]]]:
    count = draw(st.integers(1, 5))
    sizes = [float(draw(st.integers(1, 9))) for _ in range(count)]
    needs = [draw(st.lists(st.integers(0, n - 1), unique=True)) if n else [] for n in range(count)]
    return sizes, needs


def best(sizes: list[float], needs: list[list[int]], workers: int) -> float:
    """The shortest schedule, by trying every order of starting."""
    found = sum(sizes)
    for order in permutations(range(len(sizes))):
        free, ends = [0.0] * workers, {}
        for job in order:
            if any(one not in ends for one in needs[job]):
                break
            worker = min(range(workers), key=free.__getitem__)
            begin = max([free[worker], *(ends[one] for one in needs[job])])
            free[worker] = ends[job] = begin + sizes[job]
        else:
            found = min(found, max(ends.values()))
    return found


@given(jobs(), st.integers(1, 3))
def test_list_scheduling_is_within_its_bound_of_the_best(
    case: tuple[list[float], list[list[int]]], workers: int
) -> None:
    sizes, needs = case
    found = schedule(sizes, needs, workers)
    least = best(sizes, needs, workers)
    assert least - 1e-9 <= found <= (2 - 1 / workers) * least + 1e-9


@given(jobs())
def test_more_branches_are_bounded_by_the_chain_and_by_the_sum(
    case: tuple[list[float], list[list[int]]],
) -> None:
    sizes, needs = case
    chain: list[float] = []
    for job, size in enumerate(sizes):
        chain.append(size + max((chain[one] for one in needs[job]), default=0.0))
    assert schedule(sizes, needs, 0) == max(chain)
    assert schedule(sizes, needs, 1) == sum(sizes)
    for workers in (2, 3, 4):
        assert max(chain) <= schedule(sizes, needs, workers) <= sum(sizes)


def test_shares_and_gain_of_a_structure() -> None:
    text = "aaaa" * 4
    kinds = ("serial", "subtask", "subtask", "serial")
    needs = ((), (0,), (0,), (1, 2))
    steps = [
        Step(4 * n, 4 * n + 4, k, r) for n, (k, r) in enumerate(zip(kinds, needs, strict=True))
    ]  # type: ignore[arg-type]
    structure = Structure(text, tuple(steps))
    assert structure.shares() == {"serial": 0.5, "subtask": 0.5, "trial": 0.0}
    assert structure.ideal_path() == 3.0
    assert structure.ideal_gain(1) == 1.0
    assert Structure("", ()).ideal_gain() == 1.0
