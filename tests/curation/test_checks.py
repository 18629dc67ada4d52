"""Checks find what they are for, in lab samples with seeded defects and in words."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.curation.checks import KINDS, Checks, EvaluationSets, Finding, Sample
from anabranch.curation.checks.values import names, values
from anabranch.curation.report import Report
from anabranch.dialects import get_dialect
from anabranch.errors import RecordError
from anabranch.jsonl import write_records
from anabranch.lab.defects import NAMES, sample

COUNT = 60
Cli = Callable[..., Any]
PARASON = get_dialect("parason")


def text(*branches: str, before: str = "", after: str = "", titles: tuple[str, ...] = ()) -> str:
    titles = titles or tuple(f"part {n}" for n, _ in enumerate(branches, 1))
    plan = "".join(f"<Subtask>{n}: {t}</Subtask>" for n, t in enumerate(titles, 1))
    body = "".join(f"<Thread>\n{n}: {b}\n</Thread>" for n, b in enumerate(branches, 1))
    block = f"<Parallel><Outlines>{plan}</Outlines>{body}</Parallel>"
    return f"<think>\n{before}{block}{after}\n</think>\n\\boxed{{41}}"


def find(written: str, **known: Any) -> list[Finding]:
    return Checks(survived=0).run(Sample(written, PARASON, **known))


def kinds(written: str, **known: Any) -> list[str]:
    return [finding.kind for finding in find(written, **known)]


@pytest.mark.parametrize("defect", NAMES)
def test_seeded_defects_are_found(defect: str) -> None:
    checks = Checks(survived=0)
    found = [{f.kind for f in checks.run(sample(2, n, defect))} for n in range(COUNT)]
    assert sum(defect in one for one in found) >= 0.95 * COUNT
    assert sum(one <= {defect} for one in found) >= 0.95 * COUNT


def test_samples_without_a_defect_have_no_finding() -> None:
    checks = Checks(survived=0)
    bad = [n for n in range(COUNT) if checks.run(sample(2, n, None))]
    assert len(bad) <= 0.05 * COUNT


def test_a_leak_is_a_value_of_a_sibling_that_is_used() -> None:
    first = "Tom has 12 * 3 = 36 apples."
    (leak,) = find(text(first, "With the 36 found, we add 5: 36 + 5 = 41."))
    assert (leak.kind, leak.block, leak.branch) == ("leak", 1, 2)
    written = text(first, "With the 36 found, we add 5: 36 + 5 = 41.")
    assert written[leak.start : leak.end] == "36"
    assert kinds(text(first, "Since there are 36 of them, it is 36 + 5 = 41.")) == ["leak"]
    # Whoever works it out, or was told, leaks nothing.
    assert kinds(text(first, "Ann has 4 * 9 = 36 pears, so 36 + 5 = 41.")) == []
    assert kinds(text(first, "The 36 in the box are left."), problem="A box of 36.") == []
    assert kinds(text(first, "The 36 are left.", before="It is 30 + 6 = 36. ")) == []
    assert kinds(text(first, "She gives 5 away, leaving 36 pears.")) == []
    # Every sibling counts, not only the one before, and later ones too.
    assert kinds(text(first, "It is 50 - 3 = 47.", "Then 36 and more.")) == ["leak"]
    assert kinds(text("Then 47 and more.", "It is 50 - 3 = 47.")) == ["leak"]


def test_a_block_that_only_repeats_comes_after_the_answer() -> None:
    solved = "First 12 * 3 = 36, then 36 + 5 = 41. "
    assert kinds(text("12 * 3 = 36", "36 + 5 = 41", before=solved))[:1] == ["answer_first"]
    found = find(text("50 - 2 = 48; 48 - 7 = 41", "99 - 58 = 41", before=solved), answer="41")
    assert [f.kind for f in found] == ["answer_first"]
    assert "final answer 41" in found[0].message
    assert kinds(text("12 * 3 = 36", "50 - 9 = 41", before="We do both. ")) == []


@pytest.mark.parametrize(
    ("before", "branches", "answer", "problem", "expected"),
    [
        ("Half of 40 is 20, and 20 / 4 = 5. ", ("20 / 4 = 5", "40 / 8 = 5"), "5", "", True),
        # A 5 somewhere before says nothing, nor does how many there are.
        ("5 of 40. ", ("60 / 12 = 5", "70 / 14 = 5"), "5", "", False),
        ("There are 5. ", ("60 / 12 = 5", "70 / 14 = 5"), "5", "", False),
        ("20 / 4 = 5, so 5 + 2 = 7. ", ("60 / 12 = 5", "70 / 14 = 5"), "5", "", False),
        # What the problem has already.
        ("The 41 is a guess. ", ("50 - 9 = 41", "99 - 58 = 41"), "41", "Is it 41?", False),
        ("It is 30 + 11 = 41. ", ("50 - 9 = 41", "99 - 58 = 41"), "41", "Is it 41?", True),
    ],
)
def test_small_and_given_answers_must_be_the_last_word(
    before: str, branches: tuple[str, ...], answer: str, problem: str, expected: bool
) -> None:
    found = kinds(text(*branches, before=before), answer=answer, problem=problem)
    assert ("answer_first" in found) is expected


def test_a_small_result_that_is_new_is_no_repetition() -> None:
    before = "3 dozen are 3 * 12 = 36 eggs. "
    assert kinds(text("36 eggs are 36 / 4 = 9 meals", "40 - 4 = 36", before=before)) == []
    # A number that stands before without being stated is no result there.
    assert kinds(text("30 + 6 = 36", "72 / 2 = 36", before="Who eats all 36 eggs? ")) == []


def test_another_way_to_a_number_is_nothing_new() -> None:
    before = "3 dozen are 3 * 12 = 36 eggs, and 36 + 5 = 41. "
    repeated = text("30 + 6 = 36 eggs", "50 - 9 = 41, which is 2G + 1", before=before)
    assert "answer_first" in kinds(repeated)
    assert "answer_first" not in kinds(text("30 + 6 = 36 eggs", "18 * 3 = 54", before=before))
    # One number may be the same by chance.
    assert "answer_first" not in kinds(text("30 + 6 = 36 pears", "18 * 2 = 36", before=before))


def test_an_answer_in_words_is_looked_for_outside_the_problem() -> None:
    one, other = "12 * 3 = 36, so Tuesday", "7 * 8 = 56, so Tuesday"
    found = find(text(one, other, before="It is Tuesday. "), answer="Tuesday")
    assert [f.kind for f in found if f.kind == "answer_first"] == ["answer_first"]
    options = "Monday or Tuesday?"
    found = find(text(one, other, before=options), answer="Tuesday", problem=options)
    assert "answer_first" not in [f.kind for f in found]


def test_words_about_a_sibling_are_a_leak() -> None:
    first = "Tom has 12 * 3 = 36 apples."
    (leak,) = find(text(first, "7 * 8 = 56. As in the first thread, we add."))
    assert (leak.kind, leak.branch) == ("leak", 2)
    assert kinds(text(first, "7 * 8 = 56. See Thread 1.")) == ["leak"]
    # A branch's own name, and what the problem speaks of.
    assert kinds(text(first, "Second thread: 7 * 8 = 56.")) == []
    assert kinds(text("Thread 1 does it: 36.", "7 * 8 = 56. So thread 2 is done.")) == []
    spoken = "Cut the first thread. How long is it?"
    assert kinds(text(first, "7 * 8 = 56. The first thread is cut."), problem=spoken) == []


def test_parts_of_quotients_are_used_too() -> None:
    first = "Tom has 12 * 3 = 36 apples."
    assert kinds(text(first, "Everybody takes a part, 36 / 5 = 7.2.")) == ["leak"]
    assert kinds(text(first, r"Then x = \frac{36}{5} = 7.2.")) == []


def test_blocks_inside_branches_are_checked() -> None:
    inner = (
        "<Parallel>\n<Goal>\n<Outline>\n1.1: a\n</Outline>\n<Outline>\n1.2: b\n</Outline>\n"
        "</Goal>\n<Path>\n1.1: 7 * 8 = 56\n</Path>\n<Path>\n1.2: With 36 and 56.\n</Path>\n"
        "<Conclusion>\ndone\n</Conclusion>\n</Parallel>"
    )
    written = (
        "<Think>\n<Parallel>\n<Goal>\n<Outline>\n1: a\n</Outline>\n<Outline>\n2: b\n</Outline>\n"
        f"</Goal>\n<Path>\n1: 12 * 3 = 36. {inner}\n</Path>\n<Path>\n2: 99 - 58 = 41\n</Path>\n"
        "<Conclusion>\ndone\n</Conclusion>\n</Parallel>\n</Think>\n\\boxed{41}"
    )
    found = Checks(survived=0).run(Sample(written, get_dialect("multiverse")))
    # 36 stands before the inner block, in the branch around it; 56 is a sibling's.
    assert [(f.kind, f.block, written[f.start : f.end]) for f in found] == [("leak", 2, "56")]


def test_near_duplicates_share_words_and_results() -> None:
    one = "The red box holds 12 rows of 3 apples each, that is 12 * 3 = 36 apples in all."
    assert kinds(text(one, one.replace("red", "big"))) == ["near_duplicate"]
    assert kinds(text(one, "The blue box holds 7 rows of 8 pears, that is 7 * 8 = 56.")) == []


def test_near_duplicates_in_scripts_without_spaces() -> None:
    one = "红色的盒子里有十二排苹果每排三个一共有三十六个苹果"
    assert kinds(text(one, one.replace("红", "蓝"))) == ["near_duplicate"]
    assert kinds(text(one, "篮子里的梨子七个一组共有八组所以是五十六个")) == []


def test_a_plan_gives_no_results_away() -> None:
    branches = ("12 * 3 = 36", "7 * 8 = 56")
    (found,) = find(text(*branches, titles=("find that it is 36", "the pears")))
    assert (found.kind, found.branch) == ("outline_reveals", 1)
    assert kinds(text(*branches, titles=("12 rows of 3", "7 rows of 8"))) == []


def test_a_trial_may_be_named_by_what_it_tries() -> None:
    trials = ("x = 40, then 2 * 40 = 80.", "x = 50, then 2 * 50 = 100.")
    assert kinds(text(*trials, titles=("x = 40", "x = 50"))) == []
    revealed = kinds(text(*trials, titles=("x = 40 makes 80", "x = 50")))
    assert revealed == ["outline_reveals"]
    solved = ("2 * x = 80, so x = 40.", "5 * y = 250, so y = 50.")
    assert kinds(text(*solved, titles=("find x = 40", "find y"))) == ["outline_reveals"]
    assert kinds(text(*solved, titles=("see what happens if x = 40", "find y"))) == []
    # A sign with a number is a result only where a branch ends with it.
    assert kinds(text("S1 is a sum", "S2 is one", titles=("find S1", "find S2"))) == []


def test_format_and_lost_latex() -> None:
    good = text("12 * 3 = 36", "7 * 8 = 56")
    assert kinds(good.replace("<Subtask>2:", "<Subtask>3:")) == ["format", "format"]
    assert kinds(good.replace("</Parallel>", "")) == ["format"]
    (found,) = find(good.replace("12 * 3", "\x0crac{1}{2}"))
    assert (found.kind, found.message) == ("control_character", "U+000C before 'r'")


def test_answers_are_graded_again() -> None:
    written = text("12 * 3 = 36", "7 * 8 = 56")
    assert kinds(written, answer="41") == []
    assert kinds(written, answer="42") == ["wrong_answer"]
    assert kinds(written.replace("\\boxed{41}", ""), answer="42") == ["no_answer"]


def test_what_survives_of_a_source() -> None:
    written = text("12 * 3 = 36", "7 * 8 = 56", before="Two boxes. ", after="Together 92.")
    whole = Sample(written, PARASON, source="Two boxes. 12 * 3 = 36\n7 * 8 = 56 Together 92.")
    assert whole.share == 1.0
    half = Sample(written, PARASON, source="Two boxes." + "x" * 40 + "Together 92.")
    assert 0.2 < (half.share or 0) < 0.4
    assert [f.kind for f in Checks(survived=0.8).run(half)] == ["lost_text"]


def test_problems_of_evaluation_sets_are_seen(tmp_path: Path) -> None:
    long = (
        "A cook had three hundred carrots in a bucket he was using to cook meals for a restaurant"
    )
    path = tmp_path / "gsm.jsonl"
    write_records(path, [{"id": "7", "problem": long}, {"id": "8", "problem": "How many?"}])
    sets = EvaluationSets([path])
    assert sets.find("Once a COOK had three hundred carrots in a bucket, he was using to cook it")
    assert sets.find("how many") == "gsm/8"
    assert sets.find("How many carrots?") is None
    assert sets.find("") is None
    # However it is encoded, and in scripts without spaces.
    chinese = "小明有三百个胡萝卜，他每天吃掉其中的五分之二，问一周之后还剩多少个？"
    write_records(
        path, [{"problem": "Un caf\u00e9\r\nnoir"}, {"problem": chinese}, {"problem": "?"}]
    )
    others = EvaluationSets([path])
    assert others.find("un cafe\u0301 noir") == "gsm/1"
    assert others.find(f"昨天{chinese[:20]}一个月") == "gsm/2"
    assert others.find("昨天" + chinese[:8]) is None
    assert others.find("!") is None
    write_records(path, [{"id": "7", "problem": long}, {"id": "8", "problem": "How many?"}])
    written = text("12 * 3 = 36", "7 * 8 = 56")
    found = Checks(0, (str(path),)).run(Sample(written, PARASON, problem=long))
    assert [f.message for f in found] == ["the problem is gsm/7, or shares words with it"]
    write_records(path, [{"question": "x"}])
    with pytest.raises(RecordError, match=r"gsm.jsonl:1: field 'problem'"):
        EvaluationSets([path])


def test_values_in_one_form() -> None:
    assert names(r"1,200.50 is \frac{12}{5} or 12/5, not 7; 3^{20}") >= {"1200.5", "12/5", "20"}
    assert "7" not in names("7 of 10")
    assert names("0.50, 0.802 and 007.25") == {"0.5", "0.802", "7.25"}
    assert [v.text for v in values("x2=31 and e6") if not v.result] == ["x2", "e6"]


def test_unicode_and_other_scripts() -> None:
    odd = "\u2028\u0085 数は 12 × 3 = 36 です \udc81"
    assert kinds(text(odd, "7 * 8 = 56")) == []
    assert kinds(text(odd, "前の 36 を使うと 36 + 5 = 41")) == ["leak"]


def test_numbers_of_other_scripts() -> None:
    assert names("苹果共有２５个") == names("共25个") == names("٢٥") == {"25"}
    written = text("苹果共有25个", "由上面的25个可知 25+16=41")
    assert kinds(written) == ["leak"]
    assert kinds(text("苹果共有25个", "答案是25")) == []


def test_many_blocks_and_long_numbers_take_no_long_time() -> None:
    many = "".join(
        text(f"{n} * 3 = {3 * n}", f"{n} + 5 = {n + 5}", before=f" We get {n}. ")
        for n in range(1000, 1400)
    )
    begun = time.process_time()
    find(many, answer="41")
    find("<Parallel><Outlines><Subtask>1: " * 1000)
    find(text(*["12 * 3 = 36"] * 400))
    assert kinds(text("7" * 5000, "x = " + "8" * 5000), answer="9" * 5000) == ["wrong_answer"]
    # Looking at all that stands before each block would take half a minute.
    assert time.process_time() - begun < 5


PIECES = (
    "<Parallel>", "</Parallel>", "<Outlines>", "</Outlines>", "<Subtask>1: ", "</Subtask>",
    "<Trial>2:", "</Trial>", "<Thread>\n1: ", "<Thread>2:", "</Thread>", "<think>", "</think>",
    "36", " = 36", "36/5", r"\frac{3}{40}", "a5", "thread 1. ", "so ", "\u2028", "\x0crac",
    "\udc81", "１２", "\\boxed{36}", " 12 * 3 = 36. ", "1,200.50",
)  # fmt: skip


ANY = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
WITHOUT_TAGS = st.lists(st.sampled_from([p for p in PIECES if "<" not in p]), min_size=1).map(
    " ".join
)


@given(
    ANY | st.tuples(WITHOUT_TAGS, WITHOUT_TAGS, WITHOUT_TAGS).map(lambda t: t[0] + text(*t[1:])),
    st.sampled_from([None, "36", "5", "", "a5", "\\frac{36}{5}", "no"]),
)
@settings(deadline=None, max_examples=150)
def test_any_text_has_findings_within_it(written: str, answer: str | None) -> None:
    problem = "Is 40 = 4 * 10?"
    checks = Checks(survived=0.8)
    found = checks.run(Sample(written, PARASON, problem, answer, source="12 * 3 = 36"))
    assert all(0 <= f.start <= f.end <= len(written) for f in found)
    assert {f.kind for f in found} <= set(KINDS)
    assert found == checks.run(Sample(written, PARASON, problem, answer, source="12 * 3 = 36"))


def test_the_command_prints_findings_with_offsets(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "samples.jsonl"
    leaking = text("12 * 3 = 36", "the 36 again")
    rows = [{"id": "a", "text": leaking, "dialect": "parason"}, {"id": "b", "text": leaking[:-60]}]
    write_records(path, rows)
    done = cli("curate", "check", path, "--dialect", "parason", "--json")
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first["findings"][0]["kind"] == "leak"
    assert leaking[first["findings"][0]["start"] :].startswith("36 again")
    assert second["id"] == "b"
    said = cli("curate", "check", path, "--dialect", "parason", "--fail", code=1).stdout
    assert "2 rows, 2 with findings" in said


def test_rows_say_their_dialect_and_bad_ones_are_named(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "samples.jsonl"
    odd = text("12 * 3 = 36 \udc81\u2028", "the 36 again \x00\x85", titles=("p", "q"))
    rows: list[dict[str, Any]] = [
        {"id": "a", "text": odd, "dialect": "parason", "answer": 41},
        {"id": "b", "text": odd, "dialect": "unheard"},
        {"id": "c", "text": "In one line: \\boxed{42}", "dialect": "npr", "answer": 41.0},
    ]
    write_records(path, rows)
    with path.open("a") as handle:
        handle.write("{torn\n")
    done = cli("curate", "check", path, "--json", "--html", tmp_path / "page.html", code=1)
    first, third = (json.loads(line) for line in done.stdout.splitlines())
    assert [f["kind"] for f in first["findings"]] == ["leak"]
    assert [f["kind"] for f in third["findings"]] == ["wrong_answer"]
    assert "b: unknown dialect 'unheard'" in done.stderr
    assert f"{path}:4: not JSON" in done.stderr
    assert "\ufffd" in (tmp_path / "page.html").read_text()


def test_figures_of_a_report_add_up() -> None:
    report = Report(keep=2)
    leaking = text("12 * 3 = 36", "the 36 again")
    for number, written in enumerate(
        [leaking, text("12 * 3 = 36", "7 * 8 = 56"), leaking, leaking]
    ):
        one = Sample(written, PARASON, source="12 * 3 = 36" + "y" * (11 * (number == 2)))
        report.add(str(number), one, Checks(survived=0.8).run(one))
    assert (report.rows, report.found) == (4, 3)
    assert report.kinds == {"leak": 3, "lost_text": 1}
    assert report.branches == {2: 4}
    assert sum(report.shares.values()) == 4
    # The gravest first, and of equal ones the earlier.
    assert [name for name, _, _ in report.worst()] == ["2", "0"]


def test_real_traces_name_the_malformed_row(shared_data: Path, cli: Cli, tmp_path: Path) -> None:
    path = shared_data / "traces" / "parallel_r1_gsm8k.jsonl"
    page = tmp_path / "page.html"
    said = cli("curate", "check", path, "--html", page).stdout
    assert "parallel-r1/gsm8k-475: missing_close: <Summary> is not closed" in said
    assert "answer_first" in said
    assert "The 20 worst rows" in page.read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read_by_everybody(
    browser: Any, tmp_path: Path, cli: Cli, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    path = tmp_path / "samples.jsonl"
    rows = [{"id": str(n), "text": text("12 * 3 = 36", "the 36 again")} for n in range(3)]
    write_records(path, rows)
    cli("curate", "check", path, "--dialect", "parason", "--html", tmp_path / "page.html")
    page = browser.new_page(color_scheme=scheme)
    page.goto((tmp_path / "page.html").as_uri())
    page.locator("summary").first.click()
    assert page.locator("mark").first.inner_text() == "36"
    assert page.locator("svg").count() == 2
    found = axe.Axe().run(page)
    page.close()
    assert found.violations_count == 0, found.generate_report()


def test_every_kind_is_explained() -> None:
    assert set(NAMES) <= set(KINDS)
