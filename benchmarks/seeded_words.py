"""Defects seeded into published samples in words, to see that the checks know more than the lab.

Only rows that have no finding are taken, one defect in each copy; so this measures how many are
found, and what else is found of them, not how many findings in untouched rows are right.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from anabranch.curation.checks import Checks, Sample
from anabranch.dialects import Block, Branch, get_dialect
from anabranch.jsonl import read_rows

#: Sentences that use a value.
USES = (
    "Taking the {} we have, add 5. ",
    "Subtract {} from the total. ",
    "With {} done, the rest follows. ",
    "Divide {} by 3. ",
    "As the other part gave {}, add 5 to it. ",
    "Using 2 * {}, go on. ",
    "Since there are {} of them, go on. ",
)
#: Every so many words one is left out of a copy.
DROPPED = 20


def measure(path: Path, seed: int) -> dict[str, dict[str, float]]:
    """Samples, and the share whose defect is found and that have findings of other kinds."""
    checks, rng = Checks(survived=0), random.Random(seed)
    counts = {name: [0, 0, 0] for name in SEEDS}
    for sample in _without_findings(path, checks):
        for name, put in SEEDS.items():
            text = put(sample, rng)
            if text is None:
                continue
            kinds = {finding.kind for finding in checks.run(replace(sample, text=text))}
            seen = counts[name]
            seen[0] += 1
            seen[1] += name in kinds
            seen[2] += bool(kinds - {name})
    return {
        name: {
            "samples": float(samples),
            "recall": found / max(1, samples),
            "with_other_findings": other / max(1, samples),
        }
        for name, (samples, found, other) in counts.items()
    }


def _without_findings(path: Path, checks: Checks) -> Iterator[Sample]:
    dialect = get_dialect("parallel-r1")
    for _, row in read_rows(path):
        sample = Sample(row["text"], dialect, row["problem"], row["answer"])
        blocks = sample.document.blocks
        if blocks and len(blocks[0].branches) > 1 and not checks.run(sample):
            yield sample


def _leak(sample: Sample, rng: random.Random) -> str | None:
    """A branch begins with a sentence that uses the last value which another one works out."""
    block = sample.document.blocks[0]
    of, to = rng.sample(block.branches, 2)
    seen = sample.problem + sample.text[: block.span[0]] + to.text
    found = [v for v in re.findall(r"= \$?(\d{2,})(?![\d,.])", of.text) if int(v) > 10]
    new = [value for value in found if value not in seen]
    return _put(sample, to, rng.choice(USES).format(new[-1]) + to.text) if new else None


def _duplicate(sample: Sample, rng: random.Random) -> str | None:
    """A branch becomes the copy of another one, some words left out."""
    of, to = rng.sample(sample.document.blocks[0].branches, 2)
    words = of.text.split(" ")
    return _put(sample, to, " ".join(w for n, w in enumerate(words, 1) if n % DROPPED))


def _answer_first(sample: Sample, rng: random.Random) -> str | None:
    """What a branch of the last block says stands before it; only where it has the answer."""
    block: Block = sample.document.blocks[-1]
    said = rng.choice(block.branches).text
    if not re.search(rf"(?<![\d.]){re.escape(sample.answer or '')}(?![\d.]*\d)", said):
        return None
    begin = block.span[0]
    return f"{sample.text[:begin]}In one line: {said}\n\n{sample.text[begin:]}"


def _put(sample: Sample, branch: Branch, text: str) -> str:
    begin, end = branch.body
    return sample.text[:begin] + text + sample.text[end:]


SEEDS: dict[str, Callable[[Sample, random.Random], str | None]] = {
    "leak": _leak,
    "near_duplicate": _duplicate,
    "answer_first": _answer_first,
}
