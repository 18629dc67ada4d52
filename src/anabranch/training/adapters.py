"""LoRA through peft: adapters on a model's layers, and the tags' rows trained beside them.

What is trained is saved as an adapter; the finished model is also saved whole, so that any engine
runs it. Quantised base models are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from anabranch.errors import UsageError
from anabranch.training.config import LoraSettings

ADAPTER = "adapter"


def with_lora(model: Any, settings: LoraSettings, tag_rows: Iterable[int] = ()) -> Any:
    """Freeze a model and put adapters on it; the result wraps the same model.

    Args:
        model: a transformers causal LM.
        settings: rank, scale and where.
        tag_rows: rows of the embeddings that are trained as well.

    Raises:
        UsageError: no module has one of the names.
    """
    from peft import LoraConfig, TaskType, get_peft_model

    rows = sorted(set(tag_rows))
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=settings.targets,
        trainable_token_indices=dict.fromkeys(_embeddings(model), rows) if rows else None,
    )
    try:
        with warnings.catch_warnings():
            # peft asks transformers by a name that it is giving up.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            return get_peft_model(model, config)
    except ValueError as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"lora: no adapter can be put on this model: {first}") from error


def _embeddings(model: Any) -> list[str]:
    """Names of the embeddings, input and output; one when they are tied, which peft then keeps."""
    found = [model.get_input_embeddings(), model.get_output_embeddings()]
    if found[1] is None or found[0].weight is found[1].weight:
        del found[1]
    names = {id(module): name for name, module in model.named_modules()}
    return [names[id(module)].rpartition(".")[2] for module in found]


def has_adapters(model: Any) -> bool:
    """Whether a model is wrapped by peft."""
    return hasattr(model, "peft_config")


def merge(model: Any) -> Any:
    """The plain model with the adapters' updates in its weights; the wrapper is used up."""
    return model.merge_and_unload()
