"""Carries a document over to another dialect, as far as the meaning allows, and says what is lost.

Nothing is made up: a plan that the target needs and the source lacks gets empty titles, and that
is said. What cannot be carried over at all is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from anabranch.dialects.description import WHITE, Dialect, Tag
from anabranch.dialects.document import Block, Branch, Document, PlanItem, TextPart
from anabranch.dialects.format_rules import check_format
from anabranch.dialects.tags import tag_table
from anabranch.errors import DialectError

Parts = list[TextPart | Block]


def convert(document: Document, source: Dialect, target: Dialect) -> tuple[Document, list[str]]:
    """The document in another dialect.

    Args:
        document: a well-formed document of ``source``.
        source, target: the two dialects.

    Returns:
        a document that :func:`anabranch.dialects.write` writes in ``target``, and a sentence for
        each thing that is lost or had to be guessed.

    Raises:
        DialectError: the document is malformed, nests blocks where ``target`` cannot, has more
            branches than it allows, or a text spells one of its tags.
    """
    for finding in check_format(document, source):
        if finding.is_error and finding.code != "foreign_tag":
            raise DialectError(f"cannot convert: {finding.code}: {finding.message}")
    job = _Conversion(source, target)
    parts = job.line(_joined(document.parts))
    parts = job.reasoning(parts)
    converted = Document(_joined(parts))
    for finding in check_format(converted, target):
        if finding.is_error and finding.code != "foreign_tag":
            raise DialectError(f"cannot be {target.name}: {finding.code}: {finding.message}")
    return converted, job.sentences()


class _Conversion:
    def __init__(self, source: Dialect, target: Dialect) -> None:
        self.source, self.target = source, target
        self.lost: Counter[str] = Counter()

    def sentences(self) -> list[str]:
        return [
            what + (f" ({count} times)" if count > 1 else "") for what, count in self.lost.items()
        ]

    # Blocks.

    def line(self, parts: Parts) -> Parts:
        made: Parts = []
        for at, part in enumerate(parts):
            if isinstance(part, TextPart):
                made.append(TextPart(self.text(part.text)))
                continue
            following = parts[at + 1] if at + 1 < len(parts) else None
            after = following if isinstance(following, TextPart) else None
            block = self.block(part)
            made.append(block)
            if self.target.merge is None and part.merge is not None:
                made.append(TextPart(self.merge_as_text(part.merge, after)))
            elif self.target.merge is not None and part.merge is None:
                block.merge, rest = self.text_as_merge(after)
                if after is not None:
                    parts[at + 1] = TextPart(rest)
        return made

    def block(self, block: Block) -> Block:
        branches = [self.branch(place, branch) for place, branch in enumerate(block.branches, 1)]
        titles = {item.number: item.title for item in block.plan}
        plan = []
        if self.target.plan is not None:
            for old, new in zip(block.branches, branches, strict=True):
                plan.append(PlanItem(new.number, new.kind, titles.get(old.number, "")))
            if self.source.plan is None:
                self.lost["a plan has empty titles: the source has none"] += 1
        elif any(titles.values()):
            self.lost["the titles of a plan are dropped"] += 1
        merge = None if block.merge is None else self.text(block.merge)
        return Block(plan, branches, merge if self.target.merge is not None else None)

    def branch(self, place: int, branch: Branch) -> Branch:
        parts: Parts = []
        if branch.parts:
            if not self.target.nesting:
                raise DialectError(f"{self.target.name} cannot hold a block inside a branch")
            parts = self.line(list(branch.parts))
        text = "" if branch.parts else self.text(branch.text)
        return Branch(place, self.kind(branch.kind), text, parts)

    def kind(self, kind: str) -> str:
        """The target's kind for a branch, alternatives staying alternatives where it can say so."""
        target = self.target
        known = [target.branch_kind] if target.plan is None else list(target.plan.items)
        alternative = self.source.is_or(kind)
        if kind in known:
            new = kind
        else:
            same = [other for other in known if target.is_or(other) == alternative]
            new = same[0] if same else known[0]
        if target.is_or(new) != alternative:
            meaning = "one success is enough" if alternative else "all are needed"
            self.lost[f"a branch changes from {kind} to {new}: that {meaning} is lost"] += 1
        elif new != kind and target.plan is not None and self.source.plan is not None:
            self.lost[f"a branch changes from {kind} to {new}"] += 1
        return new

    # Merges.

    def merge_as_text(self, merge: str, after: TextPart | None) -> str:
        self.lost["a merge becomes text behind its block"] += 1
        if not merge:
            return ""
        tail = "" if after is None or after.text[:1] in ("", *WHITE) else "\n"
        return f"\n{merge}{tail}"

    def text_as_merge(self, after: TextPart | None) -> tuple[str, str]:
        """A summary from the first paragraph behind a block, and what remains of the text."""
        text = "" if after is None else after.text.lstrip(WHITE)
        stops = [text.find(stop) for stop in self._paragraph_ends()]
        end = min([stop for stop in stops if stop >= 0], default=len(text))
        summary = text[:end].rstrip(WHITE)
        if not summary:
            self.lost["a summary is empty: no text follows its block"] += 1
            return "", "" if after is None else after.text
        self.lost["a summary is the first paragraph behind its block"] += 1
        return self.text(summary), text[len(summary) :]

    def _paragraph_ends(self) -> list[str]:
        return ["\n\n", *(end for _, end in _pairs(self.source.think))]

    # Reasoning tags and texts.

    def text(self, text: str) -> str:
        """A text of the source; refused where it would read as a tag of the target."""
        own = [tag for pair in _pairs(self.source.think) for tag in pair]
        for match in tag_table(self.target).marks.finditer(text):
            if match.group() not in own:
                raise DialectError(f"a text holds {match.group()}, a tag of {self.target.name}")
        return text

    def reasoning(self, parts: Parts) -> Parts:
        old, new = self.source.think, self.target.think
        if self.source.answer_prefix != self.target.answer_prefix:
            self.lost[f"the answer is still written with {self.source.answer_prefix!r}"] += 1
        if old is None and new is None:
            return parts
        if old is None:
            return self.wrap(parts)
        if new is None:
            self.lost[f"the reasoning tags {old.open} are dropped"] += 1
        return _replaced(parts, lambda text: self.without_own(text, new))

    def without_own(self, text: str, new: Tag | None) -> str:
        """The text with ``new`` for the source's reasoning tags, or without any."""
        white = self.source.spacing.think
        for begin, end in _pairs(self.source.think):
            if new is None:
                text = text.replace(begin + white, "").replace(white + end, "")
            text = text.replace(begin, new.open if new else "")
            text = text.replace(end, new.close if new else "")
        return text

    def wrap(self, parts: Parts) -> Parts:
        """Put the target's reasoning tags around everything before the answer."""
        think, white = self.target.think, self.target.spacing.think
        assert think is not None
        head: Parts = [TextPart(think.open + white)]
        prefix = self.source.answer_prefix
        last = parts[-1] if parts else None
        if isinstance(last, TextPart) and prefix and prefix in last.text:
            at = last.text.rindex(prefix)
            before, answer = last.text[:at].rstrip(WHITE), last.text[at:]
            parts = [*parts[:-1], TextPart(before)]
            self.lost[f"the reasoning is taken to end before {prefix!r}"] += 1
        else:
            answer = ""
            self.lost["the reasoning is taken to be the whole text"] += 1
        return [*head, *parts, TextPart(f"{white}{think.close}{white if answer else ''}{answer}")]


def _pairs(think: Tag | None) -> list[tuple[str, str]]:
    """The forms in which reasoning tags may stand in a text."""
    names = () if think is None else (think.name, *think.aliases)
    return [(Tag(name).open, Tag(name).close) for name in names]


def _replaced(parts: Parts, change: Callable[[str], str]) -> Parts:
    return [TextPart(change(p.text)) if isinstance(p, TextPart) else p for p in parts]


def _joined(parts: Parts) -> Parts:
    made: Parts = []
    for part in parts:
        if isinstance(part, TextPart) and made and isinstance(made[-1], TextPart):
            made[-1] = TextPart(made[-1].text + part.text)
        elif isinstance(part, Block) or part.text:
            made.append(part)
    return made
