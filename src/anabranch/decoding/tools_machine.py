"""Fork and join by tool calls: the machine for chat APIs, told what came back, without I/O.

It is the fork-join machine with other means: a fork is a call of the tool (several calls in one
message are one block), a branch is a conversation of its own, and the join is the tool's result.
Limits, admission, budgets, join policies, retries, seeds and the record are the machine's own.
Text only: ids are the local tokenizer's, and the server's count of a call's tokens is what is
booked where it gives one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from anabranch.decoding import forks, races
from anabranch.decoding.admission import admit, share_of
from anabranch.decoding.events import BlockOpened, Forced, Joined, LimitHit, Output
from anabranch.decoding.machine import Machine
from anabranch.decoding.setup import Setup
from anabranch.decoding.state import BlockState, BranchState, Line, Live
from anabranch.decoding.tools import (
    ANSWER_NOW,
    NAME,
    Asked,
    assistant_message,
    branch_messages,
    fork_tool,
    read_calls,
    result_message,
    written,
)
from anabranch.dialects import PlanItem
from anabranch.engines.base import Chunk
from anabranch.engines.chat_call import ChatCall, ChatChunk, Message
from anabranch.records import FinishReason, RequestKind

#: Messages with calls that come to nothing, until a line has to do without the tool.
_PATIENCE = 2


@dataclass(slots=True)
class Talk(Line):
    """A line with its conversation.

    Attributes:
        asked: what its last message called.
        result: what it has said since it began.
        errors: messages whose calls came to nothing.
    """

    messages: list[Message] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    result: str = ""
    errors: int = 0


class ToolsMachine(Machine):
    """One answer from a conversation. ``setup.messages`` begins it.

    Attributes:
        chats: the conversation that goes with each call that was ordered and has not ended.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.main = Talk(messages=list(setup.messages))
        self.chats: dict[int, ChatCall] = {}
        self._last: dict[int, ChatChunk] = {}

    def feed(self, request: int, chunk: Chunk, now: float = 0.0) -> list[Output]:
        """A piece of an answer; the last is a :class:`ChatChunk`."""
        live = self.calls.live.get(request)
        if live is None:
            return []
        self.now = now
        self._take(live, chunk.text, now)
        if chunk.finish is None and self.setup.policy.counts_tokens and live.block is not None:
            races.ask(self, live.block)
        if chunk.finish is not None:
            assert isinstance(chunk, ChatChunk)
            self._last[request] = chunk
            for call in chunk.tool_calls:
                self._take(live, written(call), now)
            live.cached = chunk.cached_tokens
            for note in chunk.notes:
                self.note("cap_ignored", note, live)
            self._complete(live, chunk.finish, None)
        return self._drain()

    def _take(self, live: Live, text: str, now: float) -> None:
        """Book new text; the local count cannot pass the cap, which is the server's."""
        if text:
            ids = tuple(self.setup.tokenizer.encode(text))
            self.calls.append_text(live, ids, text, now)

    def _send(
        self,
        kind: RequestKind,
        line: Line,
        block: BlockState | None,
        branch: BranchState | None,
        attempt: int,
    ) -> None:
        assert isinstance(line, Talk)
        room, limit = self._room(kind, line)
        if room <= 0:
            if branch is not None and block is not None:
                self._end_branch(block, branch, "truncated")
            else:
                self.exhausted(line, limit)
            return
        live = Live(kind, line, tuple(line.context), attempt, block, branch, room, limit)
        live.started = self.now
        live.scored = False
        live.request = len(self.record.requests)
        sampling = self.setup.sampling
        tools = self._tools(line)
        must = bool(tools) and line is self.main and self._opened < self.setup.min_blocks
        self.calls.begin(live, ())
        self.chats[live.request] = ChatCall(
            messages=tuple(line.messages),
            max_tokens=room,
            tools=tools,
            tool_choice=NAME if must else "",
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=live.seed,
            affinity=self.setup.affinity or self.setup.id,
        )

    @property
    def _opened(self) -> int:
        return len(self.record.blocks) + len(self.open_blocks)

    def _tools(self, line: Talk) -> tuple[dict[str, object], ...]:
        """The tool, where a fork of one branch at least would be admitted."""
        if line.answering or line.errors >= _PATIENCE or self.setup.mode == "sequential":
            return ()
        admitted, _ = admit(self, line, [PlanItem(1, "subtask", "")])
        return (fork_tool(self.setup.limits.max_branches),) if admitted else ()

    def _complete(self, live: Live, finish: FinishReason, stop: str | None) -> None:
        request, line = live.request, live.line
        assert isinstance(line, Talk)
        self.chats.pop(request, None)
        chunk = self._last.pop(request, None)
        size = self._book(live, chunk)
        output = self.calls.end(live, finish, stop, self.now)
        if chunk is not None and chunk.counted_tokens is not None:
            self.record.counted(request, chunk.counted_tokens)
        line.path += size
        line.own += size
        content = chunk.content if chunk is not None else live.text
        if finish == "length":
            line.context.append(output)
            line.messages.append(assistant_message(content, ()))
            line.result += content
            self._cut_short(live)
            return
        calls = chunk.tool_calls if chunk is not None else ()
        if calls and not line.answering and line.errors <= _PATIENCE:
            self._fork(live, output, content, read_calls(calls))
            return
        line.context.append(output)
        line.messages.append(assistant_message(content, ()))
        line.result += content
        self._ended(live, content)

    def _book(self, live: Live, chunk: ChatChunk | None) -> int:
        """Put the server's count in the place of the local one, which the budget has so far."""
        booked = min(len(live.ids), live.cap)
        counted = chunk.counted_tokens if chunk is not None else None
        size = len(live.ids) if counted is None else counted
        self.budget.spent += size - booked
        place: Line | None = live.line
        while place is not None:
            place.spent += size - booked
            place = place.parent
        return size

    def _cut_short(self, live: Live) -> None:
        if live.block is not None and live.branch is not None:
            self.note(f"limit:{live.limit}", f"branch {live.branch.number} was cut", live)
            self.emit(LimitHit(live.limit, f"branch {live.branch.number} cut"))
            self._end_branch(live.block, live.branch, "truncated")
        else:
            self.exhausted(live.line, live.limit)

    def _ended(self, live: Live, content: str) -> None:
        if not content.strip():
            where = f"branch {live.branch.number}" if live.branch else "the answer"
            self.note("no_answer", f"{where} has no content", live)
        if live.block is not None and live.branch is not None:
            outcome = "closed" if content.strip() else "unclosed"
            self._end_branch(live.block, live.branch, outcome)
        else:
            self.finish("answered" if content.strip() else "protocol_error")

    def _end_branch(self, block: BlockState, branch: BranchState, outcome: str) -> None:
        line = branch.line
        assert isinstance(line, Talk)
        _, found, answer = line.result.rpartition("</think>")
        text = (answer if found else line.result).strip()
        body = self.record.force(text) if text else []
        forks._close(self, block, branch, outcome, body)  # type: ignore[arg-type]

    # Forks and joins ---------------------------------------------------------------------------

    def _fork(self, live: Live, output: int, content: str, asked: list[Asked]) -> None:
        line = live.line
        assert isinstance(line, Talk)
        line.asked = asked
        base = list(line.context)
        before = list(line.messages)
        line.context.append(output)
        line.messages.append(assistant_message(content, [one.call for one in asked]))
        for one in asked:
            if one.error:
                self.note("tool_call", one.error, live)
        items = [item for one in asked for item in one.items]
        if not items:
            self._answer_calls(line, {})
            self._after_errors(live)
            return
        admitted, limit = admit(self, line, items)
        if limit:
            rule = self.setup.limits.on_refused_fork
            count = 0 if rule != "fewer" else len(admitted)
            self.note("fork_refused", f"{limit}: {count} of {len(items)} branches start", live)
            self.emit(LimitHit(limit, rule))
            if rule == "stop" and line is self.main:
                self.finish("truncated")
                return
            admitted = admitted[:count]
            if not admitted:
                line.asked = [replace(one, items=(), error=f"refused: {limit}") for one in asked]
                self._answer_calls(line, {})
                self._after_errors(live)
                return
        self._open_block(live, base, before, content, items, {item.number for item in admitted})

    def _after_errors(self, live: Live) -> None:
        """Nothing was forked. Who only makes bad calls goes on without the tool."""
        line = live.line
        assert isinstance(line, Talk)
        line.errors += 1
        if line.errors == _PATIENCE:
            self.note("tool_call", "no more calls are taken", live)
        self.resume(line)

    def _open_block(
        self,
        live: Live,
        base: list[int],
        before: list[Message],
        content: str,
        items: list[PlanItem],
        admitted: set[int],
    ) -> None:
        line = live.line
        line.blocks += 1
        outer = () if line.branch is None else (*line.block, line.branch)
        path = (*outer, line.blocks)
        assert isinstance(line, Talk)
        encode = self.setup.tokenizer.encode
        plan = sum(len(encode(written(one.call))) for one in line.asked)
        block = BlockState(path, line, live.request, min(plan, len(live.ids)), [], base)
        block.started = self.now
        for item in items:
            messages, added = branch_messages(before, content, item.title, item.kind)
            header = self.record.force(added)[0]
            own = Talk(path, item.number, [*base, header], line.path, parent=line)
            own.messages = messages
            is_or = item.kind in self.setup.dialect.or_kinds
            block.branches.append(
                BranchState(item.number, item.kind, item.title, is_or, own, header)
            )
        self.opened(block)
        self.emit(BlockOpened(path, tuple((item.number, item.kind, item.title) for item in items)))
        starting = [b for b in block.branches if b.number in admitted]
        share = share_of(self, line, len(starting))
        for branch in block.branches:
            if branch not in starting:
                branch.outcome = "skipped"
        for branch in starting:
            branch.line.share = share
            self.emit(Forced(path, branch.number, branch.title))
        for branch in starting:
            if branch.outcome is None:  # no branch before it has decided the block
                self.sample_branch(block, branch)
        if not block.joining:
            races.ask(self, block)

    def join(self, block: BlockState) -> None:
        """The tool returns: each call gets what its branches came to."""
        line = block.line
        assert isinstance(line, Talk)
        line.path = max([line.path, *(b.line.path for b in block.branches)])
        line.fresh = ""
        results = {branch.number: _result(branch) for branch in block.branches}
        text = self._answer_calls(line, results)
        self.emit(Joined(block.path, text))
        self.joined(block)
        self.resume(line)

    def _answer_calls(self, line: Talk, results: dict[int, str]) -> str:
        texts = []
        for one in line.asked:
            found = [results[item.number] for item in one.items if item.number in results]
            text = f"error: {one.error}" if one.error else "\n\n".join(found)
            line.messages.append(result_message(one.call, text))
            texts.append(f"<tool_response>{text}</tool_response>")
        whole = "".join(texts)
        self.force(line, whole)
        return whole

    # The rest ----------------------------------------------------------------------------------

    def close_reasoning(self, line: Line) -> None:
        """Ask for the answer; the conversation then goes on without the tool."""
        assert isinstance(line, Talk)
        line.messages.append({"role": "user", "content": ANSWER_NOW})
        line.result = ""
        self.force(line, ANSWER_NOW)

    def _failed(self, live: Live, *, window: bool) -> None:
        self.chats.pop(live.request, None)
        if live.block is not None and live.branch is not None:
            live.branch.line.result = ""  # type: ignore[attr-defined]
            self._end_branch(live.block, live.branch, "failed")
        else:
            live.line.context.append(self.record.requests[live.request].output)
            self.finish("context_exhausted" if window else "failed")

    def _note_format(self) -> None:
        """A conversation has no tags to be checked."""


def _result(branch: BranchState) -> str:
    text = branch.text.strip()
    if branch.outcome == "closed" and text:
        shown = text
    elif text and branch.outcome not in ("cancelled", "failed"):
        shown = f"{text} [cut short]"
    else:
        shown = f"[{branch.outcome}]"
    return f"{branch.number}. {branch.title}\n{shown}"
