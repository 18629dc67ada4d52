"""Do the intervals cover? Simulated runs with a known truth, a thousand times each.

Problems differ in difficulty and samples of a problem go together, as in real runs. Asked is how
often the 95 % interval holds the true value: of mean@k, of the difference between two runs on the
same problems, and of a ratio of mean tokens.
"""

from __future__ import annotations

import argparse
import random
from statistics import fmean

from anabranch.evaluation.measures import Run, Sample, accuracy, average, compare
from reporting import add_option, report


def difficulty(rng: random.Random) -> float:
    """A problem's chance of a right answer; few are hopeless or certain."""
    return rng.betavariate(0.9, 0.6)


MEAN = 0.9 / (0.9 + 0.6)


def run(rng: random.Random, problems: int, k: int, gain: float = 0.0) -> tuple[Run, list[float]]:
    """A run, and the chances of its problems."""
    samples, chances = [], []
    for number in range(problems):
        chance = difficulty(rng)
        chances.append(chance)
        samples += _samples(rng, number, chance + gain * (1 - chance), k)
    return Run(samples), chances


def _samples(rng: random.Random, number: int, chance: float, k: int) -> list[Sample]:
    # Harder problems take longer: tokens go with the chance, and with one another in a problem.
    size = 100 + 400 * (1 - chance) * rng.lognormvariate(0, 0.4)
    made = []
    for _ in range(k):
        path = max(1, int(size * rng.lognormvariate(0, 0.3)))
        right = rng.random() < chance
        status = "correct" if right else "wrong"
        total = int(path * 2)
        made.append(Sample(str(number), right, status, "", total, path, 1, True, None, None))
    return made


def covered(repeats: int, problems: int, k: int, seed: int) -> dict[str, float]:
    """How often the interval of mean@k and of a difference holds the truth."""
    rng = random.Random(f"{seed}:{problems}:{k}")
    mean = difference = 0
    gain = 0.1
    truth = gain * (1 - MEAN)
    for turn in range(repeats):
        one, chances = run(rng, problems, k)
        found = one.mean(accuracy, turn)
        mean += found.low <= MEAN <= found.high
        again = []
        for number, chance in enumerate(chances):
            again += _samples(rng, number, chance + gain * (1 - chance), k)
        gap = compare(one, Run(again), "accuracy", accuracy, turn).difference
        difference += gap.low <= truth <= gap.high
    return {"mean": mean / repeats, "difference": difference / repeats}


def ratio_covered(repeats: int, problems: int, k: int, seed: int) -> float:
    """How often the interval of total / path holds the truth, with noise on each."""
    rng = random.Random(f"ratio:{seed}")
    hits = 0
    for turn in range(repeats):
        samples = []
        for number in range(problems):
            size = rng.lognormvariate(5, 0.6)
            for _ in range(k):
                path = size * rng.lognormvariate(0, 0.2)
                total = 2.0 * path * rng.lognormvariate(-0.045, 0.3)
                samples.append(
                    Sample(
                        str(number), True, "correct", "", int(total), int(path), 1, True, None, None
                    )
                )
        found = Run(samples).ratio(average("total"), average("path"), turn)
        hits += found.low <= 2.0 <= found.high
    return hits / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    add_option(parser)
    arguments = parser.parse_args()
    figures: dict[str, object] = {"repeats": arguments.repeats}
    for problems, k in ((30, 4), (100, 1), (100, 4), (500, 1)):
        name = f"{problems} problems x {k}"
        figures[name] = covered(arguments.repeats, problems, k, arguments.seed)
        print(name, figures[name], flush=True)
    figures["ratio, 100 problems x 4"] = ratio_covered(arguments.repeats, 100, 4, arguments.seed)
    means = [one["mean"] for one in figures.values() if isinstance(one, dict)]
    figures["mean coverage"] = fmean(means)
    report(figures, arguments.json)


if __name__ == "__main__":
    main()
