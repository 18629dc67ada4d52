"""Engines by name: a server, a chat API, SGLang, a folder, a recording, or a fleet of servers.

One form for the command line, for configuration files and for programs. The engines themselves,
and what can be set in them beyond this, are in their own modules, which are imported when named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from anabranch.checkpoint import require_checkpoint
from anabranch.engines.base import Engine, Tokenizer
from anabranch.errors import UsageError

__all__ = ["EngineSpec", "EngineTerms", "FleetTerms", "make_engine", "parse_spec"]

Scheme = Literal["completions", "chat", "sglang", "local", "replay"]

FORMS = (
    "http://HOST:PORT, chat+http://HOST:PORT, sglang+http://HOST:PORT, local:FOLDER or replay:FILE"
)
#: Those that are servers: they need a tokenizer here, and several of them make a fleet.
SERVERS = ("completions", "sglang")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine: what kind it is, and the URL, folder or file that it is found at."""

    scheme: Scheme
    target: str

    @property
    def server(self) -> bool:
        """Whether it is reached over HTTP."""
        return self.scheme in SERVERS


@dataclass(frozen=True, slots=True)
class FleetTerms:
    """How several servers share the calls; see :class:`anabranch.engines.fleet.FleetEngine`.

    Attributes:
        routing: affinity, spread or least_load; None is affinity.
        limits: most calls at once: none, one for all, or one for each server.
        hedge_after: seconds without a first token until a second copy is sent; None for never.
    """

    routing: str | None = None
    limits: tuple[int, ...] = ()
    hedge_after: float | None = None

    @property
    def given(self) -> list[str]:
        """Names of the terms that are set."""
        named = {
            "routing": self.routing,
            "replica-limit": self.limits or None,
            "hedge-after": self.hedge_after,
        }
        return [name for name, value in named.items() if value is not None]


@dataclass(frozen=True, slots=True)
class EngineTerms:
    """What is said of the engine besides where it is.

    Attributes:
        model: its name at the server.
        tokenizer: folder with the served model's tokenizer.
        api_key: sent as bearer token.
        retokenize: accept a server that gives text only.
        fleet: for several servers.
    """

    model: str | None = None
    tokenizer: Path | None = None
    api_key: str | None = None
    retokenize: bool = False
    fleet: FleetTerms = field(default_factory=FleetTerms)


def parse_spec(text: str) -> EngineSpec:
    """Reads one engine's name.

    Raises:
        UsageError: it has none of the forms; says which was probably meant.
    """
    from anabranch.engines.transport import base_url

    name = text.strip()
    if name.startswith(("http://", "https://")):
        return EngineSpec("completions", base_url(name))
    if name.startswith(("chat+http://", "chat+https://")):
        return EngineSpec("chat", name.removeprefix("chat+"))
    if name.startswith(("sglang+http://", "sglang+https://")):
        return EngineSpec("sglang", base_url(name.removeprefix("sglang+")))
    scheme, colon, target = name.partition(":")
    if colon and scheme in ("local", "replay"):
        if not target:
            what = "folder of a model" if scheme == "local" else "recorded file"
            raise UsageError(f"engine {text!r}: the {what} is missing behind {scheme}:")
        return EngineSpec("local" if scheme == "local" else "replay", target)
    raise UsageError(f"engine {text!r}: use {FORMS}{_meant(name)}")


def _meant(name: str) -> str:
    path = Path(name)
    if name and path.is_dir():
        return f"; did you mean local:{name}?"
    if name and path.is_file():
        return f"; did you mean replay:{name}?"
    host, _, port = name.partition("/")[0].rpartition(":")
    if host and port.isdigit():
        return f"; did you mean http://{name}?"
    return ""


def make_engine(names: Sequence[str], terms: EngineTerms | None = None) -> Engine:
    """The engine with these names, not opened yet; several names are one fleet.

    Raises:
        UsageError: a name has none of the forms, or the terms do not fit the engines.
        ModelError, TokenizerError, RecordError: a folder or file is not what it should be.
    """
    terms = terms or EngineTerms()
    specs = [parse_spec(name) for name in names]
    _check(specs, terms)
    engines = [_MAKERS[spec.scheme](spec, terms, len(specs) > 1) for spec in specs]
    return engines[0] if len(engines) == 1 else _fleet(engines, terms.fleet)


