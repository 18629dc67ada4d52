"""lm-evaluation-harness through the gateway finds the accuracy that our own run finds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from anabranch.jsonl import read_rows

PYTHON = os.environ.get("ANABRANCH_CLIENTS_PYTHON")
pytestmark = [
    pytest.mark.skipif(
        PYTHON is None, reason="ANABRANCH_CLIENTS_PYTHON names no Python with lm_eval"
    ),
    pytest.mark.timeout(400),
]
TASK = """
task: lab_chains
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: generate_until
doc_to_text: "<bos>{{{{problem}}}}[par]"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: []
  max_gen_toks: 400
  temperature: 0
filter_list:
  - name: boxed
    filter:
      - function: regex
        regex_pattern: '\\\\boxed\\{{([^}}]*)\\}}'
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""


def test_local_completions_gives_the_same_accuracy(tmp_path: Path, cli) -> None:
    # A size that the bundled model was not trained for, so that it errs.
    problems = tmp_path / "lab.jsonl"
    cli("lab", "problems", "chains", "--count", 40, "--size", "3,2", "--output", problems)
    cli("evaluate", problems, "-o", tmp_path / "own", "--no-baseline")
    graded = [row for _, row in read_rows(tmp_path / "own" / "parallel.graded.jsonl")]
    own = sum(row["verdict"]["status"] == "correct" for row in graded) / len(graded)
    assert 0 < own < 1

    (tmp_path / "lab.yaml").write_text(TASK.format(file=problems))
    program = "from anabranch.cli.app import main; main()"
    served = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--port", "0", "--dialect", "parason:compact"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        url = _url(served)
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
            model = json.load(answer)["data"][0]["id"]
        arguments = (
            f"model={model},base_url={url}/v1/completions,num_concurrent=4,max_retries=1,"
            "tokenizer_backend=None,tokenized_requests=False"
        )
        done = subprocess.run(
            [
                str(Path(str(PYTHON)).parent / "lm_eval"),
                "--model",
                "local-completions",
                "--model_args",
                arguments,
                "--tasks",
                "lab_chains",
                "--include_path",
                str(tmp_path),
                "--batch_size",
                "1",
            ],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"},
        )
    finally:
        served.terminate()
        served.wait(30)
        served.stdout.close()
    found = re.search(r"exact_match\|[^|]*\|([\d.]+)", done.stdout.replace(" ", ""))
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
    assert float(found[1]) == pytest.approx(own, abs=1e-4)


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    until = time.monotonic() + 90
    while time.monotonic() < until:
        line = process.stdout.readline()
        if match := re.search(r"http://[\d.]+:\d+", line):
            return match[0]
    pytest.fail("the gateway did not say where it listens")
