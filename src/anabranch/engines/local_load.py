"""A checkpoint folder becomes a model and a tokenizer, or one clear sentence why not.

Nothing is downloaded. Which forward the model gets is decided in
:mod:`anabranch.engines.local_audit`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from anabranch.checkpoint import missing_files
from anabranch.engines.tokenizers import HFTokenizer, load_tokenizer
from anabranch.errors import ModelError, TokenizerError

#: Below so many parameters a CPU is faster with float32 than with bfloat16, and with one thread.
SMALL = 50_000_000


def load_model(path: str | Path, *, dtype: torch.dtype | None, device: str | None) -> Any:
    """Loads a causal language model for inference.

    Args:
        path: folder with `config.json` and weights.
        dtype: of the weights; None: as stored, but float32 for small models on a CPU.
        device: None: the accelerator if there is one.

    Raises:
        ModelError: names the file that is missing or broken, or what is not supported.
    """
    folder = Path(path)
    check_files(folder)
    place = torch.device(device) if device else _default_device()
    try:
        with quiet_loading():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype or "auto", local_files_only=True
            )
    except Exception as error:  # transformers and safetensors raise many kinds for bad files
        raise ModelError(f"{folder}: {_reason(folder, error)}") from None
    if dtype is None and place.type == "cpu" and _size(model) < SMALL:
        model = model.float()
    return model.to(place).eval()


def load_tokenizer_of(path: str | Path) -> HFTokenizer:
    """The tokenizer next to a model.

    Raises:
        ModelError: it is missing or broken.
    """
    try:
        return load_tokenizer(path)
    except TokenizerError as error:
        raise ModelError(str(error)) from None


def end_ids(model: Any) -> frozenset[int]:
    """The end tokens named by a model's generation config."""
    generation = getattr(model, "generation_config", None)
    value = getattr(generation, "eos_token_id", None)
    values = value if isinstance(value, list) else [value]
    return frozenset(number for number in values if isinstance(number, int))


def window_of(model: Any) -> int | None:
    """Tokens that fit into the model's context, None if it names no bound."""
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return window if isinstance(window, int) and window > 0 else None


def default_threads(model: Any) -> int:
    """CPU threads that serve a model well: one for small models, else the physical cores.

    `OMP_NUM_THREADS` wins if it is set.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    if _size(model) < SMALL:
        return 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (allowed or 1) // _threads_per_core())


def load_weights(model: Any, source: dict[str, Tensor] | str | Path) -> None:
    """Replaces a model's weights in place.

    Args:
        source: a state dict, or a checkpoint folder of the same architecture.

    Raises:
        ModelError: names or shapes do not fit; the model is then unchanged.
    """
    weights: dict[str, Tensor]
    if isinstance(source, str | Path):
        weights = load_model(source, dtype=model.dtype, device="cpu").state_dict()
    else:
        weights = source
    own = model.state_dict()
    unknown = sorted(set(weights) - set(own))
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing = sorted(set(own) - set(weights) - tied)
    shapes = [name for name in weights if name in own and weights[name].shape != own[name].shape]
    for problem, names in (("unknown", unknown), ("missing", missing), ("misshapen", shapes)):
        if names:
            raise ModelError(f"new weights do not fit the model: {names[0]} is {problem}")
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)


def _default_device() -> torch.device:
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _size(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _threads_per_core() -> int:
    siblings = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    try:
        text = siblings.read_text().strip()
    except OSError:
        return 1
    return max(1, len(text.replace("-", ",").split(",")))


def check_files(folder: Path) -> None:
    """Makes sure that a checkpoint is complete, as far as names tell.

    Raises:
        ModelError: names the file that is missing.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder: name a folder with a model in it")
    missing = missing_files(folder, tokenizer=False)
    if missing:
        raise ModelError(
            f"{folder / missing[0]} is missing: {folder} holds no complete model; copy it"
        )
    config = folder / "config.json"
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{config}: not JSON: {error}") from None


def _reason(folder: Path, error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0][:300] if lines else type(error).__name__
    broken = _broken_weights(folder)
    if broken is not None:
        return f"{broken.name} is not a readable safetensors file; copy it again"
    return f"cannot be loaded as a causal language model: {text}"


def _broken_weights(folder: Path) -> Path | None:
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(file), framework="pt") as opened:
                opened.keys()
        except (SafetensorError, OSError):
            return file
    return None


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bars: a library's loading is not the user's business."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
