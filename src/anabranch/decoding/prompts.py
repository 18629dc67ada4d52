"""From a problem to a rendered prompt and a complete decoding setup.

What a checkpoint says of its own prompt wins (``anabranch.json``); else the dialect's published
prompt is used, in the model's chat template where there is one. The prompt of mode ``prompted``
explains the dialect to any instruct model (:mod:`anabranch.decoding.prompted`).
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakKeyDictionary

from anabranch.checkpoint import CheckpointInfo
from anabranch.decoding.joins import JoinPolicy, WaitForAll
from anabranch.decoding.prompted import instructions
from anabranch.decoding.setup import Mode, Setup
from anabranch.decoding.tools import TOOLS
from anabranch.dialects import Dialect, get_dialect
from anabranch.engines.base import Engine, Tokenizer
from anabranch.engines.chat import ChatEngine
from anabranch.engines.chat_call import Message
from anabranch.engines.chat_continue import chat_prompt
from anabranch.engines.tokenizers import HFTokenizer, check_tags, render_chat
from anabranch.errors import UsageError
from anabranch.records import Limits, Problem, Sampling

#: The plain prompt for a sequential baseline of a model that has none of its own.
STEP_BY_STEP = "{problem} Let's think step by step and output the final answer within \\boxed{}."


def render_prompt(
    problem: str,
    dialect: Dialect,
    mode: Mode = "parallel",
    *,
    info: CheckpointInfo | None = None,
    folder: Path | str | None = None,
) -> str:
    """The text that the model is to continue.

    Args:
        problem: the problem's text.
        dialect: gives the prompt where the checkpoint has none.
        mode: which of the checkpoint's prompts.
        info: what the checkpoint says of itself.
        folder: the model's folder, whose chat template is then used around the dialect's prompt.

    Raises:
        ModelError: the checkpoint has no prompt for the mode.
        TokenizerError: the chat template cannot be rendered.
    """
    if info is not None and info.prompts and mode != "prompted":
        return info.prompt(problem, "sequential" if mode == "sequential" else "parallel")
    text = user_message(problem, dialect, mode)
    if folder is not None and has_chat_template(folder):
        return render_chat(folder, [{"role": "user", "content": text}])
    return text


def user_message(problem: str, dialect: Dialect, mode: Mode) -> str:
    """What the user says, before any chat template."""
    if mode == "sequential":
        return STEP_BY_STEP.replace("{problem}", problem)
    return instructions(problem, dialect) if mode == "prompted" else dialect.render_prompt(problem)


def _conversation(
    problem: str, dialect: Dialect, mode: Mode, engine: ChatEngine
) -> tuple[Dialect, tuple[Message, ...]]:
    """What a conversation begins with, and the dialect that its record names.

    Raises:
        UsageError: the mode continues raw text, and the server does not continue a message.
    """
    if mode == "tools":
        dialect = TOOLS
    elif mode != "sequential" and not engine.continues:
        raise UsageError(
            f"{engine.name} does not continue a message of its own: over this chat API fork-join "
            f"is mode tools only, not {mode} (or use its /v1/completions)"
        )
    return dialect, ({"role": "user", "content": user_message(problem, dialect, mode)},)


def has_chat_template(folder: Path | str) -> bool:
    """Whether a model's folder holds a chat template."""
    folder = Path(folder)
    if (folder / "chat_template.jinja").is_file():
        return True
    config = folder / "tokenizer_config.json"
    return config.is_file() and '"chat_template"' in config.read_text(encoding="utf-8")


def tag_texts(dialect: Dialect) -> list[str]:
    """Every tag that a model of the dialect, or the runtime, may have to write."""
    return [text for tag in dialect.tags() for text in (tag.open, tag.close)]


#: Sets of tags that a tokenizer was seen to keep: a server makes thousands of setups.
_checked: WeakKeyDictionary[Tokenizer, set[tuple[str, ...]]] = WeakKeyDictionary()


def _check_once(tokenizer: Tokenizer, dialect: Dialect) -> None:
    known = _checked.setdefault(tokenizer, set())
    tags = tuple(tag_texts(dialect))
    if tags not in known:
        check_tags(tokenizer, tags)
        known.add(tags)


def encode_prompt(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The prompt's ids, with the start token exactly once where the tokenizer has one."""
    if isinstance(tokenizer, HFTokenizer):
        return tuple(tokenizer.encode_prompt(text))
    return tuple(tokenizer.encode(text))


def make_setup(
    problem: Problem | str,
    engine: Engine,
    *,
    dialect: Dialect | str | None = None,
    info: CheckpointInfo | None = None,
    folder: Path | str | None = None,
    mode: Mode = "parallel",
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    policy: JoinPolicy | None = None,
    width: int | None = None,
    min_blocks: int = 0,
    id: str = "",
) -> Setup:
    """Everything that :func:`anabranch.decoding.run` needs for one problem.

    Args:
        problem: a record, or only its text.
        engine: its tokenizer, window and name are taken over.
        dialect: default: the checkpoint's own, else ThreadWeaver.
        info, folder: as in :func:`render_prompt`.
        mode: ``parallel`` (native: a trained model) forks, ``sequential`` is the baseline in one
            line, ``constrained`` forks under the dialect's grammar, ``prompted`` explains the
            dialect to any instruct model, under the grammar where the engine takes one, and
            ``tools`` forks by tool calls of a chat engine.
        min_blocks: blocks that are forced, by the grammar or by the choice of the tool.
        limits, sampling, policy, width: as in :class:`Setup`.
        id: of the trajectory; also the root of its seeds beside ``sampling.seed``.

    Raises:
        UsageError: ``min_blocks`` in a mode that cannot force a block, or a mode that is not for
            this engine.
        TokenizerError: a tag of the dialect does not survive the engine's tokenizer.
    """
    record = Problem(id=id or "problem", problem=problem) if isinstance(problem, str) else problem
    if dialect is None:
        dialect = info.dialect if info is not None else "threadweaver"
    chosen = get_dialect(dialect) if isinstance(dialect, str) else dialect
    if min_blocks and mode not in ("constrained", "prompted", "tools"):
        raise UsageError(f"min_blocks {min_blocks}: mode {mode} has no means to force blocks")
    messages: tuple[Message, ...] = ()
    if isinstance(engine, ChatEngine):
        chosen, messages = _conversation(record.text, chosen, mode, engine)
        prompt = chat_prompt(messages)
        messages = () if engine.continues and mode not in ("tools", "sequential") else messages
    elif mode == "tools":
        raise UsageError(
            f"mode tools needs a chat engine, and {engine.name} is none: use chat+http://HOST:PORT"
        )
    else:
        _check_once(engine.tokenizer, chosen)
        prompt = render_prompt(record.text, chosen, mode, info=info, folder=folder)
    return Setup(
        dialect=chosen,
        tokenizer=engine.tokenizer,
        prompt=prompt,
        prompt_ids=encode_prompt(engine.tokenizer, prompt),
        messages=messages,
        limits=limits or Limits(),
        sampling=sampling or Sampling(),
        policy=policy or WaitForAll(),
        mode=mode,
        window=engine.capabilities.window,
        width=width,
        logprobs=engine.capabilities.logprobs,
        min_blocks=min_blocks,
        retokenized=not engine.capabilities.ids_out,
        id=id or record.id,
        problem=record,
        model=engine.model,
        engine=engine.name,
    )
