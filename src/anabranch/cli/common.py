"""What several commands share: the options of an engine, opening it, printing.

Options are turned into objects here and nowhere else; no command talks to an engine's internals.
A command gets all of them by ``@takes_engine`` and a parameter ``options: EngineOptions``.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console

from anabranch.checkpoint import FILE, CheckpointInfo, load_checkpoint_info
from anabranch.decoding.width import LoadGate
from anabranch.engines.base import Engine
from anabranch.engines.specs import EngineTerms, FleetTerms, make_engine, parse_spec
from anabranch.errors import RecordError, UsageError
from anabranch.lab.bundled import bundled_model as bundled_model

console = Console(highlight=False)

#: Options that every command with an engine has; together they make :class:`EngineOptions`.
Url = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        help="http://HOST:PORT of a server with /v1/completions, chat+http://HOST:PORT of one "
        "with /v1/chat/completions, sglang+http://HOST:PORT, "
        "local:FOLDER or replay:FILE; several servers are a fleet. Default: the bundled model.",
    ),
]
Model = Annotated[str | None, typer.Option(help="The model's name at the server.")]
TokenizerFolder = Annotated[
    Path | None, typer.Option("--tokenizer", help="Folder with the served model's tokenizer.")
]
Local = Annotated[
    Path | None, typer.Option(help="Folder of a model to run here; the same as local:FOLDER.")
]
ApiKey = Annotated[str | None, typer.Option(envvar="ANABRANCH_API_KEY", help="Bearer token.")]
Retokenize = Annotated[
    bool, typer.Option(help="Accept a server that gives text only; drift is counted.")
]
RecordFile = Annotated[
    Path | None, typer.Option("--record", help="Write down every call, for replay:FILE.")
]
RoutingName = Annotated[
    str | None,
    typer.Option("--routing", help="Of a fleet: affinity (default), spread or least_load."),
]
ReplicaLimit = Annotated[
    str | None,
    typer.Option(
        "--replica-limit", help="Of a fleet: calls at once, as 64 for each or 64,16 in order."
    ),
]
HedgeAfter = Annotated[
    float | None,
    typer.Option("--hedge-after", help="Of a fleet: seconds without a token until a second copy."),
]
DialectName = Annotated[str | None, typer.Option(help="Default: the checkpoint's own.")]


@dataclass(frozen=True)
class EngineOptions:
    """Where tokens come from, as the command line says it; nothing named is the bundled model."""

    engine: Url = None
    model: Model = None
    tokenizer: TokenizerFolder = None
    local: Local = None
    api_key: ApiKey = None
    retokenize: Retokenize = False
    record: RecordFile = None
    routing: RoutingName = None
    replica_limit: ReplicaLimit = None
    hedge_after: HedgeAfter = None

    def names(self) -> list[str]:
        """The engines' names.

        Raises:
            UsageError: `--engine` and `--local` are both given.
        """
        if self.engine and self.local is not None:
            raise UsageError("--engine and --local exclude each other")
        return list(self.engine or [f"local:{self.local or bundled_model()}"])

    def terms(self) -> EngineTerms:
        """What is said of the engine besides its name.

        Raises:
            UsageError: a limit is no number.
        """
        fleet = FleetTerms(self.routing, _limits(self.replica_limit), self.hedge_after)
        return EngineTerms(self.model, self.tokenizer, self.api_key, self.retokenize, fleet)


def takes_engine(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of an engine in place of its parameter ``options``."""
    hints = get_type_hints(EngineOptions, include_extras=True)
    mine = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=hints[one.name],
        )
        for one in fields(EngineOptions)
    ]
    signature = inspect.signature(command, eval_str=True)
    shown: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "options":
            shown += mine
        else:
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**values: Any) -> None:
        given = {one.name: values.pop(one.name) for one in mine}
        command(**values, options=EngineOptions(**given))

    run.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in shown}
    return run


def needs_training() -> None:
    """Refuse a command that trains where the extra is not installed.

    Raises:
        UsageError: saying how to install it.
    """
    if find_spec("accelerate") is None or find_spec("torch") is None:
        raise UsageError("training needs torch and accelerate: pip install 'anabranch[train]'")


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
        ModelError, TokenizerError, RecordError, EngineError: as the engine says.
    """
    names, record = options.names(), options.record
    if record is not None and record.exists():
        raise RecordError("is there already: record to another file", path=record)
    engine = make_engine(names, options.terms())
    try:
        opening = getattr(engine, "open", None)
        if opening is not None:
            await opening()
        if record is not None:
            from anabranch.engines.replay import RecordingEngine

            engine = RecordingEngine(engine, record)
        folder = _folder(names, options, engine)
        info = load_checkpoint_info(folder) if folder and (folder / FILE).is_file() else None
        yield Opened(engine, info, folder)
    finally:
        await engine.close()


@asynccontextmanager
async def load_gates(
    options: EngineOptions, above: int | None
) -> AsyncIterator[Callable[[], LoadGate] | None]:
    """What makes a gate for each trajectory, from the load of the one server that is named.

    Args:
        options: of the engine.
        above: branches are held back while more calls than this run or wait there; None: never.

    Raises:
        UsageError: the engine is not one server.
        EngineError: it shows no load.
    """
    if above is None:
        yield None
        return
    names = options.names()
    if len(names) != 1 or not names[0].startswith(("http://", "https://")):
        raise UsageError("--hold-above reads the load of one server: --engine http://HOST:PORT")
    from anabranch.engines.load import LoadReader
    from anabranch.engines.load_watch import LoadWatch

    async with LoadWatch(LoadReader(names[0], api_key=options.api_key)) as watch:
        yield lambda: LoadGate(lambda: watch.room(above))


def _folder(names: list[str], options: EngineOptions, engine: Engine) -> Path | None:
    """The folder that holds the tokenizer and what the checkpoint says of itself."""
    first = parse_spec(names[0])
    if first.scheme == "local":
        return Path(first.target)
    if options.tokenizer is not None:
        return options.tokenizer
    place = getattr(engine.tokenizer, "name", None)
    return Path(place) if place and Path(place).exists() else None


def _limits(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        limits = tuple(int(part) for part in text.split(","))
    except ValueError:
        limits = (0,)
    if min(limits) < 1:
        raise UsageError(
            f"--replica-limit {text!r}: use a number from 1 on, or one for each engine: 64,16"
        )
    return limits
