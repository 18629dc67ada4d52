"""What several commands share: opening an engine from options, printing, progress.

Options are turned into objects here and nowhere else; no command talks to an engine's internals.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.checkpoint import FILE, CheckpointInfo, load_checkpoint_info, require_checkpoint
from anabranch.engines.base import Engine
from anabranch.errors import UsageError
from anabranch.lab.bundled import bundled_model as bundled_model

console = Console(highlight=False)

#: Options that every command with an engine has; together they make :class:`EngineOptions`.
Url = Annotated[str | None, typer.Option("--engine", help="URL of an OpenAI-compatible server.")]
Model = Annotated[str | None, typer.Option(help="The model's name at the server.")]
TokenizerFolder = Annotated[
    Path | None, typer.Option("--tokenizer", help="Folder with the served model's tokenizer.")
]
Local = Annotated[Path | None, typer.Option(help="Folder of a model to run here.")]
ApiKey = Annotated[str | None, typer.Option(envvar="ANABRANCH_API_KEY")]
Retokenize = Annotated[
    bool, typer.Option(help="Accept a server that gives text only; drift is counted.")
]
DialectName = Annotated[str | None, typer.Option(help="Default: the checkpoint's own.")]


@dataclass(frozen=True)
class EngineOptions:
    """Where tokens come from: a server, a checkpoint's folder, or the bundled model."""

    url: str | None = None
    model: str | None = None
    tokenizer: Path | None = None
    local: Path | None = None
    api_key: str | None = None
    retokenize: bool = False

    def folder(self) -> Path | None:
        """The folder that holds the tokenizer and what the checkpoint says of itself."""
        if self.url is not None:
            return self.tokenizer
        return self.local or bundled_model()


@dataclass(frozen=True)
class Opened:
    """An engine, with what is known of the checkpoint behind it."""

    engine: Engine
    info: CheckpointInfo | None
    folder: Path | None


@asynccontextmanager
async def open_engine(options: EngineOptions) -> AsyncIterator[Opened]:
    """Open the engine that the options name, and close it at the end.

    Raises:
        UsageError: options that contradict each other, or a missing extra.
        ModelError, TokenizerError, EngineError: as the engine says.
    """
    if options.url is not None and options.local is not None:
        raise UsageError("--engine and --local exclude each other")
    engine = await (_server(options) if options.url is not None else _in_process(options))
    folder = options.folder()
    info = load_checkpoint_info(folder) if folder and (folder / FILE).is_file() else None
    try:
        yield Opened(engine, info, folder)
    finally:
        await engine.close()


async def _server(options: EngineOptions) -> Engine:
    from anabranch.engines.completions import CompletionsEngine
    from anabranch.engines.tokenizers import load_tokenizer

    if options.tokenizer is None:
        raise UsageError("--engine needs --tokenizer: the folder with the model's tokenizer.json")
    assert options.url is not None
    engine = CompletionsEngine(
        options.url,
        options.model,
        tokenizer=load_tokenizer(options.tokenizer),
        api_key=options.api_key,
        ids="retokenize" if options.retokenize else "require",
    )
    try:
        return await engine.open()
    except BaseException:
        await engine.close()
        raise


async def _in_process(options: EngineOptions) -> Engine:
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise UsageError("running a model in-process needs torch: pip install 'anabranch[local]'")
    from anabranch.engines.local import LocalEngine

    folder = options.local or bundled_model()
    require_checkpoint(folder)
    return LocalEngine(folder)
