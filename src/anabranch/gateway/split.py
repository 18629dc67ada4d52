"""Tells reasoning from answer in a stream, and ends the answer at the client's stop strings.

The pieces given out add up to what went in, but for the tags around the reasoning, white space
beside them, and what follows a stop string. Nothing else is interpreted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anabranch.dialects import Dialect

Part = Literal["reasoning", "content"]


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one part."""

    part: Part
    text: str


class Splitter:
    """Feeds on the main line's text.

    Args:
        dialect: gives the tags of the reasoning.
        prompt: what the model saw; it may have opened the reasoning already.
        stops: strings that end the answer.
        plain: there is no reasoning: everything is the answer.
    """

    def __init__(
        self, dialect: Dialect, prompt: str, stops: tuple[str, ...] = (), *, plain: bool = False
    ) -> None:
        think = dialect.think
        self._open = think.open if think else ""
        self._close = think.close if think else dialect.close_reasoning.strip()
        self._swallow = think is not None
        self._stops = stops
        self._fresh = False
        self._reasoning = not plain
        self._begun = plain or think is None or think.is_open_in(prompt)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain now."""
        return self._run(self._held + text, last=False)

    def close(self) -> list[Delta]:
        """What was held back in case a tag or a stop string would come of it."""
        return self._run(self._held, last=True)

    def _run(self, text: str, *, last: bool) -> list[Delta]:
        self._held = ""
        out: list[Delta] = []
        while text and not self.stopped:
            if not self._begun:
                rest = self._skip_opening(text, last=last)
                if rest is None:
                    return out
                text = rest
                continue
            text = (
                self._reason(text, out, last) if self._reasoning else self._answer(text, out, last)
            )
        return out

    def _skip_opening(self, text: str, *, last: bool) -> str | None:
        """The text behind the opening tag, where it begins with one; None: not certain yet."""
        bare = text.lstrip()
        if not last and (not bare or (len(bare) < len(self._open) and self._open.startswith(bare))):
            self._held = text
            return None
        self._begun = True
        if bare.startswith(self._open):
            return bare[len(self._open) :]
        # A model that does not begin with its reasoning answers at once.
        self._reasoning = False
        return text

    def _reason(self, text: str, out: list[Delta], last: bool) -> str:
        at = text.find(self._close)
        if at >= 0:
            _add(out, "reasoning", text[:at])
            self._reasoning = False
            self._fresh = self._swallow
            return text[at + len(self._close) :] if self._swallow else text[at:]
        self._hold(text, (self._close,), "reasoning", out, last)
        return ""

    def _answer(self, text: str, out: list[Delta], last: bool) -> str:
        if self._fresh:  # white space between the tag and the answer belongs to neither
            text = text.lstrip()
            self._fresh = not text
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            _add(out, "content", text[: min(found)[0]])
            self.stopped = True
            return ""
        self._hold(text, self._stops, "content", out, last)
        return ""

    def _hold(
        self, text: str, tags: tuple[str, ...], part: Part, out: list[Delta], last: bool
    ) -> None:
        """Give out all but an ending that may be the beginning of a tag."""
        kept = 0 if last else max((_overlap(text, tag) for tag in tags), default=0)
        cut = len(text) - kept
        _add(out, part, text[:cut])
        self._held = text[cut:]


def _overlap(text: str, tag: str) -> int:
    """The longest ending of the text that is a proper beginning of the tag."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0


def _add(out: list[Delta], part: Part, text: str) -> None:
    if text:
        out.append(Delta(part, text))
