"""Measures the arms of the self-training experiment on held-out problems, and writes the table.

Format, accuracy and forks are shares over all seeds and problems of a family with their 95 %
intervals (Wilson); sampled as in the rounds, one answer a problem, the parallel prompt. The page's
table stands between two marks, so the text around it is written by hand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from anabranch.decoding import decode_many
from anabranch.engines.local import LocalEngine
from anabranch.errors import UsageError
from anabranch.jsonl import atomic_writer
from anabranch.lab.data import lab_setup
from anabranch.lab.evaluate import Solved, judge, with_limits
from anabranch.lab.families import LabProblem, draw_distinct
from anabranch.lab.page import percent
from anabranch.lab.self_training import (
    LIMITS,
    SIZES,
    Note,
    Plan,
    rounds,
    start_model,
    supervised,
)
from anabranch.metrics.intervals import wilson
from anabranch.records import Sampling
from anabranch.training.runs import write_json
from anabranch.training.self_training_keep import REASONS

#: Seed of the held-out draws.
SEED = 30_000
FIGURES = ("forked", "format", "correct")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def experiment(
    output: Path, *, seeds: Sequence[int] = (0, 1, 2), plan: Plan | None = None, note: Note = print
) -> dict[str, Any]:
    """Run or go on with all arms; the figures as plain data, also in ``output/results.json``."""
    plan = plan or Plan()
    start = start_model(output / "start", note)
    found: dict[str, list[dict[str, Any]]] = {}

    def add(stage: str, model: Path, file: Path) -> None:
        found.setdefault(stage, []).append(_measured(model, file, plan, note, stage))

    add("start", start, output / "start" / "measured.json")
    cards: list[dict[str, Any]] = []
    for seed in seeds:
        arm = output / f"seed-{seed}"
        first = supervised(start, arm / "few", plan, seed)
        add("few rows", first, arm / "measured-0.json")
        done = rounds(first, arm / "few" / "rows.jsonl", arm / "self", plan, seed, note)
        if done.interrupted:
            raise UsageError("stopped; the same command goes on")
        for number, model in enumerate(done.models, start=1):
            add(f"round {number}", model, arm / f"measured-{number}.json")
        for card in done.cards:
            data = json.loads(card.with_suffix(".json").read_text(encoding="utf-8"))
            kept = data["families"]["all"]
            cards.append({"seed": seed, "round": data["round"], **kept, "why": data["dropped"]})
    result = {
        "seeds": list(seeds),
        "plan": {name: getattr(plan, name) for name in Plan.__dataclass_fields__},
        "sizes": {family: list(size) for family, size in SIZES.items()},
        "stages": {stage: _together(arms) for stage, arms in found.items()},
        "by_seed": found,
        "rounds": cards,
    }
    write_json(output / "results.json", result)
    return result


def _measured(model: Path, file: Path, plan: Plan, note: Note, stage: str) -> dict[str, Any]:
    """Counts of one model by family; read from the file where it is there."""
    if file.is_file():
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return data
    note(f"measuring {model.parent} ({stage})")

    async def go() -> dict[str, Any]:
        engine = LocalEngine(model)
        try:
            return {
                family: _counts(
                    await _sampled(
                        engine, draw_distinct(SEED, family, size, plan.held_out), plan.temperature
                    )
                )
                for family, size in SIZES.items()
            }
        finally:
            await engine.close()

    counts = asyncio.run(go())
    write_json(file, counts)
    return counts


async def _sampled(
    engine: LocalEngine, problems: Sequence[LabProblem], temperature: float
) -> list[Solved]:
    setups = [
        replace(
            with_limits(lab_setup(problem, "parallel", engine.tokenizer), engine, LIMITS),
            sampling=Sampling(temperature=temperature, seed=SEED),
            id=f"{problem.family}-{number}",
        )
        for number, problem in enumerate(problems)
    ]
    done = await decode_many(setups, engine, concurrency=64)
    return [judge(p, "parallel", t) for p, t in zip(problems, done, strict=True)]


def _counts(solved: Sequence[Solved]) -> dict[str, float]:
    """``format`` asks for a block that is right: an answer without one is no success here."""
    return {
        "of": len(solved),
        "forked": sum(one.forked for one in solved),
        "format": sum(one.forked and _clean(one) for one in solved),
        "correct": sum(one.correct for one in solved),
        "path": fmean(one.path for one in solved),
        "total": fmean(one.total for one in solved),
    }


def _clean(one: Solved) -> bool:
    """Well formed as the model wrote it: nothing that the runtime had to close or repair."""
    branches = [branch for block in one.trajectory.blocks for branch in block.branches]
    return one.well_formed and all(branch.outcome == "closed" for branch in branches)


def _together(arms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares over all seeds of a stage, by family."""
    result: dict[str, Any] = {}
    for family in SIZES:
        cells = [arm[family] for arm in arms]
        of = sum(cell["of"] for cell in cells)
        result[family] = {"path": fmean(c["path"] for c in cells)}
        result[family]["total"] = fmean(c["total"] for c in cells)
        for figure in FIGURES:
            hits = sum(cell[figure] for cell in cells)
            low, high = wilson(hits, of)
            result[family][figure] = {"share": hits / of, "low": low, "high": high, "of": of}
    return result


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    head = ["model", "family", "forks", "forks, well formed", "right", "path", "tokens"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for stage, families in result["stages"].items():
        for family, cell in families.items():
            shares = " | ".join(percent(cell[figure]) for figure in FIGURES)
            lines.append(
                f"| {stage} | {family} | {shares} | {cell['path']:.0f} | {cell['total']:.0f} |"
            )
    plan, seeds = result["plan"], len(result["seeds"])
    text = (
        f"{seeds} seeds; {plan['held_out']} held-out problems of each family a seed, one answer "
        f"each in the parallel form at temperature {plan['temperature']:g}; few rows: "
        f"{plan['rows']} of each family; a round: {plan['problems']} problems of each family on "
        f"average, {plan['samples']} answers each. Brackets are 95 % intervals (Wilson)."
    )
    return "\n\n".join([text, "\n".join(lines), _rounds(result["rounds"])])


def _rounds(rows: Sequence[dict[str, Any]]) -> str:
    reasons = [name for name in REASONS if any(name in row["why"] for row in rows)]
    head = ["seed", "round", "decoded", "kept", *(name.replace("_", " ") for name in reasons)]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        cells = [row["seed"], row["round"], row["decoded"], row["kept"]]
        cells += [row["why"].get(name, 0) for name in reasons]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "Answers of each round: kept, and dropped by reason.\n\n" + "\n".join(lines)


def write_into(page: Path, result: dict[str, Any]) -> None:
    """Put the table between the page's marks, and the figures beside it as JSON.

    Raises:
        UsageError: the page cannot be read, or has no marks.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{page}: {error.strerror or 'cannot be read'}") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{page}: the marks {BEGIN} and {END} are missing")
    with atomic_writer(page) as handle:
        handle.write(f"{before}{BEGIN}\n{table(result)}\n{END}{after}")
    write_json(page.with_suffix(".json"), result)
