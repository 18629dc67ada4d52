"""A rule-based annotator of lab traces that answers the prompts of curation over HTTP.

It speaks `/v1/chat/completions` on the loopback interface and reads the question from the prompt,
as a model would, so the whole pipeline runs for real without a model. On demand it fails as models
and their servers do; which request fails how depends on its content alone, so a run can be
repeated. It knows nothing but the lab's two families.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from anabranch.annotation import groups, steps
from anabranch.curation.stages import outline, rewrite
from anabranch.lab.families import draw

#: Where lines of lab traces end: behind a chain, behind the last chain, behind a failed trial.
LINE_END = r"(?<=\.)|(?<=nx)|(?<=\d!)"

#: Families and sizes of traces that are made: chains of 2, 3 and 4, and puzzles.
KINDS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("chains", (2, 5)),
    ("chains", (3, 5)),
    ("chains", (4, 5)),
    ("puzzle", (2,)),
)

#: Faults of the server, gone when the request is sent again, and faults of an answer.
SERVER_FAULTS = ("error", "busy", "stall")
ANSWER_FAULTS = ("half_json", "wrong_content", "refusal", "unescaped")

_NUMBERED = re.compile(r"^(\d+): (.*)$", re.M)
_STEP = re.compile(r"^Step ([\d.]+) \(.*\):\n(.*)$", re.M)
_PART = re.compile(r"^Part \d+:\n(.*)$", re.M)


class Unknown(ValueError):
    """The prompt is none that the teacher knows."""


def answer(system: str, user: str) -> dict[str, Any]:
    """What a perfect annotator answers to a prompt of curation.

    Raises:
        Unknown: the prompt is no such prompt.
    """
    makers: dict[str, Callable[[str], dict[str, Any]]] = {
        steps.SYSTEM: _steps,
        groups.SYSTEM: _groups,
        rewrite.SYSTEM: lambda _: {"changes": []},
        outline.SYSTEM: _outlines,
    }
    if system not in makers:
        raise Unknown("the teacher does not know this prompt")
    return makers[system](user)


def _steps(user: str) -> dict[str, Any]:
    lines = _NUMBERED.findall(user.partition("\nSolution:\n")[2])
    found = [{"first": int(n), "last": int(n), "title": _title(text)} for n, text in lines]
    return {"steps": found}


def _groups(user: str) -> dict[str, Any]:
    """Chains and trials stand on their own; the sum behind chains needs all of them."""
    found = _STEP.findall(user)
    free = [number for number, text in found if _title(text) != "the sum"]
    ends = [number for number, text in found if _title(text) == "the sum"]
    trial = bool(found) and _title(found[0][1]) in "+-*"
    needs = [{"step": number, "of": free} for number in ends if free]
    kind = "trial" if trial else "subtask"
    grouped = [{"steps": free, "kind": kind}] if len(free) > 1 else []
    return {"needs": needs, "groups": grouped}


def _outlines(user: str) -> dict[str, Any]:
    return {"outlines": [_title(text) for text in _PART.findall(user)]}


def _title(text: str) -> str:
    """A chain is called by its letter, a trial by its first operator."""
    if re.match(r"[a-z]:", text):
        return text[0]
    if re.match(r"\d[-+*]\d=\d:", text):
        return text[1]
    return "the sum"


@dataclass
class Teacher:
    """The server; run it with ``async with``.

    Attributes:
        faults: share of requests that fail.
        seed: of the faults.
        kinds: how they fail.
        stall: seconds of a stall.
        served: requests by what became of them.
    """

    faults: float = 0.0
    seed: int = 0
    kinds: Sequence[str] = (*SERVER_FAULTS, *ANSWER_FAULTS)
    stall: float = 0.05
    served: Counter[str] = field(default_factory=Counter)
    url: str = ""
    _failed: set[bytes] = field(default_factory=set)
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Teacher:
        await self.start()
        return self

    async def start(self, port: int = 0) -> None:
        """Serve on the loopback interface; port 0 takes a free one."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._serve)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        host, bound = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{bound}"

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.Response:
        raw = await request.read()
        fault = self._fault(raw)
        self.served[fault or "right"] += 1
        if fault in SERVER_FAULTS:
            return await _failing(fault, self.stall)
        try:
            body = json.loads(raw)
            messages = body["messages"]
            content = json.dumps(answer(messages[0]["content"], messages[1]["content"]))
        except (ValueError, LookupError, TypeError) as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        if fault:
            content = _SPOILT[fault](content)
        return web.json_response(
            {
                "choices": [
                    {
                        "message": {"role": "assistant", "content": content},
                        "finish_reason": "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": len(raw) // 4,
                    "completion_tokens": len(content) // 4,
                },
            }
        )

    def _fault(self, raw: bytes) -> str:
        digest = hashlib.sha256(b"%d:" % self.seed + raw).digest()
        if int.from_bytes(digest[:4]) >= self.faults * 2**32:
            return ""
        kind = self.kinds[digest[4] % len(self.kinds)]
        if kind in SERVER_FAULTS:
            if digest in self._failed:
                return ""
            self._failed.add(digest)
        return kind


async def _failing(fault: str, stall: float) -> web.Response:
    if fault == "busy":
        headers = {"Retry-After": "0.02"}
        return web.json_response({"error": "slow down"}, status=429, headers=headers)
    if fault == "stall":
        await asyncio.sleep(stall)
    return web.json_response({"error": "something broke"}, status=500)


_SPOILT: dict[str, Callable[[str], str]] = {
    "half_json": lambda text: text[: len(text) // 2],
    "wrong_content": lambda text: (
        text.replace('"first": 2', '"first": 999')
        .replace('"kind": "', '"kind": "x')
        .replace("outlines", "x")
    ),
    "refusal": lambda text: "I cannot help with that.",
    "unescaped": lambda text: (
        'Here it is:\n```json\n{"note": "\\alpha \\frac{1}{2}", '
        + text[1:]
        + "\n```\nI hope it helps."
    ),
}


@contextmanager
def in_thread(teacher: Teacher) -> Iterator[Teacher]:
    """The teacher served from a thread with an event loop of its own."""
    ready, ended = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        async with teacher:
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield teacher
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


async def serve(port: int, faults: float, seed: int, ready: Callable[[str], None]) -> None:
    """Serve until cancelled."""
    teacher = Teacher(faults, seed)
    await teacher.start(port)
    ready(teacher.url)
    try:
        await asyncio.Event().wait()
    finally:
        await teacher.__aexit__()


def trace_rows(
    seed: int, kinds: Sequence[tuple[str, tuple[int, ...]]], count: int
) -> list[dict[str, Any]]:
    """Sequential traces of lab problems as rows of a curation, families and sizes in turn."""
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    rng = random.Random(f"traces:{seed}")
    while len(rows) < count:
        family, size = kinds[len(rows) % len(kinds)]
        problem = draw(rng, family, size)
        if problem.text in seen:
            continue
        seen.add(problem.text)
        solution = problem.solve("sequential")
        rows.append(
            {
                "id": f"{family}-{len(rows)}",
                "problem": problem.text,
                "answer": solution.answer,
                "text": solution.text(),
                "family": family,
            }
        )
    return rows
