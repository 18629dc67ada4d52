"""Answers that went wrong, as rows that curation can read; only where texts are kept.

Reasons: ``truncated``, ``failed``, ``malformed`` (findings of its format), ``low_confidence`` (mean
log-prob of what was sampled), ``disliked`` (by feedback). Refused requests have no answer and no
kept text, so they are in the audit only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anabranch.gateway.store.audit import AuditTrail


def failures(trail: AuditTrail, confidence: float | None = None) -> Iterator[dict[str, Any]]:
    """Rows with ``id``, ``problem``, ``text``, ``dialect``, ``reason`` (comma-separated).

    Args:
        trail: of the store.
        confidence: mean log-prob below which an answer counts; None: not asked.
    """
    kept = {content.ticket: content.data for content in trail.contents()}
    records = list(trail.read())
    ratings = {r.ticket: r.data["rating"] for r in records if r.event == "feedback"}
    for record in records:
        if record.event != "ended" or record.ticket not in kept:
            continue
        reasons = _reasons(record.data, ratings.get(record.ticket), confidence)
        if not reasons:
            continue
        data = kept[record.ticket]
        for number, text in enumerate(data["answers"] or [""]):
            yield {
                "id": f"{record.ticket}-{number}",
                "problem": data.get("problem") or data["prompt"],
                "text": text,
                "dialect": record.data["dialect"],
                "reason": ",".join(reasons),
            }


def _reasons(data: dict[str, Any], rating: str | None, confidence: float | None) -> list[str]:
    reasons = [data["outcome"]] if data["outcome"] in ("truncated", "failed") else []
    # What a limit or the engine did is no fault of the text.
    format_faults = set(data.get("findings", ())) - {"request_failed", "limit"}
    if format_faults and data["outcome"] == "answered":
        reasons.append("malformed")
    known = data.get("logprob")
    if confidence is not None and known is not None and known < confidence:
        reasons.append("low_confidence")
    if rating == "dislike":
        reasons.append("disliked")
    return reasons
