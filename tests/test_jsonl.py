"""Lines in and out; the hard characters restate public reports such as OpenViking#3988 (line
separators) and inspect_ai#3802 (lone surrogates)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import RecordError
from anabranch.jsonl import (
    atomic_writer,
    dump_line,
    lone_surrogates,
    read_records,
    read_rows,
    write_records,
)
from anabranch.records import Problem, Trajectory

HARD = [
    "a\u0085b",
    "a\u2028b",
    "a\u2029b",
    "a\x0bb",
    "a\x0cb",
    "a\x00b",
    "a\r\nb",
    "a\rb",
    "\ud83c\udf78",
    "\udc81",
    "\ud83c",
    "漢字 かな",
    "e\u0301 é",
    "\ufeff",
    "\\frac{1}{2} \\u0041",
]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_hard_characters_survive_in_one_line_each(tmp_path: Path) -> None:
    path = tmp_path / "hard.jsonl"
    assert write_records(path, ({"n": n, "text": text} for n, text in enumerate(HARD))) == len(HARD)
    raw = path.read_bytes()
    raw.decode("utf-8")
    assert raw.count(b"\n") == len(HARD) == len(raw.split(b"\n")) - 1
    rows = list(read_rows(path))
    assert [number for number, _ in rows] == list(range(1, len(HARD) + 1))
    assert [row["text"] for _, row in rows] == [_paired(text) for text in HARD]


def _paired(text: str) -> str:
    """JSON has no way to tell two escaped halves from the character that they make."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def test_raw_separators_inside_a_line_do_not_end_it(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    texts = ["a\u2028b", "c\u0085d", "e\u2029f"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path.write_bytes("\n".join(lines).encode("utf-8"))
    assert [row["text"] for _, row in read_rows(path)] == texts


@given(rows=st.lists(st.dictionaries(st.text(st.characters()), JSON, max_size=3), max_size=4))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_rows_survive(
    rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    wanted = json.loads(json.dumps(rows))
    write_records(path, rows)
    assert [row for _, row in read_rows(path)] == wanted


def test_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a":1}\r\n\n   \n{"a":2}')
    assert list(read_rows(path)) == [(1, {"a": 1}), (4, {"a": 2})]


BAD = {
    b'{"a": 1': "not JSON",
    b"[1]": "a JSON object is expected, not list",
    b'"x"': "a JSON object is expected, not str",
    b'{"a": "\xff"}': "not UTF-8 at byte 7",
    b"[" * 100_000: "nested too deeply",
    b"{'a': 1}": "not JSON",
}


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_a_bad_line_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"a": 0}\n' + line + b'\n{"a": 2}\n')
    rows = read_rows(path)
    assert next(rows) == (1, {"a": 0})
    with pytest.raises(RecordError, match=BAD[line]) as caught:
        next(rows)
    assert str(caught.value).startswith(f"{path}:2: ") and "\n" not in str(caught.value)
    met: list[RecordError] = []
    assert [number for number, _ in read_rows(path, on_error=met.append)] == [1, 3]
    assert [error.line for error in met] == [2]


def test_a_bad_field_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    good = Trajectory(id="ok")
    bad = good.to_json() | {"segments": [{"origin": "nowhere"}]}
    write_records(path, [good, bad, good])
    read = read_records(path, Trajectory)
    assert next(read) == good
    with pytest.raises(RecordError) as caught:
        next(read)
    assert (caught.value.line, caught.value.field) == (2, "segments.0.origin")
    assert str(caught.value).startswith(f"{path}:2: field 'segments.0.origin': ")
    met: list[RecordError] = []
    assert len(list(read_records(path, Trajectory, on_error=met.append))) == 2 and len(met) == 1


def test_missing_fields_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    write_records(path, [{"id": "1"}])
    with pytest.raises(RecordError, match="field 'problem': Field required"):
        list(read_records(path, Problem))


def test_files_that_cannot_be_opened_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"absent\.jsonl: No such file"):
        list(read_rows(tmp_path / "absent.jsonl"))
    with pytest.raises(RecordError, match="Is a directory"):
        list(read_rows(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be written"):
        write_records(tmp_path / "file" / "x.jsonl", [])


def test_nothing_is_left_behind_by_a_failed_write(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write_records(path, [{"a": 1}])

    def rows() -> Any:
        yield {"a": 2}
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        write_records(path, rows())
    assert list(read_rows(path)) == [(1, {"a": 1})]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]
    with pytest.raises(TypeError):
        write_records(tmp_path / "never.jsonl", [{"a": object()}])
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_atomic_writer_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "x.txt"
    for text in ("one\n", "two\n"):
        with atomic_writer(path) as handle:
            handle.write(text)
    assert path.read_bytes() == b"two\n"


def test_lines_are_ascii_and_surrogates_are_counted() -> None:
    line = dump_line({"text": "\udc81\u2028é"})
    assert line == '{"text":"\\udc81\\u2028\\u00e9"}' and line.isascii()
    assert lone_surrogates("a\udc81b\ud83cc") == 2
    assert lone_surrogates("𝛼é") == 0
