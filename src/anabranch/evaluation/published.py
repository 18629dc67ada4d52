"""Published results to stand beside one's own: not measured here, and not under one protocol.

Accuracy in per cent, tokens on the critical path of the parallel form and of the sequential one.
"""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """One published result; None where it was not given."""

    system: str
    model: str
    accuracy: float | None
    path: float | None = None
    sequential_accuracy: float | None = None
    sequential_path: float | None = None


_TW, _QWEN8 = "ThreadWeaver", "Qwen3-8B"
_P, _P8 = "Parason", "8B"
_PR, _QWEN4 = "Parallel-R1 (Seen, mean@16)", "Qwen3-4B-Base"

RESULTS: dict[str, tuple[Published, ...]] = {
    "aime24": (
        Published(_TW, _QWEN8, 79.9, 16_900, 78.3, 19_400),
        Published(_PR, _QWEN4, 19.4),
        Published("Multiverse", "32B", 53.8),
    ),
    "aime25": (
        Published(_TW, _QWEN8, 60.5, 24_000, 61.6, 24_600),
        Published(_P, _P8, 70.6),
        Published(_PR, _QWEN4, 19.2),
    ),
    "amc23": (
        Published(_TW, _QWEN8, 92.3, 12_000, 92.6, 13_800),
        Published(_P, _P8, 97.5),
        Published(_PR, _QWEN4, 70.5),
    ),
    "math500": (
        Published(_TW, _QWEN8, 91.4, 6_400, 91.8, 7_200),
        Published(_PR, _QWEN4, 86.7),
    ),
    "minerva_math": (Published(_TW, _QWEN8, 43.7, 7_300, 43.9, 10_600),),
    "olympiadbench": (Published(_TW, _QWEN8, 63.5, 12_800, 65.0, 15_200),),
    "countdown": (Published("APR (4k context)", "small", 83.4, None, 60.0),),
}
