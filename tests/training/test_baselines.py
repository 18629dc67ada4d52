"""The same rows as one line, as plain causal text, and as Parallel-R1's structured variant."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tree_cases import groups, tiny_model

from anabranch.decoding import Setup, trajectory_from_text
from anabranch.dialects import (
    Block,
    Branch,
    Document,
    PlanItem,
    TextPart,
    get_dialect,
    parse,
    write,
)
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.errors import DialectError
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import DIALECT, reference_trajectory
from anabranch.lab.families import draw_distinct
from anabranch.lab.structure import prompt_of
from anabranch.records import Problem
from anabranch.training.attention import dense_allowed, dense_mask
from anabranch.training.audit import audit, use_tree_attention
from anabranch.training.baselines import one_line, seen, separator_of, sequential
from anabranch.training.layout import LayoutError, build_layout
from anabranch.training.loss import edge_logits, to_tensors
from anabranch.training.packing import collate, join
from anabranch.training.structured import (
    after_joins,
    mismatch,
    structured_attention,
    structured_layout,
)

TOKENIZER = load_tokenizer(bundled_model())
DIALECTS = ("threadweaver", "parason:compact", "parallel-r1", "parallel-r1:trained")


def words(rng, least=1):
    return "".join(rng.choice("abcde0123") for _ in range(rng.randint(least, 6)))


def random_document(dialect, seed, blocks=2):
    rng = random.Random(seed)
    parts = [TextPart(words(rng))]
    if dialect.think is not None:
        parts[0] = TextPart("<think>" + words(rng))
    kind = next(iter(dialect.plan.items)) if dialect.plan else dialect.branch_kind
    for _ in range(blocks):
        count = rng.randint(2, 4)
        plan = [PlanItem(n, kind, words(rng)) for n in range(1, count + 1)] if dialect.plan else []
        branches = [Branch(n, kind, words(rng)) for n in range(1, count + 1)]
        parts.append(Block(plan, branches, words(rng) if dialect.merge else None))
        parts.append(TextPart(words(rng)))
    if dialect.think is not None:
        parts.append(TextPart("</think>" + words(rng)))
    return Document(parts)


def random_trajectory(name, seed, blocks=2):
    dialect = get_dialect(name)
    prompt = "<bos>7?7[par]"
    setup = Setup(
        dialect=dialect,
        tokenizer=TOKENIZER,
        prompt=prompt,
        prompt_ids=tuple(TOKENIZER.encode(prompt)),
        problem=Problem(id="p", problem="7?7"),
        id=f"{name}-{seed}",
    )
    return trajectory_from_text(write(random_document(dialect, seed, blocks), dialect), setup)


def labels(trajectory):
    """Block and branch of every token of the finished text, read from the tags alone."""
    dialect = get_dialect(trajectory.dialect)
    opening, closing = (TOKENIZER.encode(t)[0] for t in (dialect.branch.open, dialect.branch.close))
    end = TOKENIZER.encode(dialect.block.close)[0]
    found, block, branch, inside = [], 0, 0, False
    for token in trajectory.ids:
        if token == opening:
            branch, inside = branch + 1, True
        if token == end:
            block, branch, inside = block + 1, 0, False
        found.append((block, branch) if inside else None)
        if token == closing:
            inside = None  # white space up to the next branch belongs to this one
        if inside is None and token != closing and token != opening:
            found[-1] = found[-2]
    # What follows the last closing tag of a block is the join.
    for at in range(len(found) - 1, 0, -1):
        if trajectory.ids[at] == end:
            back = at - 1
            while trajectory.ids[back] != closing:
                found[back] = None
                back -= 1
    return found


def expected(trajectory):
    """The definition: earlier tokens, but those of a sibling branch."""
    marks = labels(trajectory)
    size = len(marks)
    allowed = np.tril(np.ones((size, size), dtype=bool))
    for q in range(size):
        for k in range(q):
            mine, theirs = marks[q], marks[k]
            if mine and theirs and mine[0] == theirs[0] and mine[1] != theirs[1]:
                allowed[q, k] = False
    return torch.from_numpy(allowed)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("seed", range(4))
def test_structured_rows_hide_siblings_and_nothing_else(name, seed):
    trajectory = random_trajectory(name, seed)
    layout = structured_layout(trajectory)
    assert tuple(layout.ids) == trajectory.ids
    ends, positions = torch.from_numpy(layout.subtree_end)[None], torch.from_numpy(layout.positions)
    ours = after_joins(dense_allowed(ends), positions[None])[0]
    assert torch.equal(ours, expected(trajectory))


@pytest.mark.parametrize("name", DIALECTS)
def test_branches_share_their_start_and_the_join_follows_the_longest(name):
    trajectory = random_trajectory(name, 7)
    layout, marks = structured_layout(trajectory), labels(trajectory)
    for block in {mark[0] for mark in marks if mark}:
        branches = {}
        for at, mark in enumerate(marks):
            if mark and mark[0] == block:
                branches.setdefault(mark[1], []).append(at)
        starts = {layout.positions[at[0]] for at in branches.values()}
        assert starts == {layout.positions[branches[1][0] - 1] + 1}
        after = max(at[-1] for at in branches.values()) + 1
        deepest = max(layout.positions[at[-1]] for at in branches.values())
        assert layout.positions[after] == deepest + 1


@pytest.mark.parametrize("name", DIALECTS)
def test_structured_targets_are_those_of_the_tree(name):
    trajectory = random_trajectory(name, 3)
    tree, row = build_layout(trajectory), structured_layout(trajectory)
    for request in set(tree.request):
        assert list(tree.tokens[tree.request == request]) == list(
            row.tokens[row.request == request]
        )
    assert len(tree.tokens) == len(row.tokens)


def test_the_model_computes_the_structured_mask_also_in_packed_rows():
    model = tiny_model("Llama", vocab_size=160)
    use_tree_attention(model)
    layouts = [structured_layout(random_trajectory("parallel-r1", seed)) for seed in (1, 2)]
    batch = to_tensors(collate([join(layouts), layouts[0]]))
    with structured_attention(model), torch.no_grad():
        packed = edge_logits(model, batch)
        audit(model)
    alone = []
    for seed, layout in zip((1, 2, 1), [*layouts, layouts[0]], strict=True):
        allowed = expected(random_trajectory("parallel-r1", seed))
        mask = torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(torch.float32).min)
        with torch.no_grad():
            logits = model(
                input_ids=torch.from_numpy(layout.ids)[None],
                position_ids=torch.from_numpy(layout.positions)[None],
                attention_mask=mask[None, None],
            ).logits[0]
        alone.append(logits[torch.from_numpy(layout.rows)])
    assert torch.allclose(packed, torch.cat(alone), atol=1e-5)


@settings(max_examples=25)
@given(groups())
def test_trees_are_left_as_they_are(group):
    try:
        layout = build_layout(group)
    except LayoutError:
        return
    batch = to_tensors(collate([layout]))
    allowed = dense_mask(batch.subtree_end, torch.float32)[:, 0] == 0
    assert torch.equal(after_joins(allowed, batch.positions), allowed)


def test_what_has_no_structured_form():
    open_branch = random_trajectory("threadweaver", 1)
    block = open_branch.blocks[0]
    branches = (block.branches[0].model_copy(update={"outcome": "truncated"}), *block.branches[1:])
    blocks = [block.model_copy(update={"branches": branches}), *open_branch.blocks[1:]]
    with pytest.raises(LayoutError, match="branch 1 is truncated"):
        structured_layout(open_branch.model_copy(update={"blocks": blocks}))
    nested = [block.model_copy(update={"path": (1, 1, 1)})]
    with pytest.raises(LayoutError, match="no nested blocks"):
        structured_layout(open_branch.model_copy(update={"blocks": nested}))


def test_a_stock_engine_computes_the_tree_and_not_the_structured_variant():
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(bundled_model(), dtype=torch.float32)
    use_tree_attention(model)
    problems = draw_distinct(41, "chains", (3, 5), 2)
    found = mismatch(model, [reference_trajectory(p, "parallel", TOKENIZER) for p in problems])
    assert found.tokens > 20
    assert found.tree_max < 1e-3
    assert found.structured_max > 100 * found.tree_max


def test_seen_is_plain_causal_training_on_all_of_the_answer():
    trajectory = random_trajectory("threadweaver", 5)
    layout = seen(trajectory)
    prompt = len(trajectory.segments[0].ids)
    assert tuple(layout.ids) == trajectory.ids
    assert list(layout.positions) == list(range(len(layout)))
    assert set(layout.subtree_end) == {len(layout)}
    assert list(layout.rows) == list(range(prompt - 1, len(layout) - 1))
    assert tuple(layout.tokens) == trajectory.ids[prompt:]


@pytest.mark.parametrize("family", ["chains", "puzzle"])
def test_a_lab_answer_in_one_line_is_the_labs_own_sequential_answer(family):
    size = (3, 3) if family == "chains" else (2,)
    for problem in draw_distinct(6, family, size, 5):
        fork = reference_trajectory(problem, "parallel", TOKENIZER)
        line = sequential(
            fork, get_dialect(DIALECT), TOKENIZER, lambda text: prompt_of(text, "sequential")
        )
        if family == "chains":
            # The lab marks where its lines are put together; a join of branches has no such marks.
            ours = problem.solve("sequential").text().replace(".", "").replace("!", "")
            assert line.text == ours
        assert problem.check(line.text) and not line.blocks and len(line.requests) == 1
        assert line.prompt_text == prompt_of(problem.text, "sequential")


@pytest.mark.parametrize("name", [*DIALECTS, "multiverse"])
def test_one_line_keeps_every_text_in_order_and_no_tag(name):
    dialect = get_dialect(name)
    for seed in range(5):
        document = random_document(dialect, seed)
        text = one_line(document, separator_of(dialect))
        assert not parse(text, dialect).blocks
        wanted = []
        for part in document.parts:
            if isinstance(part, TextPart):
                wanted.append(part.text)
                continue
            texts = [b.text for b in part.branches] + ([part.merge] if part.merge else [])
            wanted.append(separator_of(dialect).join(texts))
        assert text == "".join(wanted)
    assert separator_of(get_dialect("parason:compact")) == ""
    assert separator_of(get_dialect("threadweaver")) == "\n\n"


def test_no_sequential_form_without_the_problem_or_of_a_malformed_answer():
    trajectory = random_trajectory("threadweaver", 2)
    dialect = get_dialect("threadweaver")
    bare = trajectory.model_copy(update={"problem": None})
    with pytest.raises(LayoutError, match="problem"):
        sequential(bare, dialect, TOKENIZER, str)
    broken = trajectory.model_copy(update={"final": trajectory.final[:-3]})
    with pytest.raises(DialectError):
        sequential(broken, dialect, TOKENIZER, str)
