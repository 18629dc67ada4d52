"""The tree layout as a page: what each token sees, at which position it stands, what it predicts.

Takes plain sequences, so that looking at a layout needs no more than the layout itself. Large trees
are cut off at a stated number of tokens; nothing is sampled away silently.
"""

from __future__ import annotations

from typing import Any, Protocol

from anabranch.views.page import asset, element, escape
from anabranch.views.river import Spell

#: A matrix of more tokens is no longer a picture.
MOST = 1200


class Layout(Protocol):
    """What :class:`anabranch.training.layout.TreeLayout` has: see there for shapes."""

    @property
    def name(self) -> str: ...
    @property
    def ids(self) -> Any: ...
    @property
    def positions(self) -> Any: ...
    @property
    def subtree_end(self) -> Any: ...
    @property
    def rows(self) -> Any: ...
    @property
    def tokens(self) -> Any: ...
    @property
    def weights(self) -> Any: ...
    @property
    def raw_tokens(self) -> int: ...


def tree_page(layout: Layout, spell: Spell, title: str) -> str:
    """One self-contained HTML page.

    Args:
        layout: a :class:`Layout`.
        spell: token ids → the text of each.
        title: shown on top.
    """
    size = len(layout.ids)
    shown = min(size, MOST)
    edges = [
        [int(row), text, round(float(weight), 4)]
        for row, text, weight in zip(
            layout.rows, spell([int(t) for t in layout.tokens]), layout.weights, strict=True
        )
        if row < shown
    ]
    data = {
        "name": layout.name,
        "size": size,
        "raw": int(layout.raw_tokens),
        "texts": spell([int(t) for t in layout.ids[:shown]]),
        "ids": [int(t) for t in layout.ids[:shown]],
        "positions": [int(p) for p in layout.positions[:shown]],
        "ends": [int(e) for e in layout.subtree_end[:shown]],
        "edges": edges,
    }
    frame = asset("tree.html").replace("{{style}}", asset("common.css") + asset("tree.css"))
    frame = frame.replace("{{script}}", asset("common.js") + asset("tree.js"))
    # The data last, and the title after nothing that it could be taken for.
    return frame.replace("{{data}}", element("tree", data)).replace("{{title}}", escape(title))
