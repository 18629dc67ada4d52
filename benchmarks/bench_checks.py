"""Seeded defects in lab samples: how many are found, and how many of the findings are right.

Of each defect and without any, as many samples. A finding of a kind in a sample that was not given
that defect is wrong, whatever other defect the sample has.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from anabranch.curation.checks import Checks
from anabranch.lab.defects import NAMES, sample
from reporting import add_option, report
from seeded_words import measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--traces", type=Path, help="published Parallel-R1 samples, seeded too")
    add_option(parser)
    arguments = parser.parse_args()
    checks = Checks(survived=0)
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    clean = 0
    for defect in (None, *NAMES):
        for number in range(arguments.count):
            found = {f.kind for f in checks.run(sample(arguments.seed, number, defect))}
            clean += defect is None and not found
            for kind in found:
                (right if kind == defect else wrong)[kind] += 1
    kinds = {
        name: {
            "recall": right[name] / arguments.count,
            "precision": right[name] / max(1, right[name] + wrong[name]),
        }
        for name in NAMES
    }
    others = {kind: count for kind, count in wrong.items() if kind not in NAMES}
    figures: dict[str, Any] = {
        "samples_of_each": arguments.count,
        "kinds": kinds,
        "clean_without_finding": clean / arguments.count,
        "other_findings": others,
    }
    if arguments.traces:
        figures["in_words"] = measure(arguments.traces, arguments.seed)
    report(figures, arguments.json)


if __name__ == "__main__":
    main()
