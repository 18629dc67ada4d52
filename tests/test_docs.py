"""Every command and every Python snippet of the README and the docs runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.lab.bundled import bundled_model
from anabranch.lab.teacher import Teacher, in_thread

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Run by whoever sets the project up; here they would set it up inside itself.
SETUP = ("make ", "git ", "pip ", "cd ", "python -m pip")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def blocks(page, language):
    return [body for name, body in FENCE.findall(page.read_text()) if name == language]


def commands(page):
    lines = [line for body in blocks(page, "console") for line in body.splitlines()]
    found = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in found if not line.startswith(SETUP)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").symlink_to(bundled_model())
    return tmp_path


@pytest.fixture(scope="module")
def annotator():
    """What the docs have at port 8001: `anabranch lab teacher`."""
    with in_thread(Teacher()) as teacher:
        yield teacher.url


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda page: page.name)
def test_commands(page, folder, bundled_server, annotator, cli):
    for line in commands(page):
        line = line.replace("http://127.0.0.1:8000", bundled_server)
        program, *rest = shlex.split(line.replace("http://127.0.0.1:8001", annotator))
        assert program == "anabranch", f"{page.name}: not a command of ours: {line}"
        cli(*rest)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "python")], ids=lambda page: page.name
)
def test_snippets(page, folder):
    """A page's snippets are one program: a later one may use what an earlier one made."""
    program = "\n".join(blocks(page, "python"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
        env=dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_links_inside_the_repository_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links {target}"
