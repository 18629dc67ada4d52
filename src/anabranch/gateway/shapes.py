"""The API's response objects, whole and in chunks, with our own figures under ``anabranch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.gateway.answers import Choice, Item
from anabranch.gateway.bodies import Common
from anabranch.gateway.tickets import Spent, Ticket
from anabranch.metrics import Metrics
from anabranch.records import Trajectory


class Shape:
    """How one endpoint writes its responses."""

    object = ""
    chunk_object = ""
    prefix = ""

    def __init__(self, ticket: Ticket, body: Common) -> None:
        self.ticket, self.body = ticket, body

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The response of a request that does not stream."""
        return {
            **self._head(self.object),
            "choices": [self._choice(choice) for choice in choices],
            "usage": usage(self.ticket.spent),
            "anabranch": self._figures(),
        }

    def first(self, choice: Choice) -> dict[str, Any] | None:
        """A chunk before any text; None where the endpoint has none."""
        return None

    def chunk(self, item: Item) -> dict[str, Any] | None:
        """The chunk of new text or of an event, or the last one of a choice."""
        choice = item.choice
        if item.event is not None:
            event = {**item.event, "choice": choice.index}
            return {**self._head(self.chunk_object), "choices": [], "anabranch": {"event": event}}
        finish = choice.finish if item.delta is None else None
        entry = {**self._delta(item), "index": choice.index, "finish_reason": finish}
        return {**self._head(self.chunk_object), "choices": [entry]}

    def last(self) -> dict[str, Any]:
        """The chunk with the usage; sent where it was asked for, or a record was."""
        return {
            **self._head(self.chunk_object),
            "choices": [],
            "usage": usage(self.ticket.spent),
            "anabranch": self._figures(),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.ticket.id}",
            "object": kind,
            "created": int(self.ticket.created),
            "model": self.ticket.model,
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, item: Item) -> dict[str, Any]:
        raise NotImplementedError

    def _figures(self) -> dict[str, Any]:
        """Of the answers that were booked: all that have a trajectory, in their order."""
        known = self.ticket.answers
        figures: dict[str, Any] = {
            "choices": [figures_of(*pair) for pair in zip(known, self.ticket.figures, strict=True)]
        }
        if self.body.anabranch.trajectory:
            figures["trajectories"] = [trajectory.to_json() for trajectory in known]
        return figures


class ChatShape(Shape):
    """``/v1/chat/completions``. The reasoning stands in ``reasoning`` and ``reasoning_content``."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prefix = "chatcmpl"

    def first(self, choice: Choice) -> dict[str, Any] | None:
        entry = {
            "index": choice.index,
            "delta": {"role": "assistant", "content": ""},
            "finish_reason": None,
        }
        return {**self._head(self.chunk_object), "choices": [entry]}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        reasoning = "".join(choice.reasoning) or None
        message = {
            "role": "assistant",
            "content": "".join(choice.content),
            "reasoning": reasoning,
            "reasoning_content": reasoning,
            "refusal": None,
        }
        return {
            "index": choice.index,
            "message": message,
            "finish_reason": choice.finish,
            "logprobs": None,
        }

    def _delta(self, item: Item) -> dict[str, Any]:
        delta = item.delta
        if delta is None:
            return {"delta": {}}
        if delta.part == "content":
            return {"delta": {"content": delta.text}}
        return {"delta": {"reasoning": delta.text, "reasoning_content": delta.text}}


class CompletionShape(Shape):
    """``/v1/completions``. The text is the whole main line, branches joined in."""

    object = "text_completion"
    chunk_object = "text_completion"
    prefix = "cmpl"

    def _choice(self, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.content)
        return {
            "index": choice.index,
            "text": text,
            "finish_reason": choice.finish,
            "logprobs": None,
        }

    def _delta(self, item: Item) -> dict[str, Any]:
        return {"text": item.delta.text if item.delta else "", "logprobs": None}


def usage(spent: Spent) -> dict[str, Any]:
    """The API's usage object. All branches are in ``completion_tokens``: all were sampled."""
    return {
        "prompt_tokens": spent.prompt,
        "completion_tokens": spent.sampled,
        "total_tokens": spent.prompt + spent.sampled,
        "prompt_tokens_details": {"cached_tokens": min(spent.cached, spent.prompt)},
        "anabranch": {
            "critical_path_tokens": spent.path,
            "prefill_tokens": spent.prefill,
            "context_tokens": spent.context,
            "cached_tokens": spent.cached,
            "forced_tokens": spent.forced,
            "calls": spent.calls,
            "estimated": spent.estimated,
        },
    }


def figures_of(trajectory: Trajectory, metrics: Metrics) -> dict[str, Any]:
    """What one answer took, and how it ended."""
    return {
        "outcome": trajectory.outcome,
        "mode": trajectory.mode,
        "dialect": trajectory.dialect,
        "total_tokens": metrics.total_tokens,
        "critical_path_tokens": metrics.critical_path,
        "acceleration_ratio": round(metrics.acceleration_ratio, 4),
        "blocks": metrics.blocks,
        "branches_per_block": list(metrics.branches_per_block),
        "seconds": trajectory.seconds,
        "findings": [finding.code for finding in trajectory.findings],
    }
