"""The offline classifier on small texts, odd inputs, and hand labels of real traces."""

from pathlib import Path

import pytest

from anabranch.analysis.agreement import Label, Pair, agree, compare_labels, read_labels
from anabranch.analysis.classifier import classify, is_english
from anabranch.analysis.parallel import structure_of
from anabranch.dialects import get_dialect
from anabranch.errors import RecordError
from anabranch.jsonl import read_rows

HERE = Path(__file__).parent
LABELS = [HERE / "steps.labels.jsonl", HERE / "drawn.labels.jsonl"]


def kinds(*paragraphs: str) -> str:
    steps = classify("<think>" + "\n\n".join(paragraphs) + "</think>x").steps
    return " ".join(step.kind[:2] + "".join(str(n) for n in step.needs) for step in steps)


def test_cases_are_subtasks_beside_one_another() -> None:
    found = kinds(
        "We count the ways to get 40.",
        "Case 1: the first die shows 3, so there are 11 ways.",
        "Case 2: the first die shows 4, so there are 15 ways.",
        "So in total 11 + 15 = 26 ways.",
    )
    assert found == "se su0 su0 se12"


def test_attempts_are_trials_and_what_goes_on_in_them() -> None:
    found = kinds(
        "The sum is 26.",
        "Wait, let me check that again.",
        "- The first part was 11.",
        "Alternatively, we count from behind.",
        "Therefore, the answer is 26.",
    )
    assert found.split()[1:4] == ["tr0", "tr0", "tr0"]
    assert found.split()[4].startswith("se")


def test_an_attempt_goes_on_and_comes_to_an_end() -> None:
    going_on = ["It follows somehow."] * 8
    found = kinds("The sum is 26.", "Wait, is that right?", *going_on)
    assert [step[:2] for step in found.split()] == ["se", *["tr"] * 5, *["se"] * 4]
    assert kinds("One.", "Alternatively, two.", "So it is 4.", "Therefore, 4.").split()[2:] == [
        "tr1",
        "se2",
    ]


def test_items_of_a_list_stand_beside_one_another() -> None:
    found = kinds("The divisors:", "- 12 divides it", "- 15 divides it", "In total there are two.")
    assert found == "se su0 su0 se12"


@pytest.mark.parametrize(
    ("text", "english"),
    [
        (
            "So the answer is 7, and we can check it with the first equation that we have. " * 3,
            True,
        ),
        ("x^2 + 3 = 7 \\frac{1}{2} " * 50, True),
        ("", True),
        ("最初に 12 × 3 = 36 です。次に 36 + 5 = 41 です。" * 10, False),
        ("Сначала мы посчитаем сумму двух чисел, затем вычтем результат. " * 3, False),
        (
            "Zuerst berechnen wir die Summe der Zahlen, danach ziehen wir das Ergebnis ab. " * 3,
            False,
        ),
        ("Puis nous soustrayons le résultat du total et nous obtenons la réponse. " * 3, False),
    ],
    ids=["english", "formulas", "empty", "japanese", "russian", "german", "french"],
)
def test_other_languages_are_told(text: str, english: bool) -> None:
    assert is_english(text) is english


def test_a_part_that_uses_the_step_before_is_serial() -> None:
    assert kinds("It is 12 * 3 = 36.", "Next, compute 36 + 5 = 41.").split()[1] == "se0"


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("", 0),
        ("<think></think>", 0),
        ("no wrapper at all", 1),
        ("<think>one\n\ntwo", 2),
        ("<think>one</think>two<think>three</think>", 1),
        ("<|begin_of_thought|>one\n\ntwo<|end_of_thought|>three", 2),
        ("<think>最初に 12 × 3 = 36 です。\n\n次に 36 + 5 = 41 です。</think>41", 2),
        ("<think>" + "Wait, no. " * 16_700 + "</think>", 1),
        ("<think>" + "Wait, no.\n\n" * 15_000 + "</think>", 15_000),
    ],
    ids=["empty", "empty thought", "bare", "open", "two", "sky", "japanese", "long", "looping"],
)
def test_odd_traces_have_a_structure(text: str, steps: int) -> None:
    found = classify(text)
    assert len(found.steps) == steps
    assert all(text[step.start : step.end].strip() for step in found.steps)
    assert found.ideal_path(2) >= found.ideal_path()


