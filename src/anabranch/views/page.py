"""Trajectory pages: one HTML file with a list to search, rivers to look at, and their texts.

Each trajectory is kept compressed in an element of its own and unpacked when it is opened, so a
file of ten thousand opens at once. The page has no address of any other host in it, and its policy
forbids the browser to ask one.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from anabranch.dialects import Dialect, Document
from anabranch.jsonl import atomic_writer
from anabranch.metrics import Metrics, document_metrics, trajectory_metrics
from anabranch.records import Trajectory
from anabranch.views.river import Lane, Spell, river_of_document, river_of_trajectory

_SHOWN = 400


@dataclass(slots=True)
class Page:
    """One trajectory of a page file.

    Attributes:
        id: its name in the list.
        river: the main lane.
        problem, prompt, text: what was asked, what the model saw first, what it wrote.
        facts: name → value, shown as a table.
        findings: ``(code, message)`` of each deviation.
        unit: what sizes count.
        outcome, verdict, blocks, total, path: for the list and its filters.
    """

    id: str
    river: Lane
    problem: str
    prompt: str
    text: str
    facts: dict[str, str]
    findings: list[tuple[str, str]] = field(default_factory=list)
    unit: str = "tokens"
    outcome: str = ""
    verdict: str = ""
    blocks: int = 0
    total: int = 0
    path: int = 0

    @classmethod
    def of_trajectory(cls, trajectory: Trajectory, spell: Spell | None = None) -> Page:
        """The page of a record."""
        metrics = trajectory_metrics(trajectory)
        problem = trajectory.problem
        verdict = trajectory.verdict
        facts = {
            "outcome": trajectory.outcome,
            "verdict": f"{verdict.status} {verdict.reason}".strip() if verdict else "",
            "gold": (problem.answer or "") if problem else "",
            "dialect": trajectory.dialect,
            "mode": trajectory.mode,
            "model": trajectory.model,
            "engine": trajectory.engine,
            "policy version": trajectory.policy_version or "",
            "seconds": "" if trajectory.seconds is None else f"{trajectory.seconds:.3f}",
            **_figures(metrics),
        }
        return cls(
            id=trajectory.id or (problem.id if problem else ""),
            river=river_of_trajectory(trajectory, spell),
            problem=problem.problem if problem else "",
            prompt=trajectory.prompt_text,
            text=trajectory.text,
            facts=_known(facts),
            findings=[(finding.code, finding.message) for finding in trajectory.findings],
            outcome=trajectory.outcome,
            verdict=verdict.status if verdict else "",
            blocks=len(trajectory.blocks),
            total=metrics.total_tokens,
            path=metrics.critical_path,
        )

    @classmethod
    def of_document(
        cls, name: str, text: str, document: Document, dialect: Dialect, unit: str,
        count: Callable[[str], int], problem: str = "",
    ) -> Page:  # fmt: skip
        """The page of a text without token ids."""
        metrics = document_metrics(document, dialect, count)
        outcome = "well formed" if document.well_formed else "malformed"
        return cls(
            id=name,
            river=river_of_document(document, dialect, count),
            problem=problem,
            prompt="",
            text=text,
            facts=_known({"outcome": outcome, "dialect": dialect.name, **_figures(metrics)}),
            findings=[(d.code, f"{d.message} (character {d.start})") for d in document.diagnostics],
            unit=unit,
            outcome=outcome,
            blocks=metrics.blocks,
            total=metrics.total_tokens,
            path=metrics.critical_path,
        )


def write_pages(path: Path, pages: Iterable[Page], title: str) -> int:
    """Write one self-contained file; it appears when it is whole.

    Args:
        path: the HTML file.
        pages: taken one at a time.
        title: shown above the list.

    Returns:
        how many trajectories it holds.
    """
    index: list[list[Any]] = []
    with atomic_writer(path) as handle:
        for part in _document(title):
            if part is not None:
                handle.write(part)
                continue
            for number, page in enumerate(pages):
                index.append(_row(page))
                handle.write(element(f"page-{number}", asdict(page)))
            handle.write(element("index", index))
    return len(index)


def pages_text(pages: Iterable[Page], title: str) -> str:
    """The same file as text, for few pages."""
    made = list(pages)
    data = [element(f"page-{number}", asdict(page)) for number, page in enumerate(made)]
    data.append(element("index", [_row(page) for page in made]))
    return "".join("".join(data) if part is None else part for part in _document(title))


def _document(title: str) -> Iterator[str | None]:
    """The frame of the file in order; None stands for the data."""
    head, rest = asset("trajectory.html").split("{{style}}")
    body, rest = rest.split("{{data}}")
    middle, end = rest.split("{{script}}")
    yield head.replace("{{title}}", escape(title)) + asset("common.css") + asset("trajectory.css")
    yield body.replace("{{title}}", escape(title))
    yield None
    yield middle + asset("common.js") + asset("trajectory.js") + end


def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return (resources.files("anabranch.views") / "assets" / name).read_text("utf-8")


def escape(text: str) -> str:
    """Text as HTML content or attribute value."""
    safe = text.encode("utf-8", "replace").decode("utf-8")  # a file name may hold any byte
    return safe.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def element(name: str, data: Any) -> str:
    """Data as an element that no content can break out of."""
    plain = json.dumps(data, separators=(",", ":")).encode("ascii")
    packed = base64.b64encode(gzip.compress(plain, 6, mtime=0)).decode("ascii")
    return f'<script type="text/plain" id="{name}">{packed}</script>\n'


def _row(page: Page) -> list[Any]:
    codes = sorted({code for code, _ in page.findings})
    shown = " ".join((page.problem or page.prompt or page.text)[:_SHOWN].split())
    answer = " ".join(page.text[-_SHOWN // 4 :].split())
    return [page.id, page.outcome, page.verdict, page.blocks, page.total, page.path, codes, shown,
            answer]  # fmt: skip


def _known(facts: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if value}


def _figures(metrics: Metrics) -> dict[str, str]:
    known = metrics.prefill_tokens
    return {
        "total": str(metrics.total_tokens),
        "critical path": str(metrics.critical_path),
        "total / path": f"{metrics.acceleration_ratio:.2f}",
        "in blocks": f"{100 * metrics.parallel_ratio:.0f} %",
        "blocks": str(metrics.blocks),
        "branches per block": ", ".join(map(str, metrics.branches_per_block)),
        "written by the runtime": str(metrics.forced_tokens),
        "prefill computed": "" if known is None else str(known),
    }
