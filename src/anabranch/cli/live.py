"""A live picture of one trajectory: the main line, and under it the branches as they grow.

Fed with decoding events; :meth:`Board.tree` is a rich renderable of the moment. Nothing here
decodes or measures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.text import Text
from rich.tree import Tree

from anabranch.decoding import (
    Answer,
    BlockOpened,
    BranchClosed,
    Event,
    Joined,
    LimitHit,
    Noted,
    Token,
)

_COLOURS = {"subtask": "cyan", "outline": "cyan", "trial": "magenta", "path": "magenta"}
_MARKS = {
    "": "…",
    "closed": "✓",
    "unclosed": "!",
    "truncated": "✂",
    "cancelled": "✗",
    "failed": "✗",
    "skipped": "–",
}


@dataclass
class _Lane:
    kind: str
    title: str
    text: str = ""
    tokens: int = 0
    outcome: str = ""


@dataclass
class _Fork:
    lanes: dict[int, _Lane] = field(default_factory=dict)
    merge: str = ""


@dataclass
class _Stretch:
    text: str = ""
    tokens: int = 0


@dataclass
class Board:
    """What has been seen of a trajectory, in the order in which it will be read."""

    heading: str
    width: int = 72
    items: list[_Stretch | _Fork] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tokens: int = 0
    outcome: str = ""
    _forks: dict[tuple[int, ...], _Fork] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Token(block=block, kind=kind, branch=branch, text=text, count=count):
                self.tokens += count
                self._token(block, kind, branch, text, count)
            case BlockOpened(block=block, plan=plan):
                fork = _Fork({number: _Lane(kind, title) for number, kind, title in plan})
                self.items.append(fork)
                self._forks[block] = fork
            case BranchClosed(block=block, branch=number, outcome=outcome):
                self._forks[block].lanes[number].outcome = outcome
            case Joined():
                self.items.append(_Stretch())
            case LimitHit(limit=limit, action=action):
                self.notes.append(f"limit {limit}: {action}")
            case Noted(code=code, message=message):
                self.notes.append(f"{code}: {message}")
            case Answer(trajectory=trajectory):
                self.outcome = trajectory.outcome
            case _:
                pass

    def _token(
        self, block: tuple[int, ...], kind: str, branch: int | None, text: str, count: int
    ) -> None:
        if kind == "branch" and branch is not None:
            lane = self._forks[block].lanes[branch]
            lane.text += text
            lane.tokens += count
            return
        if not self.items or not isinstance(self.items[-1], _Stretch):
            self.items.append(_Stretch())
        stretch = self.items[-1]
        assert isinstance(stretch, _Stretch)
        stretch.text += text
        stretch.tokens += count

    def tree(self) -> Tree:
        """The picture now."""
        root = Tree(Text(self.heading, style="bold"), guide_style="dim")
        for item in self.items:
            if isinstance(item, _Fork):
                self._draw_fork(root, item)
            elif item.text:
                root.add(self._line(item.text, item.tokens, "default"))
        for note in self.notes:
            root.add(Text(note, style="yellow"))
        return root

    def _draw_fork(self, root: Tree, fork: _Fork) -> None:
        node = root.add(Text(f"fork × {len(fork.lanes)}", style="bold green"))
        for number, lane in fork.lanes.items():
            colour = _COLOURS.get(lane.kind, "blue")
            label = Text(f"{_MARKS.get(lane.outcome, '?')} {number} ", style=f"bold {colour}")
            label.append(f"{lane.kind} ", style="dim")
            label.append_text(self._line(lane.text, lane.tokens, colour))
            node.add(label)

    def _line(self, text: str, tokens: int, style: str) -> Text:
        flat = " ".join(text.split())
        shown = flat if len(flat) <= self.width else "…" + flat[1 - self.width :]
        line = Text(shown, style=style)
        line.append(f"  {tokens}", style="dim")
        return line
