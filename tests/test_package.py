"""Importing the package is quick, and its core needs no torch."""

from __future__ import annotations

import subprocess
import sys
import time

CORE = "anabranch, anabranch.decoding, anabranch.dialects, anabranch.metrics, anabranch.engines"


def fresh(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_core_loads_no_framework():
    heavy = "{'torch', 'transformers', 'accelerate', 'numpy', 'tokenizers'}"
    assert fresh(f"import sys, {CORE}, anabranch.cli.app; print({heavy} & set(sys.modules))") in (
        "set()",
        "{'tokenizers'}",
    )


def test_importing_the_package_takes_no_time():
    began = time.process_time()
    seconds = float(
        fresh(
            "import time; t = time.process_time(); import anabranch; print(time.process_time() - t)"
        )
    )
    assert seconds < 0.3 and time.process_time() - began < 5


def test_the_version_is_said():
    from importlib.metadata import version

    import anabranch

    assert version("anabranch") == anabranch.__version__
