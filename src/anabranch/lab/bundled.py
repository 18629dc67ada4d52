"""Where the model that comes with the package lies. Loading it is an engine's business."""

from __future__ import annotations

from pathlib import Path


def bundled_model() -> Path:
    """The folder of the bundled checkpoint: weights, tokenizer and ``anabranch.json``."""
    return Path(__file__).resolve().parent / "model"
