"""The worker process: reads pairs from standard input, answers on standard output, one JSON a line.

Run as ``python -m anabranch.grading.worker MEMORY``. It limits its own address space, and sets a
timer of the kernel before each pair, so that it dies even when its parent was killed. It knows no
queue and no retry; those are in :mod:`anabranch.grading.pool`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

#: Seconds beyond the deadline after which the kernel ends a worker that nobody has killed.
GRACE = 5.0


def serve(memory: int) -> None:
    """Answer pairs until the input ends. ``memory``: bytes on top of what the imports took."""
    # Nothing that a library prints may get among the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from anabranch.grading.algebra import SympyAlgebra

    algebra = SympyAlgebra()
    algebra.equal(r"\frac{x}{2}+\sqrt{3}", r"\sqrt{3}+0.5x")  # the first call loads the grammar
    _limit(memory)
    print(json.dumps({"ready": os.getpid()}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, task["timeout"] + GRACE)
        answer = _answer(task, algebra)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(answer), file=answers, flush=True)


def _answer(task: dict[str, Any], algebra: Any) -> dict[str, str]:
    from anabranch.grading.algebra import Unreadable
    from anabranch.grading.compare import matches
    from anabranch.grading.rules import Rules

    try:
        rules = Rules.model_validate(task["rules"])
        same, step = matches(task["gold"], task["answer"], rules, algebra)
    except Unreadable as error:
        return {"status": "unreadable", "reason": str(error)[:200]}
    except (MemoryError, RecursionError, OverflowError) as error:
        return {"status": "resources", "reason": type(error).__name__}
    except Exception as error:  # anything that sympy raises is the verdict `error`
        return {"status": "error", "reason": f"{type(error).__name__}: {error}"[:300]}
    return {"status": "correct" if same else "wrong", "reason": step}


def _limit(memory: int) -> None:
    pages = Path("/proc/self/statm")
    if not pages.exists():  # the address space in use is known on Linux only
        return
    used = int(pages.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
