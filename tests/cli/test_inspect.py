"""`anabranch inspect` and `convert` on files of traces."""

from __future__ import annotations

import json

from anabranch.jsonl import write_records

CUT = "a\n<Parallel>\n<Path>\nx\n</Path>\n<Path>\ny\n</Path>\n</Parallel>\n<Summary>\ns"
GOOD = CUT + "\n</Summary>\nF"


def test_the_real_traces_are_counted_exactly(cli, shared_data):
    done = cli("inspect", shared_data / "traces/parallel_r1_gsm8k.jsonl", "--json")
    found = json.loads(done.stdout)
    assert found["dialect"].startswith("parallel-r1")
    assert (found["rows"], found["well_formed"]) == (341, 340)
    assert [row["id"].rpartition("/")[2] for row in found["malformed"]] == ["gsm8k-475"]
    assert "missing_close" in found["malformed"][0]["codes"]
    assert found["blocks_per_row"] == {"0": 3, "1": 261, "2": 59, "3": 12, "4": 6}
    assert found["branches_per_block"] == {"2": 427, "3": 11, "4": 1}


def test_the_dialect_of_other_traces_is_found(cli, shared_data):
    done = cli("inspect", shared_data / "traces/multiverse_1k_examples.jsonl", "--json")
    found = json.loads(done.stdout)
    assert found["dialect"] == "multiverse"
    assert (found["rows"], found["well_formed"]) == (24, 23)
    assert found["malformed"] == [{"id": "multiverse/9", "codes": ["one_branch"]}]
    assert found["diagnostics"] == {"one_branch": 1}
    assert found["metrics"]["acceleration_ratio"] > 1
    done = cli("inspect", shared_data / "traces/multiverse_plan_only.jsonl", "--json")
    found = json.loads(done.stdout)
    assert (found["dialect"], found["well_formed"]) == ("multiverse", 5)
    assert found["diagnostics"] == {"alias_tag": 5}
    done = cli("inspect", shared_data / "traces/threadweaver_page.jsonl", "--json")
    found = json.loads(done.stdout)
    assert (found["dialect"], found["well_formed"]) == ("threadweaver", 3)


def test_rows_and_figures_are_shown(cli, tmp_path):
    write_records(tmp_path / "t.jsonl", [{"id": "one", "text": GOOD}, {"id": "two", "text": CUT}])
    shown = cli("inspect", "t.jsonl").stdout
    assert "2 rows, 1 well formed, 1 malformed" in shown
    assert "malformed two: missing_close" in shown and "activation" in shown


def test_bad_lines_are_named_and_the_others_counted(cli, tmp_path):
    rows = [{"id": "one", "text": GOOD}, {"id": "two"}]
    lines = [json.dumps(row) for row in rows] + ["{nonsense", "[1]"]
    (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
    done = cli("inspect", "t.jsonl", "--json", code=1)
    found = json.loads(done.stdout)
    assert found["rows"] == 1 and len(found["unreadable"]) == 3
    assert "t.jsonl:2: field 'text'" in done.stderr
    assert "t.jsonl:3: not JSON" in done.stderr and "t.jsonl:4:" in done.stderr


def test_a_file_without_rows_or_that_is_missing(fails, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    assert "no rows" in fails("inspect", "empty.jsonl", "--dialect", "parason")
    assert "No such file" in fails("inspect", "missing.jsonl")


def test_an_unknown_dialect_lists_the_known(fails, tmp_path):
    write_records(tmp_path / "t.jsonl", [{"id": "one", "text": GOOD}])
    line = fails("inspect", "t.jsonl", "--dialect", "parasol")
    assert "parasol" in line and "parason" in line and "threadweaver" in line


def test_a_huge_text_and_odd_characters(cli, tmp_path):
    odd = "\u2028\x85\udc81\x00" + GOOD
    write_records(tmp_path / "t.jsonl", [{"id": "big", "text": "w " * 5_000_000}, {"text": odd}])
    found = json.loads(cli("inspect", "t.jsonl", "--json", "--dialect", "parallel-r1").stdout)
    assert found["rows"] == 2 and found["well_formed"] == 2


def test_conversion_says_what_is_lost_and_keeps_the_rest(cli, tmp_path):
    text = (
        "<think>\np\n<Parallel>\n<Outlines>\n<Subtask>1: a</Subtask>\n<Trial>2: b</Trial>\n"
        "</Outlines>\n<Thread>\n1: A\n</Thread><Thread>\n2: B\n</Thread>\n</Parallel>\nr\n"
        "</think>\n\\boxed{3}"
    )
    write_records(tmp_path / "t.jsonl", [{"id": "one", "text": text, "answer": "3"}])
    done = cli("convert", "t.jsonl", "--to", "threadweaver", "-o", "out.jsonl")
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert "<Outline>1: a</Outline>" in row["text"] and "Subtask" not in row["text"]
    assert row["answer"] == "3" and row["dialect"] == "threadweaver"
    assert "1 rows written" in done.stdout and "lost in 1 rows" in done.stdout


def test_a_malformed_row_stops_conversion_without_a_file(cli, fails, tmp_path):
    write_records(tmp_path / "t.jsonl", [{"id": "one", "text": GOOD}, {"id": "two", "text": CUT}])
    options = ("convert", "t.jsonl", "--from", "parallel-r1", "--to", "parallel-r1:compact")
    assert "two: missing_close" in fails(*options, "-o", "out.jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]
    assert "skipped two" in cli(*options, "-o", "out.jsonl", "--skip-malformed").stdout
    assert "overwrite" in fails(*options, "-o", "t.jsonl")
