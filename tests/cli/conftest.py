"""Runs the command line as a user does: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def cli(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: object, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "anabranch.cli.app", *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=110,
            env=dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", COLUMNS="120"),
        )
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def fails(cli) -> Callable[..., str]:
    """The one line that a failing command says."""

    def run(*arguments: object) -> str:
        done = cli(*arguments, code=None)
        assert done.returncode != 0, done.stdout
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("anabranch: "), done.stderr
        return lines[0]

    return run
