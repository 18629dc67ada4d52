"""How every benchmark reports: JSON on standard output, and in a file with `--json FILE`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_option(parser: argparse.ArgumentParser) -> None:
    """The option that all benchmarks share."""
    parser.add_argument("--json", type=Path, help="also write the figures to this file")


def report(figures: dict[str, Any], file: Path | None) -> None:
    """Print the figures, and write them where asked."""
    text = json.dumps(figures, indent=1)
    print(text)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
