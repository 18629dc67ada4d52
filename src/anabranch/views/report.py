"""Static report pages: one HTML file with tables and pictures, light and dark, without a script.

Pictures come from :mod:`anabranch.views.plots`. What a report says is the matter of its maker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from anabranch.jsonl import atomic_writer

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #56607a; --line: #c9d0de; --page: #fff;
  --panel: #f4f6fa; --mark: #ffe08a; --link: #1f5fbf; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8f1; --dim: #a3adc4; --line: #3a4356;
  --page: #12161f; --panel: #1b212d; --mark: #6b5510; --link: #7fb2ff; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 70rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p.note, figcaption, small { color: var(--dim); }
table { border-collapse: collapse; margin: .6rem 0; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; max-width: 46rem; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem;
  background: var(--panel); }
summary { cursor: pointer; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
mark { background: var(--mark); color: inherit; }
a { color: var(--link); }
"""


#: Signs for control characters, which would not be seen, and which HTML partly forbids.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}


def write_report(path: Path, title: str, parts: Iterable[str]) -> None:
    """Write a page of parts that the functions here have made; lone surrogates become U+FFFD."""
    page = document(title, parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    with atomic_writer(path) as handle:
        handle.write(page.translate(_PICTURES))


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """The title of a section."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, *, note: bool = False) -> str:
    """A paragraph; a note is dimmed."""
    return f"<p{' class=note' if note else ''}>{escape(text)}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table; columns whose cells are numbers stand at the right."""
    body = [[_cell(value) for value in row] for row in rows]
    numbers = [
        bool(body) and all(_is_number(row[place]) for row in body if row[place])
        for place in range(len(head))
    ]
    marks = [' class="n"' if one else "" for one in numbers]
    # A corner without words is no heading.
    top = "".join(
        f'<th scope="col"{mark}>{escape(name)}</th>' if name else "<td></td>"
        for name, mark in zip(head, marks, strict=True)
    )
    lines = [
        "<tr>"
        + "".join(f"<td{m}>{escape(c)}</td>" for c, m in zip(row, marks, strict=True))
        + "</tr>"
        for row in body
    ]
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    body_rows = "".join(lines)
    return (
        f"<table tabindex=0>{named}<thead><tr>{top}</tr></thead><tbody>{body_rows}</tbody></table>"
    )


def excerpt(text: str, marks: Iterable[tuple[int, int, str]] = ()) -> str:
    """A text with marked places; each mark's third part is shown when it is pointed at."""
    pieces, at = [], 0
    for start, end, what in sorted(marks):
        if start < at or end <= start:
            continue
        pieces.append(escape(text[at:start]))
        pieces.append(f'<mark title="{escape(what)}">{escape(text[start:end])}</mark>')
        at = end
    pieces.append(escape(text[at:]))
    return f"<pre>{''.join(pieces)}</pre>"


def folded(summary: str, parts: Iterable[str]) -> str:
    """Something to open."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>"


def figure(title: str, svg: str) -> str:
    """A picture of :mod:`anabranch.views.plots` with its caption."""
    start = svg.index("<svg")
    label = f'<svg role="img" aria-label="{escape(title)}"'
    picture = label + svg[start + len("<svg") :]
    return f"<figure>{picture}<figcaption>{escape(title)}</figcaption></figure>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "-−+."
