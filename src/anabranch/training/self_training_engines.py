"""Where a round's model runs: in this process, or on a server started for it.

Each is a function from a checkpoint's folder to an engine that is open while its context is.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from anabranch.engines.base import Engine
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.errors import EngineError, UsageError

OpenEngine = Callable[[Path], AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def in_process(model: Path) -> AsyncIterator[Engine]:
    """The checkpoint on transformers, in this process."""
    from anabranch.engines.local import LocalEngine

    engine = LocalEngine(model)
    try:
        yield engine
    finally:
        await engine.close()


def at(url: str, name: str | None = None) -> OpenEngine:
    """A server that runs already; the caller says that it runs the right model."""

    @asynccontextmanager
    async def opened(model: Path) -> AsyncIterator[Engine]:
        async with _client(url, model, name) as engine:
            yield engine

    return opened


def served(command: str, *, seconds: float = 600.0, log: Path | None = None) -> OpenEngine:
    """A server of the checkpoint, started for the round and ended after it.

    Args:
        command: with ``{model}`` and ``{port}``; it must speak the OpenAI completions API and
            answer ``/v1/models`` when it is ready.
        seconds: how long that may take.
        log: file that gets the server's output; each server adds to it.

    Raises:
        UsageError: the command lacks a placeholder or cannot be started.
        EngineError: the server ended, or was not ready in time.
    """
    for placeholder in ("{model}", "{port}"):
        if placeholder not in command:
            raise UsageError(f"the engine's command needs {placeholder}: {command!r}")

    @asynccontextmanager
    async def opened(model: Path) -> AsyncIterator[Engine]:
        port = _free_port()
        filled = [
            part.replace("{model}", str(model)).replace("{port}", str(port))
            for part in shlex.split(command)
        ]
        process = await _start(filled, log)
        try:
            url = f"http://127.0.0.1:{port}"
            await _until_ready(url, process, seconds, log)
            async with _client(url, model, None) as engine:
                yield engine
        finally:
            await _stop(process)

    return opened


@asynccontextmanager
async def _client(url: str, model: Path, name: str | None) -> AsyncIterator[Engine]:
    engine = CompletionsEngine(url, name, tokenizer=load_tokenizer(model))
    try:
        yield await engine.open()
    finally:
        await engine.close()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def _start(command: list[str], log: Path | None) -> asyncio.subprocess.Process:
    output = (log or Path(os.devnull)).open("ab")
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"the engine cannot be started: {command[0]}: {error.strerror}") from None
    finally:
        output.close()


async def _until_ready(
    url: str, process: asyncio.subprocess.Process, seconds: float, log: Path | None
) -> None:
    where = f"; its output is in {log}" if log is not None else ""
    loop = asyncio.get_running_loop()
    limit = loop.time() + seconds
    async with aiohttp.ClientSession() as session:
        while loop.time() < limit:
            if process.returncode is not None:
                raise EngineError(
                    f"the engine ended with {process.returncode} before it was ready{where}"
                )
            with suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(
                    f"{url}/v1/models", timeout=aiohttp.ClientTimeout(5)
                ) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.25)
    raise EngineError(f"the engine was not ready within {seconds:g} s{where}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the server and what it started: its own process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 20)
            return