def _check(specs: Sequence[EngineSpec], terms: EngineTerms) -> None:
    if not specs:
        raise UsageError(f"no engine is named: use {FORMS}")
    if len(specs) == 1:
        if terms.fleet.given:
            options = ", ".join(f"--{name}" for name in terms.fleet.given)
            raise UsageError(f"{options}: only for a fleet, which is several engines")
        return
    for spec in specs:
        if not spec.server:
            raise UsageError(
                f"engine {spec.scheme}:{spec.target} cannot be one of several: a fleet is made of "
                "servers"
            )
    targets = [spec.target for spec in specs]
    for target in targets:
        if targets.count(target) > 1:
            raise UsageError(f"engine {target} is named twice")


def _tokenizer(spec: EngineSpec, terms: EngineTerms) -> Tokenizer:
    from anabranch.engines.tokenizers import load_tokenizer

    if terms.tokenizer is None:
        raise UsageError(
            f"engine {spec.target} needs --tokenizer: the folder with the served model's "
            "tokenizer.json"
        )
    return load_tokenizer(terms.tokenizer)


def _completions(spec: EngineSpec, terms: EngineTerms, several: bool) -> Engine:
    from anabranch.engines.completions import CompletionsEngine, Retries

    return CompletionsEngine(
        spec.target,
        terms.model,
        tokenizer=_tokenizer(spec, terms),
        api_key=terms.api_key,
        ids="retokenize" if terms.retokenize else "require",
        # In a fleet, another replica comes before the same one again.
        retries=Retries(attempts=0) if several else None,
    )


def _chat(spec: EngineSpec, terms: EngineTerms, several: bool) -> Engine:
    from anabranch.engines.chat import ChatEngine, Retries
    from anabranch.engines.tokenizers import load_tokenizer

    if several:
        raise UsageError(f"engine {spec.target}: a chat engine cannot be one of several")
    return ChatEngine(
        spec.target,
        terms.model,
        # Only for token counts: hosted models come without one.
        tokenizer=load_tokenizer(terms.tokenizer) if terms.tokenizer is not None else None,
        api_key=terms.api_key,
        retries=Retries(),
    )


def _sglang(spec: EngineSpec, terms: EngineTerms, several: bool) -> Engine:
    from anabranch.engines.sglang import Retries, SGLangEngine

    if terms.retokenize:
        raise UsageError("--retokenize is for completions servers: SGLang gives token ids")
    return SGLangEngine(
        spec.target,
        tokenizer=_tokenizer(spec, terms),
        api_key=terms.api_key,
        retries=Retries(attempts=0) if several else None,
    )


def _local(spec: EngineSpec, terms: EngineTerms, _: bool) -> Engine:
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise UsageError("running a model in-process needs torch: pip install 'anabranch[local]'")
    from anabranch.engines.local import LocalEngine

    require_checkpoint(spec.target)
    return LocalEngine(Path(spec.target))


def _replay(spec: EngineSpec, terms: EngineTerms, _: bool) -> Engine:
    from anabranch.engines.recording import read_header
    from anabranch.engines.replay import ReplayEngine
    from anabranch.engines.tokenizers import load_tokenizer

    about = read_header(spec.target)
    folder = terms.tokenizer or (Path(about.tokenizer) if about.tokenizer else None)
    if folder is None or not folder.exists():
        was = f" (it was {about.tokenizer})" if about.tokenizer else ""
        raise UsageError(
            f"engine replay:{spec.target} needs --tokenizer: the folder with the tokenizer of the "
            f"model that was recorded{was}"
        )
    return ReplayEngine(spec.target, load_tokenizer(folder))


_MAKERS: dict[Scheme, Callable[[EngineSpec, EngineTerms, bool], Engine]] = {
    "completions": _completions,
    "chat": _chat,
    "sglang": _sglang,
    "local": _local,
    "replay": _replay,
}


def _fleet(engines: Sequence[Engine], terms: FleetTerms) -> Engine:
    from anabranch.engines.fleet import FleetEngine, Hedging

    limits = terms.limits
    if terms.hedge_after is not None and terms.hedge_after <= 0:
        raise UsageError(f"--hedge-after {terms.hedge_after:g}: use a number of seconds above 0")
    hedging = None if terms.hedge_after is None else Hedging(terms.hedge_after)
    return FleetEngine(
        engines,
        routing=_routing(terms.routing),
        limit=limits[0] if len(limits) == 1 else (limits or None),
        hedging=hedging,
    )


def _routing(name: str | None) -> Literal["affinity", "spread", "least_load"]:
    match name:
        case None | "affinity":
            return "affinity"
        case "spread":
            return "spread"
        case "least_load" | "least-load":
            return "least_load"
    raise UsageError(f"--routing {name!r}: use affinity, spread or least_load")
