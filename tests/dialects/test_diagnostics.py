from __future__ import annotations

from pathlib import Path

from anabranch.dialects import ERRORS, NOTES, VARIANTS, Diagnostic

DOCS = Path(__file__).resolve().parents[2] / "docs" / "dialects.md"


def test_severity_follows_the_code() -> None:
    assert Diagnostic("half_tag", "m").severity == "error"
    assert Diagnostic("alias_tag", "m").severity == "note"
    assert Diagnostic("stray_text", "m", tolerated=True).severity == "note"


def test_codes_are_either_errors_or_notes() -> None:
    assert not set(ERRORS) & set(NOTES)
    assert set(ERRORS) | set(NOTES) >= VARIANTS


def test_every_code_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [code for code in (*ERRORS, *NOTES) if f"`{code}`" not in text] == []
