"""A dialect's tags in a tokenizer and its model: checked, or added as tokens of their own.

A new token's embedding row begins as the mean of the pieces of a short phrase that describes it.
Unused rows of a pretrained embedding are often all one vector, and tags that start from it stay
indistinguishable; so the new rows are compared with one another and with the unused ones before
anything is trained. Which tags there are is the dialect's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from anabranch.errors import ModelError, TokenizerError

#: Rows at least this similar (cosine) count as one and the same.
SAME = 0.95


def phrase_of(tag: str) -> str:
    """The describing phrase of a tag's text: ``</SubTask>`` is ``end of sub task``."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"[^A-Za-z]+", " ", tag)).lower().split()
    return " ".join(["end of" if tag.startswith("</") else "start", *words])


def tag_ids(tokenizer: Any, tags: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Ids of each tag.

    Raises:
        TokenizerError: the tokenizer cannot represent a tag: encoding and decoding it does not
            give it back.
    """
    found = {}
    for tag in tags:
        ids = tuple(tokenizer.encode(tag, add_special_tokens=False))
        unknown = getattr(tokenizer, "unk_token_id", None)
        back = tokenizer.decode(ids, skip_special_tokens=False)
        if not ids or back.strip() != tag or (unknown is not None and unknown in ids):
            raise TokenizerError(
                f"the tokenizer cannot represent the tag {tag!r} (it reads {back!r}): "
                "add it as a token of its own, or use another tokenizer"
            )
        found[tag] = ids
    return found


def tag_rows(tags: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Rows of the embeddings of those tags that are one token."""
    return sorted({ids[0] for ids in tags.values() if len(ids) == 1})


def add_tags(
    model: Any,
    tokenizer: Any,
    tags: Iterable[str] | Mapping[str, str],
    *,
    special: bool = False,
) -> dict[str, tuple[int, ...]]:
    """Make every tag one token, in place; tags that are one token already are left as they are.

    Args:
        model: a transformers model; its embedding grows only if there is no room.
        tokenizer: a transformers tokenizer.
        tags: the tags' texts, or a describing phrase for each.
        special: whether the tokenizer treats them as special; engines then drop them from text
            unless told not to, and stop strings made of them do not match.

    Returns:
        ids of each tag.

    Raises:
        ModelError: a new row is the same as another new one or as an unused one (cosine 0.95).
        TokenizerError: a tag or the describing phrase cannot be encoded.
    """
    phrases = dict(tags) if isinstance(tags, Mapping) else {tag: phrase_of(tag) for tag in tags}
    new = [tag for tag in phrases if len(_encode(tokenizer, tag)) != 1]
    pieces = {tag: _encode(tokenizer, phrases[tag]) for tag in new}
    for tag in new:
        if not pieces[tag]:
            raise TokenizerError(f"the phrase {phrases[tag]!r} for {tag!r} has no tokens")
    if new:
        _add(tokenizer, new, special)
        ids = {tag: _encode(tokenizer, tag)[0] for tag in new}
        if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        for weight in embedding_weights(model):
            _initialise(weight, {ids[tag]: pieces[tag] for tag in new})
        check_rows(model, ids, first_unused=len(tokenizer))
    return tag_ids(tokenizer, phrases)


def check_rows(model: Any, ids: Mapping[str, int], *, first_unused: int) -> None:
    """Make sure that tokens can be told apart by their embedding rows.

    Args:
        model: a transformers model.
        ids: the token of each tag.
        first_unused: number of the first row that belongs to no token.

    Raises:
        ModelError: naming the two tags, or the tag and the unused row.
    """
    names = list(ids)
    index = torch.tensor([ids[name] for name in names])
    for weight in embedding_weights(model):
        rows = weight.detach().float()
        picked = torch.nn.functional.normalize(rows[index.to(rows.device)], dim=-1)
        if not bool((picked.norm(dim=-1) > 0.5).all()):
            raise ModelError("a tag's embedding row is zero: it was never initialised")
        alike = picked @ picked.T
        alike.fill_diagonal_(-1.0)
        _refuse(alike, names, names)
        unused = torch.nn.functional.normalize(rows[first_unused:], dim=-1)
        if len(unused):
            labels = [f"unused row {first_unused + n}" for n in range(len(unused))]
            _refuse(picked @ unused.T, names, labels)


def _refuse(alike: Tensor, names: list[str], others: list[str]) -> None:
    worst = int(alike.argmax())
    row, column = divmod(worst, alike.shape[1])
    value = float(alike[row, column])
    if value >= SAME:
        raise ModelError(
            f"the embeddings of {names[row]} and {others[column]} cannot be told apart "
            f"(cosine {value:.3f}): give them other describing phrases"
        )


def _initialise(weight: Tensor, pieces: Mapping[int, list[int]]) -> None:
    with torch.no_grad():
        # All means first: a phrase may not see a row that was just written.
        means = {row: weight[ids].float().mean(0) for row, ids in pieces.items()}
        for row, mean in means.items():
            weight[row] = mean.to(weight.dtype)


def embedding_weights(model: Any) -> list[Tensor]:
    """Input and output embedding ``[vocabulary, hidden]``; one when they are tied."""
    first = model.get_input_embeddings().weight
    output = model.get_output_embeddings()
    second = output.weight if output is not None else first
    return [first] if second is first else [first, second]


def _add(tokenizer: Any, tags: list[str], special: bool) -> None:
    from transformers import AddedToken

    tokens = [AddedToken(tag, normalized=False, special=special) for tag in tags]
    tokenizer.add_tokens(tokens, special_tokens=special)


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids
