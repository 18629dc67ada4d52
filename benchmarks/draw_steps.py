"""Draws places of traces for labelling by hand, and prints them with what stands before them.

A trace is drawn, then a paragraph of its reasoning, so that long traces do not count for more. The
first places of the draw are for tuning a classifier, the others are held out. The output holds the
text and is for the eyes of the labeller alone; only places and labels may be kept.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from anabranch.analysis.classifier import classify
from anabranch.jsonl import read_rows

SEED = 20261201


def draw(path: Path, count: int, seed: int = SEED) -> list[dict[str, object]]:
    """Places, in the order drawn; `before` is the text in front of each."""
    rng = random.Random(f"{seed}/{path.name}")
    spans = []
    for _, row in read_rows(path):
        steps = classify(row["text"]).steps
        if len(steps) > 1:
            spans.append((row, [(step.start, step.end) for step in steps]))
    taken: set[tuple[str, int]] = set()
    found: list[dict[str, object]] = []
    while len(found) < count:
        row, places = rng.choice(spans)
        at = rng.randrange(1, len(places))
        if (row["id"], at) in taken:
            continue
        taken.add((row["id"], at))
        start, end = places[at]
        begin = places[max(0, at - 4)][0]
        found.append(
            {
                "file": path.name,
                "id": row["id"],
                "start": start,
                "end": end,
                "problem": row["problem"],
                "before": row["text"][begin:start],
                "text": row["text"][start:end],
                "after": row["text"][end : end + 150],
            }
        )
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", nargs="+", type=Path)
    options.add_argument("--count", type=int, default=50, help="places of each file")
    options.add_argument("--seed", type=int, default=SEED)
    chosen = options.parse_args()
    for path in chosen.files:
        for place in draw(path, chosen.count, chosen.seed):
            print(json.dumps(place))


if __name__ == "__main__":
    main()
