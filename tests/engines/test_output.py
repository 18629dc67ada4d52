"""Text and ids in step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.engines.output import IdOutput, TextOutput
from anabranch.engines.symbols import CharTokenizer

WORDS = CharTokenizer(["</", "Out", "lines", ">", "ab", "bc>", "</Path>"])
EOS = min(WORDS.eos_ids)


@given(
    pieces=st.lists(st.sampled_from(["</", "Out", "lines", ">", "ab", "bc>", "x", "<"])),
    cap=st.integers(1, 12),
    stops=st.lists(st.sampled_from(["</Outlines>", "ab", "bc", "c>x"]), max_size=2, unique=True),
)
def test_every_prefix_of_the_output_is_a_text_and_its_ids(
    pieces: list[str], cap: int, stops: list[str]
) -> None:
    ids = [token for piece in pieces for token in WORDS.encode(piece)]
    output = IdOutput(WORDS, stops, cap)
    got: list[int] = []
    text = ""
    for token in ids:
        new, settled = output.push([token])
        got += new
        text += settled
        if output.stop is None:
            assert text == WORDS.decode(got)
    new, settled = output.close()
    got, text = got + new, text + settled
    assert got == ids[: output.count]
    assert len(got) <= cap
    whole = WORDS.decode(got)
    if output.stop is None:
        assert text == whole
        assert not any(stop in whole for stop in stops)
    else:
        assert text.endswith(output.stop)
        assert whole.startswith(text)
        assert len(WORDS.decode(got[:-1])) < len(text)
    all_at_once = IdOutput(WORDS, stops, cap)
    first, settled = all_at_once.push(ids)
    rest, tail = all_at_once.close()
    assert ([*first, *rest], settled + tail) == (got, text)


def test_the_end_token_has_no_text_unless_more_follows() -> None:
    output = IdOutput(WORDS, (), 10)
    assert output.push([ord("a"), EOS]) == ([ord("a"), EOS], "a")
    assert output.push([ord("b")]) == ([ord("b")], "<eos>b")


@given(text=st.text(), cuts=st.lists(st.integers(0, 30), max_size=4))
def test_text_is_encoded_piece_by_piece(text: str, cuts: list[int]) -> None:
    output = TextOutput(WORDS, ("</Path>",), 10_000)
    ids: list[int] = []
    got, last = "", 0
    for cut in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        new, settled = output.push(text[last:cut])
        ids, got, last = ids + new, got + settled, cut
    new, settled = output.close()
    assert got + settled == text.partition("</Path>")[0] + ("</Path>" if output.stop else "")
    assert WORDS.decode(ids + new) == got + settled


def test_a_tag_in_pieces_of_text_is_one_token() -> None:
    output = TextOutput(WORDS, ("</Path>",), 10)
    assert output.push("a</Pa") == ([ord("a")], "a")
    assert output.push("th> more") == (WORDS.encode("</Path>"), "</Path>")
    assert output.full


def test_the_cap_holds_where_the_local_tokenizer_needs_more_tokens() -> None:
    output = TextOutput(WORDS, ("z",), 3)
    assert output.push("wxyz") == (WORDS.encode("wxy"), "wxy")
    assert output.stop is None
    assert output.full
