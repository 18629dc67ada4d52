"""Parser, xgrammar and llguidance must agree on what is a text of a dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.dialects import (
    MULTIVERSE,
    NPR,
    PARALLEL_R1,
    PARASON,
    THREADWEAVER,
    VARIANTS,
    Block,
    Branch,
    Dialect,
    Document,
    PlanItem,
    TextPart,
    get_dialect,
    grammar,
    join_texts,
    parse,
    scan,
    write,
)
from anabranch.errors import DialectError

xgrammar = pytest.importorskip("xgrammar")
llguidance = pytest.importorskip("llguidance")

NAMES = ["threadweaver", "parason", "parallel-r1", "parason:compact", "multiverse", "npr"]
BOUND = 9
DEPTH = 2
EOS = 256


class ByteTokenizer:
    """One token a byte, for both libraries."""

    eos_token_id = EOS
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<|eos|>")
    special_token_ids = (EOS,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@dataclass
class Judges:
    """The two libraries with one grammar, asked whether they accept a whole text."""

    ebnf: Any
    lark: Any
    tokenizer: Any

    def __call__(self, text: str) -> tuple[bool, bool]:
        matcher = xgrammar.GrammarMatcher(self.ebnf)
        by_xgrammar = matcher.accept_string(text) and matcher.is_completed()
        interpreter = llguidance.LLMatcher(self.tokenizer, self.lark)
        assert not interpreter.is_error(), interpreter.get_error()
        ids = list(text.encode())
        taken = interpreter.try_consume_tokens(ids)
        return by_xgrammar, taken == len(ids) and interpreter.is_accepting()


@cache
def judges(dialect: Dialect, scope: Any = "document", branch: tuple[int, ...] = ()) -> Judges:
    bounds = {"max_branches": BOUND, "max_depth": DEPTH}
    ebnf = grammar(dialect, "xgrammar", scope=scope, branch=branch, **bounds)
    lark = grammar(dialect, "llguidance", scope=scope, branch=branch, **bounds)
    info = xgrammar.TokenizerInfo(
        list(ByteTokenizer.tokens), vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[EOS]
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(ByteTokenizer()), slices=[])
    return Judges(
        compiler.compile_grammar(xgrammar.Grammar.from_ebnf(ebnf)),
        llguidance.grammar_from("lark", lark),
        tokenizer,
    )


def by_parser(text: str, dialect: Dialect) -> bool:
    document = parse(text, dialect)
    variants = [finding for finding in document.diagnostics if finding.code in VARIANTS]
    return document.well_formed and not variants and depth(document.parts) <= DEPTH


def depth(parts: list[TextPart | Block]) -> int:
    blocks = [part for part in parts if isinstance(part, Block)]
    return max([1 + depth(b.parts) for block in blocks for b in block.branches], default=0)


def assert_agree(text: str, dialect: Dialect) -> bool:
    verdict = by_parser(text, dialect)
    assert judges(dialect)(text) == (verdict, verdict), repr(text)
    return verdict


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_what_the_writer_writes_is_accepted_by_all(
    name: str, documents: Callable[[Dialect], st.SearchStrategy[Document]], data: st.DataObject
) -> None:
    dialect = get_dialect(name)
    assert assert_agree(write(data.draw(documents(dialect)), dialect), dialect)


@st.composite
def mutated(draw: st.DrawFn, text: str, dialect: Dialect) -> str:
    """The text with one or two of its runs dropped, doubled, moved, renumbered or replaced."""
    runs = [event.text for event in join_texts(scan(text, dialect))]
    canonical = [tag for t in dialect.tags() for tag in (t.open, t.close)]
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(runs)))
        to = draw(st.integers(0, len(runs)))
        how = draw(st.sampled_from(["drop", "double", "swap", "insert", "nest", "cut", "number"]))
        run = runs[at] if at < len(runs) else ""
        if how == "drop":
            runs[at : at + 1] = []
        elif how == "double":
            runs.insert(at, run)
        elif how == "swap" and at < len(runs) and to < len(runs):
            runs[at], runs[to] = runs[to], runs[at]
        elif how == "insert":
            runs.insert(at, draw(st.sampled_from(canonical)))
        elif how == "nest":
            runs.insert(at, "".join(runs[min(at, to) : max(at, to)]))
        elif how == "cut" and run:
            runs[at] = run[: draw(st.integers(0, len(run)))]
        elif how == "number" and run:
            runs[at] = run.replace("1:", "2:") if "1:" in run else run.replace(":", "")
    return "".join(runs)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_what_one_refuses_all_refuse(
    name: str, documents: Callable[[Dialect], st.SearchStrategy[Document]], data: st.DataObject
) -> None:
    dialect = get_dialect(name)
    text = write(data.draw(documents(dialect)), dialect)
    assert_agree(data.draw(mutated(text, dialect)), dialect)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_they_agree_on_anything(
    name: str, soups: Callable[[Dialect], st.SearchStrategy[str]], data: st.DataObject
) -> None:
    dialect = get_dialect(name)
    text = data.draw(soups(dialect)).encode("utf-8", "ignore").decode()
    assert_agree(text, dialect)


TW = "<Parallel><Outlines><Outline>1:a</Outline><Outline>2:b</Outline></Outlines>"
THREADS = "<Thread>1:x</Thread><Thread>2:y</Thread></Parallel>"


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("", True),
        ("0 < P(A) < 1, a<b, <b>, </b>, <<x", True),
        ("a <", False),
        ("a </ b", False),
        ("a <Thr", False),
        ("a <Thread 1>", False),
        ("a <Thread 1 b", True),
        ("a <Thread 12345>", True),
        (TW + THREADS, True),
        (TW + THREADS + TW + THREADS, True),
        (TW + "\n \t" + THREADS, True),
        (f"<think>{TW}{THREADS}</think>x", True),
        (f"x<think>{TW}{THREADS}", True),
        (f"{TW}{THREADS}<think>", False),
        (f"</think>{TW}{THREADS}", False),
        (TW + "and" + THREADS, False),
        (TW.replace("2:", "3:") + THREADS, False),
        (TW + THREADS.replace("2:", "02:"), False),
        (TW + THREADS.replace("2:", " 2 :"), True),
        (TW + THREADS.replace("x", TW + THREADS), False),
        (TW.replace("<Outline>2:b</Outline>", "") + THREADS, False),
        (TW + THREADS.replace("<Thread>2:y</Thread>", ""), False),
        (TW + THREADS.replace("</Parallel>", "<Conclusion>c</Conclusion></Parallel>"), False),
    ],
)
def test_texts_of_threadweaver(text: str, accepted: bool) -> None:
    assert assert_agree(text, THREADWEAVER) == accepted


def test_the_bound_is_the_largest_block() -> None:
    for count in (2, BOUND, BOUND + 1):
        branches = [Branch(number, "path", "x") for number in range(1, count + 1)]
        text = write(Document([Block([], branches, "s")]), PARALLEL_R1)
        assert judges(PARALLEL_R1)(text) == (count <= BOUND, count <= BOUND)
    with pytest.raises(DialectError, match="at least 2"):
        grammar(PARALLEL_R1, max_branches=1)


def test_long_free_text_is_accepted_in_reasonable_time() -> None:
    text = "Let x < y and so on. " * 5_000
    assert judges(PARASON)(text) == (True, True)


@pytest.mark.parametrize(
    ("name", "scope", "text", "accepted"),
    [
        ("threadweaver", "branch", " any text\n</Thread>", True),
        ("threadweaver", "branch", " any text\n", False),
        ("threadweaver", "branch", " <Parallel></Thread>", False),
        ("threadweaver", "main", f"<think>x{TW}", True),
        ("threadweaver", "main", "then</think>\\boxed{1}", True),
        ("threadweaver", "main", TW + THREADS, False),
        ("parallel-r1", "main", "x<Parallel>", True),
        ("parallel-r1", "main", "x<Parallel><Path>", False),
        ("parallel-r1", "merge", "both\n</Summary>", True),
        ("parallel-r1", "merge", "both", False),
    ],
)
def test_scopes_describe_single_requests(name: str, scope: str, text: str, accepted: bool) -> None:
    assert judges(get_dialect(name), scope)(text) == (accepted, accepted)


def test_a_dialect_without_merge_has_no_merge_scope() -> None:
    with pytest.raises(DialectError, match="has no merge"):
        grammar(PARASON, scope="merge")


def nested(dialect: Dialect, levels: int) -> str:
    """A block in the second branch of a block, and so on."""
    kind = dialect.branch_kind
    plan = [PlanItem(1, kind, "p"), PlanItem(2, kind, "q")]
    block = Block(plan, [Branch(1, kind, "v"), Branch(2, kind, "w")], "c")
    for _ in range(levels - 1):
        block = Block(plan, [Branch(1, kind, "x"), Branch(2, kind, parts=[block])], "d")
    return write(Document([block]), dialect)


@pytest.mark.parametrize("dialect", [MULTIVERSE, NPR], ids=lambda d: d.name)
def test_blocks_in_branches_down_to_a_depth(dialect: Dialect) -> None:
    assert assert_agree(nested(dialect, 2), dialect)
    assert not assert_agree(nested(dialect, 3), dialect)
    merge = dialect.merge
    assert merge is not None
    assert not assert_agree(nested(dialect, 2).replace(merge.open, "", 1), dialect)
    deep = judges(dialect, "branch", (2, 2))
    assert deep(f"x{dialect.branch.close}") == (True, True)
    assert deep(nested(dialect, 1)) == (False, False)


def test_numbers_in_branches_are_those_of_the_branches() -> None:
    text = nested(MULTIVERSE, 2)
    assert "<Path>\n2.1: v" in text
    for wrong in ("1.1:", "1:", "2.2.1:", "0.1:"):
        assert not assert_agree(text.replace("2.1:", wrong), MULTIVERSE)
    assert not assert_agree(nested(NPR, 2).replace("\n1: v", "\n2.1: v"), NPR)


@pytest.mark.parametrize(
    ("dialect", "branch", "text", "accepted"),
    [
        (
            MULTIVERSE,
            (2,),
            "x<Parallel><Goal><Outline>2.1:a</Outline><Outline>2.2:b</Outline></Goal>",
            1,
        ),
        (
            MULTIVERSE,
            (2,),
            "x<Parallel><Goal><Outline>1:a</Outline><Outline>2:b</Outline></Goal>",
            0,
        ),
        (MULTIVERSE, (2,), "x</Path>", 1),
        (
            MULTIVERSE,
            (),
            "x<Parallel><Goal><Outline>2.1:a</Outline><Outline>2.2:b</Outline></Goal>",
            0,
        ),
        (MULTIVERSE, (), "x</Path>", 1),
        (NPR, (), "x<guideline><plan>1:a</plan></guideline>", 1),
        (NPR, (3,), "x<guideline><plan>1:a</plan></guideline>", 1),
        (NPR, (3,), "x<guideline><plan>1:a</plan></guideline><step>", 0),
    ],
)
def test_a_branch_may_go_up_to_its_next_fork(
    dialect: Dialect, branch: tuple[int, ...], text: str, accepted: int
) -> None:
    assert judges(dialect, "branch", branch)(text) == (bool(accepted), bool(accepted))


@pytest.mark.parametrize(
    ("fork", "begun", "text", "accepted"),
    [
        ("may", False, "<think>a</think>b", True),
        ("may", True, "<think>a", False),
        ("may", True, "a</think>b", True),
        ("may", True, "a", True),
        ("no", True, "a</think>b", True),
        ("no", False, TW, False),
        ("may", True, "a" * 900 + TW, True),
        ("must", True, "a" + TW, True),
        ("must", False, "<think>a" + TW, True),
        ("must", True, "a", False),
        ("must", True, "a</think>b", False),
        ("must", True, "a" * 201 + TW, False),
        ("must", True, TW.replace("1:a", "1:" + "a" * 121), False),
    ],
)
def test_what_a_call_of_the_main_line_may_write(
    fork: Any, begun: bool, text: str, accepted: bool
) -> None:
    options = {"scope": "main", "fork": fork, "begun": begun, "max_branches": 3}
    ebnf = grammar(THREADWEAVER, "xgrammar", **options)
    lark = grammar(THREADWEAVER, "llguidance", **options)
    known = judges(THREADWEAVER)
    info = known.ebnf.tokenizer_info
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(
        xgrammar.Grammar.from_ebnf(ebnf)
    )
    both = Judges(compiled, llguidance.grammar_from("lark", lark), known.tokenizer)
    assert both(text) == (accepted, accepted)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_free_text(name: str) -> None:
    dialect = get_dialect(name)
    assert judges(dialect, "answer")("0 < 1, \\boxed{2}") == (True, True)
    assert judges(dialect, "answer")(dialect.branch.open) == (False, False)


def test_names_in_gbnf_have_no_underscore() -> None:
    text = grammar(PARASON, "gbnf", scope="main", max_branches=3)
    names = [line.partition(" ::= ")[0] for line in text.splitlines()]
    assert "root" in names and not any("_" in name for name in names)
    assert text.replace("-", "_") == grammar(
        PARASON, "xgrammar", scope="main", max_branches=3
    ).replace("-", "_")
