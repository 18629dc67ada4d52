"""Speed of the parser and the scanner on Parallel-R1 traces, repeated to a given size.

The traces are read from the test data (ANABRANCH_TEST_DATA, default ../shared); without them,
written ones of the same shape stand in, and the result says so. Promise: parser ≥ 20 MB/s on one
core (CPU time, UTF-8 bytes).

    python benchmarks/bench_parser.py [--megabytes 100] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from anabranch.dialects import (
    PARALLEL_R1,
    Block,
    Branch,
    Document,
    Scanner,
    TextPart,
    parse,
    write,
)
from anabranch.jsonl import read_rows
from reporting import add_option, report

PROMISE = 20.0
ROOT = Path(__file__).resolve().parent.parent


def traces() -> tuple[list[str], str]:
    """Texts, and where they come from."""
    folder = Path(os.environ.get("ANABRANCH_TEST_DATA", ROOT.parent / "shared"))
    path = folder / "traces" / "parallel_r1_gsm8k.jsonl"
    if path.is_file():
        return [row["text"] for _, row in read_rows(path)], path.name
    words = "the first path takes 0 < x < 12 and finds that the sum is 36 " * 5
    block = Block([], [Branch(1, "path", words), Branch(2, "path", words[7:])], words[3:])
    document = Document([TextPart(words), block, TextPart(words)])
    return [write(document, PARALLEL_R1)], "written"


def repeated(texts: list[str], size: int) -> Iterator[str]:
    done = 0
    while done < size:
        for text in texts:
            yield text
            done += len(text.encode())


def speed(work: Callable[[str], object], texts: list[str], size: int) -> dict[str, float]:
    """Megabytes a second of CPU time over the texts repeated to ``size`` bytes."""
    read = sum(len(text.encode()) for text in repeated(texts, size))
    begin = time.process_time()
    for text in repeated(texts, size):
        work(text)
    spent = time.process_time() - begin
    begin = time.process_time()
    for _ in repeated(texts, size):
        pass
    spent -= time.process_time() - begin  # the repeating itself
    return {"megabytes": read / 1e6, "seconds": spent, "megabytes_per_second": read / 1e6 / spent}


def scan_in_pieces(length: int) -> Callable[[str], None]:
    def work(text: str) -> None:
        scanner = Scanner(PARALLEL_R1)
        for at in range(0, len(text), length):
            scanner.feed(text[at : at + length])
        scanner.close()

    return work


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--megabytes", type=float, default=100.0)
    add_option(options)
    given = options.parse_args()
    texts, source = traces()
    size = int(given.megabytes * 1e6)
    large = ["\n\n".join(texts)]
    figures = {
        "source": source,
        "python": platform.python_version(),
        "parser": speed(lambda text: parse(text, PARALLEL_R1), texts, size),
        "parser_of_one_large_text": speed(lambda text: parse(text, PARALLEL_R1), large, size // 5),
        "scanner_in_pieces_of_4096": speed(scan_in_pieces(4096), texts, size // 5),
        "scanner_in_pieces_of_4": speed(scan_in_pieces(4), texts, size // 50),
        "promise_megabytes_per_second": PROMISE,
    }
    report(figures, given.json)
    kept = figures["parser"]["megabytes_per_second"] >= PROMISE  # type: ignore[index]
    if not kept:
        print(f"the parser is slower than {PROMISE} MB/s", file=sys.stderr)
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
