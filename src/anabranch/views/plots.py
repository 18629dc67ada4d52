"""Pictures for reports, drawn by matplotlib as SVG that goes with a light page and a dark one.

Lines and text take the page's own colour; the colours of series are in between, so that they can
be told from either ground. matplotlib is an extra: `pip install 'anabranch[plots]'`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import StringIO
from typing import Any

from anabranch.errors import UsageError

#: Told apart by lightness too, and from white and from black.
COLOURS = ("#3b7dd8", "#d1682a", "#2f9e62", "#a855c0", "#c6425f", "#8a8f1c", "#1b98a6", "#8c6a4f")
_MARKERS = "os^Dv<>P"

Points = Sequence[tuple[float, float]]


class Picture:
    """Axes to draw on; ``svg`` is the picture when the block that drew it has ended."""

    def __init__(self, axes: Any) -> None:
        self.axes = axes
        self.svg = ""


@contextmanager
def picture(columns: int = 1, *, height: float = 3.2, width: float = 7.0) -> Iterator[Picture]:
    """Axes side by side; sizes are in inches.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("pictures need matplotlib: pip install 'anabranch[plots]'")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = {
        "svg.hashsalt": "anabranch",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": pyplot.cycler(color=COLOURS),
        "legend.frameon": False,
        "savefig.transparent": True,
    }
    with matplotlib.rc_context(style):
        figure, axes = pyplot.subplots(1, columns, figsize=(width, height), squeeze=False)
        try:
            made = Picture(axes[0])
            yield made
            figure.tight_layout()
            out = StringIO()
            figure.savefig(out, format="svg", metadata={"Date": None})
            made.svg = _themed(out.getvalue())
        finally:
            pyplot.close(figure)


def _themed(svg: str) -> str:
    """Black becomes the colour of the text around the picture."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = svg.replace("#000000", "currentColor")
    # Text has no fill of its own where it is black.
    return svg.replace("<svg ", '<svg fill="currentColor" ', 1)


def bars(values: Mapping[str, float]) -> str:
    """Horizontal bars with their values, the first on top."""
    with picture(height=0.5 + 0.32 * max(1, len(values))) as made:
        axis = made.axes[0]
        drawn = axis.barh(list(values), list(values.values()), color=COLOURS[0], height=0.7)
        axis.bar_label(drawn, fmt="{:g}", padding=3)
        axis.invert_yaxis()
    return made.svg


def histogram(values: Sequence[float], axis: str, *, bins: int = 20) -> str:
    """How often values fall into equal ranges."""
    with picture() as made:
        made.axes[0].hist(values, bins=bins, color=COLOURS[0])
        made.axes[0].set_xlabel(axis)
        made.axes[0].set_ylabel("how many")
    return made.svg


def curves(series: Mapping[str, Points], x: str, y: str, *, dots: bool = False) -> str:
    """A line for each series, or dots, with a legend."""
    with picture(height=3.6) as made:
        axis = made.axes[0]
        for number, (name, points) in enumerate(series.items()):
            at, value = [p[0] for p in points], [p[1] for p in points]
            colour = COLOURS[number % len(COLOURS)]
            if dots:
                marker = _MARKERS[number % len(_MARKERS)]
                axis.plot(at, value, marker, color=colour, label=name, markersize=6)
            else:
                axis.plot(at, value, color=colour, label=name)
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        if series:
            axis.legend(fontsize="small")
    return made.svg
