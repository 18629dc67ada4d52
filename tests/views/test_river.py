"""Rivers have the figures that the metrics count, and lose no text."""

import pytest

from anabranch.decoding import FirstConclusive, Setup, trajectory_from_text
from anabranch.dialects import get_dialect, parse
from anabranch.engines.symbols import CharTokenizer
from anabranch.metrics import document_metrics, trajectory_metrics
from anabranch.records import Limits, Trajectory
from anabranch.views import Fork, Lane, Piece, river_of_document, river_of_trajectory

PARASON = (
    "<think>\nfirst\n<Parallel>\n<Outlines>\n<Trial>1: up</Trial>\n<Trial>2: down</Trial>\n"
    "</Outlines>\n<Thread>\n1: short\n</Thread><Thread>\n2: \\boxed{7} much longer\n</Thread>\n"
    "</Parallel>\nso it is\n</think>\n\\boxed{7}"
)
NESTED = (
    "<Think>\nfirst\n<Parallel>\n<Goal>\n<Outline>\n1: a\n</Outline>\n<Outline>\n2: b\n"
    "</Outline>\n</Goal>\n"
    "<Path>\n1: begin\n<Parallel>\n<Goal>\n<Outline>\n1.1: c\n</Outline>\n<Outline>\n1.2: d\n"
    "</Outline>\n"
    "</Goal>\n<Path>\n1.1: deep\n</Path>\n<Path>\n1.2: deeper still\n</Path>\n<Conclusion>\nin\n"
    "</Conclusion>\n</Parallel>\nend\n</Path>\n<Path>\n2: other\n</Path>\n<Conclusion>\nout\n"
    "</Conclusion>\n</Parallel>\n</Think>\n7"
)


def decoded(text: str, dialect: str, **options: object) -> Trajectory:
    tokenizer = CharTokenizer()
    setup = Setup(
        dialect=get_dialect(dialect),
        tokenizer=tokenizer,
        prompt="Q",
        prompt_ids=tuple(tokenizer.encode("Q")),
        limits=Limits(max_depth=3),
        **options,  # type: ignore[arg-type]
    )
    return trajectory_from_text(text, setup)


def pieces(lane: Lane) -> list[Piece]:
    found: list[Piece] = []
    for item in lane.items:
        if isinstance(item, Fork):
            for one in item.lanes:
                found += pieces(one)
        else:
            found.append(item)
    return found


@pytest.mark.parametrize(("text", "dialect"), [(PARASON, "parason"), (NESTED, "multiverse")])
def test_length_is_the_critical_path_and_every_sampled_token_is_drawn(
    text: str, dialect: str
) -> None:
    trajectory = decoded(text, dialect)
    river = river_of_trajectory(trajectory)
    metrics = trajectory_metrics(trajectory)
    assert metrics.blocks == (1 if dialect == "parason" else 2)
    assert river.length == metrics.critical_path < metrics.total_tokens
    assert sum(piece.size for piece in pieces(river)) == metrics.total_tokens
    assert sum(p.size for p in pieces(river) if p.kind == "plan") == metrics.plan_tokens


def test_text_reads_on_as_the_answer() -> None:
    trajectory = decoded(PARASON, "parason")
    drawn = "".join(piece.text for piece in pieces(river_of_trajectory(trajectory)))
    # Each branch carries what the runtime wrote after the plan; the answer has that once.
    assert "".join(drawn.split()) == "".join(trajectory.text.split())


def test_a_lost_race_shows_what_was_sampled_before_it_was_lost() -> None:
    policy = FirstConclusive(lambda branch: "boxed" in branch.text)
    tokenizer = CharTokenizer()
    setup = Setup(
        dialect=get_dialect("parason"),
        tokenizer=tokenizer,
        prompt="Q",
        prompt_ids=tuple(tokenizer.encode("Q")),
        policy=policy,
    )
    text = PARASON.replace("1: short\n", "1: [cancelled]\n")
    river = river_of_trajectory(trajectory_from_text(text, setup, first=2))
    (fork,) = [item for item in river.items if isinstance(item, Fork)]
    assert [lane.outcome for lane in fork.lanes] == ["cancelled", "closed"]
    assert fork.policy.startswith("first_conclusive")
    assert fork.lanes[1].title == "down"


def test_log_probs_shade_whole_pieces_and_with_a_speller_single_tokens() -> None:
    trajectory = decoded(PARASON, "parason")
    for segment in trajectory.segments:
        if segment.origin == "sampled":
            segment.logprobs = tuple(-0.01 * place for place in range(len(segment.ids)))
    tokenizer = CharTokenizer()
    plain = pieces(river_of_trajectory(trajectory))
    assert all(p.mean is not None and not p.tokens for p in plain if p.size)
    spelt = pieces(
        river_of_trajectory(trajectory, lambda ids: [tokenizer.decode([token]) for token in ids])
    )
    # The token that ends the text has no text of its own in the record.
    assert all("".join(text for text, _ in p.tokens).startswith(p.text) for p in spelt if p.size)
    assert all(
        p.mean == pytest.approx(sum(v for _, v in p.tokens) / p.size) for p in spelt if p.size
    )


@pytest.mark.parametrize(("text", "dialect"), [(PARASON, "parason"), (NESTED, "multiverse")])
def test_texts_without_tokens_are_read_the_same_way(text: str, dialect: str) -> None:
    chosen = get_dialect(dialect)
    document = parse(text, chosen)
    river = river_of_document(document, chosen, lambda piece: len(piece.split()))
    forks = [item for item in river.items if isinstance(item, Fork)]
    assert [[lane.title for lane in fork.lanes] for fork in forks] in (
        [["up", "down"]],
        [["a", "b"]],
    )
    metrics = document_metrics(document, chosen, lambda piece: len(piece.split()))
    assert 0 < river.length <= metrics.critical_path
