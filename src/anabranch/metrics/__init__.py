"""Figures of trajectories: tokens, critical path, parallelism, prefill. Pure functions.

Only sampled tokens count: prompts never enter, and what the runtime wrote is counted apart.
Grading and intervals are left out.
"""

from __future__ import annotations

from anabranch.metrics.documents import document_metrics
from anabranch.metrics.figures import Metrics, Summary, speed_up, summarise
from anabranch.metrics.trajectories import trajectory_metrics

__all__ = [
    "Metrics",
    "Summary",
    "document_metrics",
    "speed_up",
    "summarise",
    "trajectory_metrics",
]
