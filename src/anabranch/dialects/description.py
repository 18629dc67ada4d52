"""What a dialect is: a declarative description of how a fork-join trajectory looks as text.

A :class:`Dialect` names the tags, says whether there is a plan and a merge, how branches are
numbered, and which white space the canonical text has. Scanner, parser, writer, grammar, format
rules and the decoding machine read it and hold no knowledge of any single dialect. The ready-made
descriptions are in :mod:`anabranch.dialects.builtin`, finding one by name in
:mod:`anabranch.dialects.registry`.

A block need not have a tag around it (``block`` is None), branches may hold blocks (``nesting``),
and a merge may stand inside the block or behind it (``merge_inside``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from anabranch.errors import DialectError

#: What counts as white space between the parts of a block, and is stripped from their texts.
WHITE = " \t\r\n"

_NAME = re.compile(r"[A-Za-z][A-Za-z_]*\Z")


@dataclass(frozen=True)
class Tag:
    """A pair of tags, ``<name>`` and ``</name>``.

    Attributes:
        name: as written; letters and underscores.
        aliases: other names which a reader takes for this tag and a writer never writes.
    """

    name: str
    aliases: tuple[str, ...] = ()

    @property
    def open(self) -> str:
        return f"<{self.name}>"

    @property
    def close(self) -> str:
        return f"</{self.name}>"

    def is_closed_in(self, text: str) -> bool:
        """Whether a text holds the closing tag, under any of its names."""
        return any(f"</{name}>" in text for name in (self.name, *self.aliases))

    def is_open_in(self, text: str) -> bool:
        """Whether a text ends inside this tag, under any of its names."""
        names = (self.name, *self.aliases)
        opened = max(text.rfind(f"<{name}>") for name in names)
        return opened > max(text.rfind(f"</{name}>") for name in names)


@dataclass(frozen=True)
class Plan:
    """The list of numbered titles that a block begins with.

    Attributes:
        tag: the tag around the list.
        items: the tag of one entry, by kind (``{"subtask": Tag("Subtask"), …}``). The first kind
            is the one that a writer uses for entries whose kind the dialect does not know.
    """

    tag: Tag
    items: Mapping[str, Tag] = field(hash=False)

    @property
    def default_kind(self) -> str:
        return next(iter(self.items))


@dataclass(frozen=True)
class Spacing:
    """White space of the canonical text, by place. A reader accepts any white space there."""

    think: str = "\n"  # before and after </think> where the runtime forces it
    block_open: str = "\n"  # after the block tag when a plan follows
    plan_open: str = "\n"  # after the plan tag
    item_open: str = ""  # between an entry's tag and "n:"
    title: str = " "  # between "n:" and the title
    item_close: str = ""  # before an entry's closing tag
    item_gap: str = "\n"  # between two entries
    plan_close: str = "\n"  # before the plan's closing tag
    fork: str = "\n"  # between the fork tag and the first branch
    number: str = "\n"  # between the branch tag and "n:", or the text where not numbered
    body_open: str = " "  # between "n:" and the text
    body_close: str = "\n"  # between the text and the branch's closing tag
    branch_gap: str = ""  # between two branches
    block_close: str = "\n"  # before the block's closing tag
    merge_gap: str = "\n"  # between the block and a merge outside it, the branches and one inside
    merge_open: str = "\n"  # after the merge tag
    merge_close: str = "\n"  # before the merge's closing tag
    answer: str = "\n\n"  # before the answer prefix where the runtime forces it

    @classmethod
    def none(cls) -> Spacing:
        """No white space anywhere."""
        return cls(**{place.name: "" for place in fields(cls)})


@dataclass(frozen=True)
class Dialect:
    """One way of writing fork-join trajectories.

    Attributes:
        name: what it is asked for by.
        title: what people call it.
        branch: the tag of a branch.
        block: the tag around a block, or None where there is none.
        plan: the plan that a block begins with, or None: then ``default_width`` branches open.
        merge: the tag of the text that joins the branches, or None.
        merge_inside: whether the merge is the last part of the block: before its closing tag, or
            the end of it where there is no tag around the block.
        legacy_merge: a tag read as a merge inside the block and never written.
        think: the tag around the reasoning, or None.
        numbered: whether a branch begins with ``n:``.
        nesting: whether a branch may hold blocks.
        dotted: whether numbers inside branch 2 are written ``2.1``, ``2.2``; otherwise each block
            counts from 1.
        min_branches, max_branches: how many branches a well-formed block has.
        default_width: branches per block where there is no plan.
        branch_kind: the kind of a branch that has no plan entry.
        or_kinds: kinds of which one success is enough; all others are needed together.
        tolerates: codes of :data:`anabranch.dialects.ERRORS` that are no errors here.
        spacing: white space of the canonical text.
        answer_prefix: what the answer begins with, outside the reasoning.
        prompt: the prompt of a model trained on the dialect; ``{problem}`` stands for the problem.
    """

    name: str
    title: str
    branch: Tag
    block: Tag | None = field(default_factory=lambda: Tag("Parallel"))
    plan: Plan | None = None
    merge: Tag | None = None
    merge_inside: bool = False
    legacy_merge: Tag | None = None
    think: Tag | None = None
    numbered: bool = True
    nesting: bool = False
    dotted: bool = False
    min_branches: int = 2
    max_branches: int = 50
    default_width: int = 2
    branch_kind: str = "branch"
    or_kinds: frozenset[str] = frozenset({"trial", "path"})
    tolerates: frozenset[str] = frozenset()
    spacing: Spacing = field(default_factory=Spacing)
    answer_prefix: str = ""
    prompt: str = "{problem}"

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for tag in self.tags():
            for name in (tag.name, *tag.aliases):
                if not _NAME.match(name):
                    raise DialectError(f"dialect {self.name!r}: {name!r} cannot name a tag")
                if name in seen:
                    raise DialectError(f"dialect {self.name!r}: tag {name!r} has two meanings")
                seen.add(name)
        if self.plan is not None and not self.plan.items:
            raise DialectError(f"dialect {self.name!r}: its plan has no kind of entry")
        if self.block is None and self.plan is None and self.merge is None:
            raise DialectError(f"dialect {self.name!r}: nothing says where a block ends")
        if not 1 <= self.min_branches <= self.default_width <= self.max_branches:
            raise DialectError(
                f"dialect {self.name!r}: min_branches, default_width and max_branches are "
                f"{self.min_branches}, {self.default_width}, {self.max_branches}"
            )
        if self.dotted and not (self.nesting and self.numbered):
            raise DialectError(f"dialect {self.name!r}: dotted numbers without numbers and nesting")
        for place in fields(self.spacing):
            if getattr(self.spacing, place.name).strip(WHITE):
                raise DialectError(f"dialect {self.name!r}: spacing.{place.name} is not white")

    def tags(self) -> Iterator[Tag]:
        """All tags, outermost first."""
        plan = () if self.plan is None else (self.plan.tag, *self.plan.items.values())
        every = (self.think, self.block, *plan, self.branch, self.merge, self.legacy_merge)
        return (tag for tag in every if tag is not None)

    @cached_property
    def tag_of(self) -> Mapping[str, Tag]:
        """The tag that a name stands for, aliases included."""
        return {name: tag for tag in self.tags() for name in (tag.name, *tag.aliases)}

    @cached_property
    def kind_of(self) -> Mapping[str, str]:
        """The kind of a plan entry by its tag's canonical name."""
        return {tag.name: kind for kind, tag in (self.plan.items.items() if self.plan else ())}

    def is_or(self, kind: str) -> bool:
        """Whether one success among branches of this kind is enough."""
        return kind in self.or_kinds

    def compact(self) -> Dialect:
        """The same dialect written without any white space, named ``NAME:compact``."""
        return replace(self, name=f"{self.name}:compact", spacing=Spacing.none())

    def render_prompt(self, problem: str) -> str:
        """The prompt for a problem (before any chat template)."""
        return self.prompt.replace("{problem}", problem)

    # Where control passes between model and runtime, and what the runtime writes there.

    @property
    def block_begin(self) -> str:
        """The tag with which the model begins a block."""
        if self.block is not None:
            return self.block.open
        return self.branch.open if self.plan is None else self.plan.tag.open

    @property
    def fork_tag(self) -> str:
        """The text after which the runtime opens the branches."""
        return self.block_begin if self.plan is None else self.plan.tag.close

    @property
    def fork_text(self) -> str:
        """Forced once behind the fork tag; every branch and the join see it."""
        return self.spacing.fork

    def label(self, number: int, owner: Sequence[int] = ()) -> str:
        """A number as it is written in a block.

        Args:
            number: of the entry or branch within its block.
            owner: the numbers of the branches that the block stands in, outermost first.
        """
        return ".".join(map(str, (*owner, number))) if self.dotted else str(number)

    def branch_header(self, number: int, owner: Sequence[int] = ()) -> str:
        """Forced in front of a branch, in its own request and in the join alike.

        Args:
            number: of the branch within its block.
            owner: the numbers of the branches that the block stands in, outermost first.
        """
        counter = f"{self.label(number, owner)}:" if self.numbered else ""
        return f"{self.branch.open}{self.spacing.number}{counter}"

    @property
    def branch_separator(self) -> str:
        """Forced between two branches of the join."""
        return self.spacing.branch_gap

    @property
    def branch_stop(self) -> str:
        """The text at which a branch ends."""
        return self.branch.close

    @property
    def close_branch(self) -> str:
        """Forced behind a branch that did not close itself."""
        return self.spacing.body_close + self.branch.close

    def stub(self, number: int, what: str) -> str:
        """What stands in the join, behind its header, for a branch that gave nothing.

        Args:
            number: the branch's number (the built-in dialects do not use it).
            what: a word such as ``cancelled`` or ``failed``.
        """
        return f"{self.spacing.body_open}[{what}]{self.close_branch}"

    def join_text(self) -> str:
        """Forced behind the last branch; where there is a merge, up to the merge's first token."""
        space = self.spacing
        close = "" if self.block is None else space.block_close + self.block.close
        if self.merge is None:
            return close
        merge = space.merge_gap + self.merge.open + space.merge_open
        return merge if self.merge_inside else close + merge

    @property
    def merge_stop(self) -> str | None:
        """The text at which the merge ends, or None where there is no merge."""
        return None if self.merge is None else self.merge.close

    @property
    def close_merge(self) -> str:
        """Forced behind a merge that did not close itself."""
        return "" if self.merge is None else self.spacing.merge_close + self.merge.close

    @property
    def after_merge(self) -> str:
        """Forced behind a closed merge: the block's closing tag where the merge is inside it."""
        if self.merge is None or not self.merge_inside or self.block is None:
            return ""
        return self.spacing.block_close + self.block.close

    @property
    def close_reasoning(self) -> str:
        """Forced to end the reasoning early, so that the model answers."""
        if self.think is not None:
            return f"{self.spacing.think}{self.think.close}{self.spacing.think}"
        return f"{self.spacing.answer}{self.answer_prefix}"