def test_parallel_traces_say_themselves() -> None:
    text = (
        "<think>We add.<Parallel><Outlines><Subtask>1: a</Subtask>"
        "<Subtask>2: b</Subtask></Outlines>"
        "<Thread>1: 40 + 2</Thread><Thread>2: 7 + 8 + 9 + 10</Thread></Parallel>So 76.</think>76"
    )
    found = structure_of(text, get_dialect("parason"))
    assert [step.kind for step in found.steps] == [
        "serial", "serial", "subtask", "subtask", "serial",
    ]  # fmt: skip
    assert [step.needs for step in found.steps] == [(), (0,), (1,), (1,), (2, 3)]


def test_agreement_by_hand() -> None:
    counts = {("a", "a"): 20, ("a", "b"): 5, ("b", "a"): 10, ("b", "b"): 15}
    pairs = [Pair(*pair) for pair, count in counts.items() for _ in range(count)]
    found = agree(pairs)
    # The textbook case: 35 of 50 equal, half by chance.
    assert (found.accuracy[0], round(found.kappa[0], 2)) == (0.7, 0.4)
    assert 0.5 < found.accuracy[1] < 0.7 < found.accuracy[2] < 0.9
    assert found.recall("a") == (20, 25)
    assert found.precision("a") == (20, 30)
    assert found.kappa[1] < 0.4 < found.kappa[2]
    assert agree([Pair("a", "a")]).kappa == (1.0, 1.0, 1.0)
    # Labels of few traces say less than as many labels of many.
    few = agree([pair._replace(trace="ab"[pair.first == pair.second]) for pair in pairs])
    assert few.accuracy[1] == 0 and few.accuracy[2] == 1
    with pytest.raises(ValueError, match="no pair"):
        agree([])


def test_labels_are_places_and_kinds_only() -> None:
    allowed = {"file", "id", "start", "end", "kind", "needs_previous", "held_out"}
    for path in (*LABELS, HERE / "second.labels.jsonl"):
        assert {label.kind for label in read_labels(path)} == {"serial", "subtask", "trial"}
        assert all(set(row) == allowed for _, row in read_rows(path))
    drawn = read_labels(LABELS[1])
    assert len(drawn) == 100
    assert sum(label.held_out for label in drawn) == 60
    assert len({(label.file, label.id) for label in drawn}) > 60


def test_the_classifier_agrees_with_labels_by_hand_better_than_chance(shared_data: Path) -> None:
    labels = [label for path in LABELS for label in read_labels(path) if label.held_out]
    texts = {}
    for name in {label.file for label in labels}:
        for _, row in read_rows(shared_data / "traces" / name):
            texts[name, row["id"]] = row["text"]
    kinds_, needs = compare_labels(labels, lambda file, row: classify(texts[file, row]))
    inside = agree([pair for pair in kinds_ if pair.second != "none"])
    assert inside.accuracy[0] > 0.6
    assert inside.kappa[1] > 0.15
    assert agree(needs).kappa[1] > 0.1


def test_a_second_labeller_agrees_better_than_the_classifier() -> None:
    first = {(x.file, x.id, x.start): x.kind for x in read_labels(LABELS[0])}
    second = read_labels(HERE / "second.labels.jsonl")
    pairs = [Pair(first[x.file, x.id, x.start], x.kind, x.id) for x in second]
    assert agree(pairs).kappa[0] > 0.6


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            '{"file": "f", "id": "i", "start": 0, "end": 1, "kind": "and"}',
            "1: field 'kind': one of",
        ),
        ('{"file": "f", "id": "i", "kind": "trial"}', "missing 2 required"),
    ],
)
def test_bad_labels_are_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(line)
    with pytest.raises(RecordError, match=said):
        read_labels(path)


def test_places_outside_every_step_count_as_disagreement() -> None:
    kinds_, needs = compare_labels(
        [Label("f", "i", 90, 95, "serial")], lambda *_: classify("<think>one</think>")
    )
    assert [tuple(pair) for pair in kinds_] == [("serial", "none", "f/i")]
    assert needs == []


def test_a_place_inside_a_longer_step_follows_on_what_is_before_it_there() -> None:
    text = "<think>one\n\nAlternatively, two and more</think>"
    places = [(7, 10), (12, 30), (26, 38)]
    labels = [Label("f", "i", start, end, "trial", False) for start, end in places]
    _, needs = compare_labels(labels, lambda *_: classify(text))
    # The first place is that of the first step: there is nothing before it.
    assert [pair.second for pair in needs] == ["True", "True"]
