"""Page files stand alone, and no content breaks out of them."""

import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.jsonl import write_records
from anabranch.records import Problem, Request, Segment, Trajectory
from anabranch.training.layout import build_layout
from anabranch.views import Page, tree_page, write_pages

NASTY = "</script><script>alert(1)</script>\u2028\ud83c & <!--"


def small(name: str, text: str = "2") -> Trajectory:
    return Trajectory(
        id=name,
        problem=Problem(id=name, problem=f"1+1 {text}"),
        dialect="parason",
        segments=[
            Segment(origin="prompt", ids=(1, 2), text="1+1="),
            Segment(origin="sampled", ids=(3,), text=text, logprobs=(-0.1,)),
        ],
        requests=[Request(kind="main", context=(0,), output=1, finish="eos")],
        final=(0, 1),
    )


def unpacked(html: str, name: str) -> Any:
    found = re.search(f'id="{name}">([^<]*)<', html)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def test_everything_is_inside_and_nothing_breaks_out(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    made = (Page.of_trajectory(small(f"t{n}", NASTY)) for n in range(3))
    assert write_pages(target, made, f"file {NASTY}") == 3
    html = target.read_text("utf-8")
    assert "<script>alert" not in html
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)
    assert "default-src 'none'" in html
    index = unpacked(html, "index")
    assert [row[0] for row in index] == ["t0", "t1", "t2"]
    assert unpacked(html, "page-2")["text"] == NASTY


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    def pages() -> Any:
        yield Page.of_trajectory(small("a"))
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        write_pages(tmp_path / "page.html", pages(), "x")
    assert not list(tmp_path.iterdir())


def test_tree_page_holds_the_layout() -> None:
    layout = build_layout(small("tree"))
    html = tree_page(layout, lambda ids: [f"<{i}>" for i in ids], "a tree")
    data = unpacked(html, "tree")
    assert data["texts"] == ["<1>", "<2>", "<3>"][: len(layout)] and data["edges"] == [
        [1, "<3>", 1.0]
    ]


def test_the_command(cli: Callable[..., Any], fails: Callable[..., Any], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    write_records(rows, [small("a"), small("b")])
    assert "2 trajectories" in cli("view", rows).stdout
    assert (tmp_path / "rows.html").is_file()
    assert "in " in cli("view", rows, "--tree", "--row", "2", "-o", tmp_path / "tree.html").stdout
    assert "has no row 3" in fails("view", rows, "--tree", "--row", "3")
    assert "own input" in fails("view", rows, "-o", rows)
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"id": 1}\n')
    assert "no row that can be shown" in fails("view", empty)
    assert not (tmp_path / "empty.html").exists()
