"""The dialects that come with the library: ThreadWeaver, Parason, Parallel-R1. Data only."""

from __future__ import annotations

from dataclasses import replace

from anabranch.dialects.description import Dialect, Plan, Spacing, Tag

_BOXED = "{problem} Let's think step by step and output the final answer within \\boxed{}."

_EXPLORE = (
    "Solve the problem below step by step. Whenever a step can be approached in more than one "
    "way, open a parallel block: write <Parallel>, then at least two independent lines of "
    "thought, each inside <Path> and </Path>, then </Parallel>. No path may refer to another. "
    "Directly after the block compare the paths inside <Summary> and </Summary>, and go on from "
    "there. You may open as many blocks as are useful. Finish with a line that reads "
    "'Final Answer:' followed by the answer.\n\nProblem: {problem}"
)

#: An outline per thread, all of them needed; the threads stay in the context after the join.
THREADWEAVER = Dialect(
    name="threadweaver",
    title="ThreadWeaver",
    think=Tag("think"),
    block=Tag("Parallel"),
    plan=Plan(Tag("Outlines", ("Goal",)), {"outline": Tag("Outline")}),
    branch=Tag("Thread", ("Path",)),
    legacy_merge=Tag("Conclusion"),
    branch_kind="outline",
    answer_prefix="\\boxed{",
    prompt=_BOXED,
)

#: Like ThreadWeaver, with outlines that say whether they divide the work or compete.
PARASON = replace(
    THREADWEAVER,
    name="parason",
    title="Parason",
    plan=Plan(
        Tag("Outlines"),
        {"subtask": Tag("Subtask"), "trial": Tag("Trial"), "outline": Tag("Outline")},
    ),
    branch=Tag("Thread"),
    branch_kind="subtask",
)

#: No plan: a fixed number of competing paths, then a summary behind the block.
PARALLEL_R1 = Dialect(
    name="parallel-r1",
    title="Parallel-R1",
    block=Tag("Parallel"),
    branch=Tag("Path"),
    merge=Tag("Summary"),
    numbered=False,
    branch_kind="path",
    tolerates=frozenset({"stray_text"}),  # its own check looks at tags only
    spacing=Spacing(body_open="", branch_gap="\n"),
    answer_prefix="Final Answer:",
    prompt=_EXPLORE,
)

#: The spacing that the published Parallel-R1 models were trained on: tags of a block adjoin.
PARALLEL_R1_TRAINED = replace(
    PARALLEL_R1,
    name="parallel-r1:trained",
    spacing=replace(
        PARALLEL_R1.spacing, fork="", number="", branch_gap="", block_close="", body_open="\n"
    ),
)

BUILTIN = (THREADWEAVER, PARASON, PARALLEL_R1, PARALLEL_R1_TRAINED)
