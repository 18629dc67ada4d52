"""Runs the command line in this process, as its entry point does; warnings are errors there too."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from unittest.mock import patch

import pytest

from anabranch.cli.app import main


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def cli(tmp_path) -> Callable[..., Done]:
    def run(*arguments: object, code: int | None = 0) -> Done:
        out, err, status = StringIO(), StringIO(), 0
        with (
            chdir(tmp_path),
            redirect_stdout(out),
            redirect_stderr(err),
            patch("sys.argv", ["anabranch", *map(str, arguments)]),
            patch.dict(os.environ, {"COLUMNS": "120"}),
        ):
            try:
                main()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        done = Done(status, out.getvalue(), err.getvalue())
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
