"""The ``fork`` tool as a model sees it: its description, how its calls are read, what it returns.

What happens when it is called is :mod:`anabranch.decoding.tools_machine`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.dialects import Dialect, Plan, PlanItem, Tag
from anabranch.engines.chat_call import Message, ToolCall

NAME = "fork"
KINDS = {"subtasks": "subtask", "trials": "trial"}

#: Tool calls are no tags in a text. What the machine wants of a dialect (names, kinds, stubs, the
#: end of the reasoning) is here; a record names it ``tools``.
TOOLS = Dialect(
    name="tools",
    title="Tool calls",
    think=Tag("think"),
    block=Tag("tool_call"),
    plan=Plan(Tag("branches"), {"subtask": Tag("subtask"), "trial": Tag("trial")}),
    branch=Tag("branch"),
    min_branches=1,
    branch_kind="subtask",
    prompt=(
        "Solve the problem below. Where parts of the work do not depend on each other, or where "
        "several ways are worth trying, call the tool fork once with all of them: they are worked "
        "on at the same time. Then give the final answer within \\boxed{}.\n\nProblem: {problem}"
    ),
)

ANSWER_NOW = "No room is left for more work. Give your final answer now, within \\boxed{}."


def fork_tool(most: int) -> dict[str, Any]:
    """The tool's description, for at most ``most`` branches."""
    branches = {
        "type": "array",
        "items": {"type": "string", "maxLength": 400},
        "minItems": 1,
        "maxItems": most,
        "description": "What each branch is to do, complete in itself: branches do not see each "
        "other.",
    }
    kind = {
        "type": "string",
        "enum": list(KINDS),
        "description": "subtasks: all of them are needed; trials: one success is enough.",
    }
    return {
        "type": "function",
        "function": {
            "name": NAME,
            "description": "Works on several branches at the same time and returns what each "
            "came to.",
            "parameters": {
                "type": "object",
                "properties": {"kind": kind, "branches": branches},
                "required": ["kind", "branches"],
                "additionalProperties": False,
            },
        },
    }


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of the tool, read: its entries by number in the block, or what is wrong with it."""

    call: ToolCall
    items: tuple[PlanItem, ...] = ()
    error: str = ""


def read_calls(calls: Sequence[ToolCall]) -> list[Asked]:
    """The calls of one message. Their branches are numbered through: they run at the same time."""
    asked: list[Asked] = []
    number = 0
    for call in calls:
        kind, titles, error = _read(call)
        items = [PlanItem(number + n, kind, title) for n, title in enumerate(titles, 1)]
        number += len(items)
        asked.append(Asked(call, tuple(items), error))
    return asked


def _read(call: ToolCall) -> tuple[str, list[str], str]:
    if call.name != NAME:
        return "", [], f"there is no tool {call.name!r}, only {NAME}"
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        return "", [], "the arguments are not JSON"
    if not isinstance(arguments, dict):
        return "", [], "the arguments are not an object"
    kind = arguments.get("kind", "subtasks")
    titles = arguments.get("branches")
    if kind not in KINDS:
        return "", [], f"kind is {kind!r}: use subtasks or trials"
    if not isinstance(titles, list) or not all(isinstance(one, str) for one in titles):
        return "", [], "branches is not a list of texts"
    wanted = [title.strip() for title in titles if title.strip()]
    if not wanted:
        return "", [], "branches is empty"
    return KINDS[kind], wanted, ""


def written(call: ToolCall) -> str:
    """A tool call as text, for the record."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = call.arguments
    body = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{body}</tool_call>"


def assistant_message(content: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """The model's own turn, as it is sent back to it. Reasoning is not sent back."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _as_json(call.arguments)},
            }
            for call in calls
        ]
    return message


def _as_json(arguments: str) -> str:
    """Templates parse the arguments: what is not JSON is sent back as a JSON text."""
    try:
        json.loads(arguments)
    except ValueError:
        return json.dumps({"unreadable": arguments})
    return arguments


def result_message(call: ToolCall, text: str) -> dict[str, Any]:
    """What the tool returns to the model."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def branch_messages(
    conversation: Sequence[Message], so_far: str, title: str, kind: str
) -> tuple[list[Message], str]:
    """The conversation of a branch, and the text that it has more than its parent.

    The task goes into the user's message where that is the last: some templates allow no two in a
    row.
    """
    notes = f"What is known so far:\n{so_far.strip()}\n\n" if so_far.strip() else ""
    manner = "Work only on this part" if kind == "subtask" else "Try only this way"
    task = f"{notes}{manner}, and end with what you found: {title}"
    last = conversation[-1] if conversation else {}
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        added = f"\n\n{task}"
        merged: Mapping[str, Any] = {**last, "content": last["content"] + added}
        return [*conversation[:-1], merged], added
    return [*conversation, {"role": "user", "content": task}], task
