"""The dialects that come with the library. Data only.

ThreadWeaver, Parason and Parallel-R1 with its trained spacing; Multiverse and NPR, whose branches
may hold blocks. What published examples show of each is in ``docs/dialects.md``.
"""

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

_GUIDED = (
    "Solve the problem below. Reason in blocks. A block begins with <guideline>, one <plan>n: "
    "...</plan> for each of one to five strategies or subtasks that do not depend on each other, "
    "and </guideline>. Then every plan is carried out in a step of its own: <step>, n: and the "
    "reasoning, </step>. No step may refer to another. The block ends with <takeaway>, what "
    "follows from its steps, and </takeaway>. Open further blocks as long as they are needed, then "
    "give the solution with the final answer within \\boxed{}.\n\nProblem: {problem}"
)

#: Outlines that all count, a conclusion inside the block, blocks inside branches.
MULTIVERSE = Dialect(
    name="multiverse",
    title="Multiverse",
    think=Tag("Think", ("think",)),
    block=Tag("Parallel"),
    plan=Plan(Tag("Goal"), {"outline": Tag("Outline")}),
    branch=Tag("Path"),
    merge=Tag("Conclusion"),
    merge_inside=True,
    nesting=True,
    dotted=True,
    branch_kind="outline",
    spacing=Spacing(item_open="\n", item_close="\n", branch_gap="\n"),
    answer_prefix="\\boxed{",
    prompt="{problem}\n\nThink step by step and in parallel before answering.",
)

#: No tag around the block: a guideline opens it and the takeaway ends it. One step may be enough.
NPR = Dialect(
    name="npr",
    title="NPR",
    block=None,
    plan=Plan(Tag("guideline"), {"plan": Tag("plan")}),
    branch=Tag("step"),
    merge=Tag("takeaway"),
    merge_inside=True,
    nesting=True,
    min_branches=1,
    max_branches=5,
    branch_kind="plan",
    spacing=Spacing(branch_gap="\n"),
    answer_prefix="\\boxed{",
    prompt=_GUIDED,
)

BUILTIN = (THREADWEAVER, PARASON, PARALLEL_R1, PARALLEL_R1_TRAINED, MULTIVERSE, NPR)
