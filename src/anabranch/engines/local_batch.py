"""The step loop: which sequences run in the next forward, and what becomes of each new token.

All live requests advance together. A request first takes the longest prefix that any kept or live
sequence has (copied, not computed), then what is left of its prompt runs in one forward with
everything else, unless it is long: then in chunks of its own between the others' steps. A finished
row is freed at once and its keys and values are kept for those who continue from it. No thread and
no event loop is in here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.engines.local_cache import Kept
from anabranch.engines.local_forward import CachedForward, Forward
from anabranch.engines.local_grammar import masked
from anabranch.engines.local_job import Job
from anabranch.engines.local_prefix import PrefixStore, common_prefix
from anabranch.engines.sampling import sample, uniform

#: New tokens of a prompt that still run together with the other rows.
SHORT = 128
#: New tokens of a longer prompt per forward of its own.
CHUNK = 512
#: A request waits for a neighbour's prefill if it then need not compute so many tokens itself.
WORTH_WAITING = 32
#: A padded forward may have so many columns in all whatever the share of padding.
CHEAP = 256


@dataclass
class Statistics:
    """What was done since the start. Tokens are counted where they are computed or copied.

    Attributes:
        forwards: runs of the model.
        steps: those that gave every row a token.
        prefilled: prompt tokens computed.
        copied: prompt tokens whose keys and values came from another sequence.
        sampled: tokens sampled.
        rows: largest number of rows at once.
    """

    forwards: int = 0
    steps: int = 0
    prefilled: int = 0
    copied: int = 0
    sampled: int = 0
    rows: int = 0


@dataclass
class _Source:
    """Where a request's first tokens can be copied from: a row, or a kept sequence.

    ``promised`` is how many there will be once live prompts are computed.
    """

    length: int
    promised: int
    slot: int | None = None
    kept: Kept | None = None


@dataclass
class Batch:
    """All live requests of one model.

    Args:
        forward: how the model is run.
        max_rows: requests that run at once; more of them wait.
        max_cached_tokens: bound on kept finished sequences.
    """

    forward: Forward
    max_rows: int
    max_cached_tokens: int
    statistics: Statistics = field(default_factory=Statistics)
    #: Set when a request has ended; for whoever hands output over, to be unset there.
    ended: bool = False
    _waiting: deque[Job] = field(default_factory=deque)
    _rows: list[Job] = field(default_factory=list)
    _staged: Job | None = None

    def __post_init__(self) -> None:
        self.store: PrefixStore[Kept] = PrefixStore(self.max_cached_tokens)
        self._slots = self.forward if isinstance(self.forward, CachedForward) else None

    def add(self, job: Job) -> None:
        """Queues a request."""
        self._waiting.append(job)

    @property
    def jobs(self) -> list[Job]:
        """All requests that are not done."""
        staged = [self._staged] if self._staged is not None else []
        return [*self._rows, *staged, *self._waiting]

    @property
    def idle(self) -> bool:
        return not (self._rows or self._waiting or self._staged)

    def reset(self) -> list[Job]:
        """Drops everything, kept sequences too; gives the requests that were not done."""
        jobs = self.jobs
        self._waiting.clear()
        self._rows.clear()
        self._staged = None
        self.store.clear()
        return jobs

    def step(self) -> list[Job]:
        """One round: at most one chunk of a long prompt, and one token for the rows that run.

        Returns:
            the requests that got a token or ended.
        """
        self._drop_cancelled()
        self._admit()
        self._advance_staged()
        first, rows = self._choose()
        if not rows:
            return []
        logits = self.forward.step(rows, first)
        calls = [job.call for job in rows]
        numbers = [
            uniform(call.seed, job.sampled) if call.temperature > 0 else 0.0
            for call, job in zip(calls, rows, strict=True)
        ]
        tokens, logprobs = sample(logits, calls, numbers, masked(logits, rows))
        for job, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            job.accept(token, logprob)
        self._count(rows, first)
        gone = [first + at for at, job in enumerate(rows) if job.done]
        if gone:
            self._free(gone)
        return rows

    def _count(self, rows: Sequence[Job], first: int) -> None:
        statistics = self.statistics
        statistics.forwards += 1
        statistics.steps += first == 0
        statistics.sampled += len(rows)
        statistics.rows = max(statistics.rows, len(self._rows))

    def _drop_cancelled(self) -> None:
        gone = [at for at, job in enumerate(self._rows) if job.cancelled]
        if gone:
            self._free(gone)
        if self._staged is not None and self._staged.cancelled:
            self._staged, self.ended = None, True

    def _admit(self) -> None:
        """Gives rows to waiting requests, in order; some wait for a neighbour's prefix."""
        later: deque[Job] = deque()
        while self._waiting:
            job = self._waiting.popleft()
            if job.cancelled:
                self.ended = True
                continue
            full = len(self._rows) + (self._staged is not None) >= self.max_rows
            if full or not self._place(job):
                later.append(job)
            if full:
                break
        later.extend(self._waiting)
        self._waiting = later

    def _place(self, job: Job) -> bool:
        """Gives one request a row, or the stage if much of it must be computed."""
        slots = self._slots
        if slots is None:
            self._rows.append(job)
            return True
        source = self._find_prefix(job, slots)
        have = source.length
        if source.promised - have >= WORTH_WAITING:
            return False
        # With nobody to hold up, a chunk's worth runs at once.
        busy = bool(self._rows) or self._staged is not None
        long = len(job.tokens) - have > (SHORT if busy else CHUNK)
        if long and self._staged is not None:
            return False
        self._reserve(slots, len(self._rows) + 1, len(job.tokens))
        target = slots.stage if long else len(self._rows)
        if source.slot is not None:
            slots.copy(source.slot, target, have)
        elif source.kept is not None:
            slots.put(target, source.kept, have)
        job.length = job.cached = have
        self.statistics.copied += have
        self.statistics.prefilled += len(job.tokens) - have
        if long:
            self._staged = job
        else:
            self._rows.append(job)
        return True

    def _find_prefix(self, job: Job, slots: CachedForward) -> _Source:
        """The best source of a request's first tokens, among kept and live sequences."""
        # The last token is always computed: its logits are needed.
        usable = job.tokens[:-1]
        have, entry = self.store.find(usable)
        best = _Source(have, have, kept=entry.payload if entry is not None else None)
        live = [*enumerate(self._rows)]
        if self._staged is not None:
            live.append((slots.stage, self._staged))
        for slot, other in live:
            shared = common_prefix(other.tokens, usable)
            best.promised = max(best.promised, shared)
            if min(shared, other.length) > best.length:
                best.length, best.slot = min(shared, other.length), slot
        return best

    def _reserve(self, slots: CachedForward, rows: int, capacity: int) -> None:
        if rows <= slots.cache.rows and capacity <= slots.cache.capacity:
            return
        used = [(at, job.length) for at, job in enumerate(self._rows)]
        if self._staged is not None:
            used.append((slots.stage, self._staged.length))
        slots.reserve(rows, capacity, used)

    def _advance_staged(self) -> None:
        """Computes a chunk of the long prompt; hands it over once little is left."""
        job, slots = self._staged, self._slots
        if job is None or slots is None:
            return
        left = len(job.tokens) - job.length
        if left > SHORT:
            slots.step([job], slots.stage, limit=min(CHUNK, left - 1))
            self.statistics.forwards += 1
            left = len(job.tokens) - job.length
        if left <= SHORT:
            self._reserve(slots, len(self._rows) + 1, len(job.tokens))
            slots.copy(slots.stage, len(self._rows), job.length)
            self._rows.append(job)
            self._staged = None

    def _choose(self) -> tuple[int, list[Job]]:
        """The rows of the next forward: all, or only the new ones if padding would cost much."""
        rows = self._rows
        slots = self._slots
        if slots is None or not rows:
            return 0, rows[:]
        sizes = [len(job.tokens) for job in rows]
        self._reserve(slots, len(rows), max(sizes))
        missing = [size - job.length for size, job in zip(sizes, rows, strict=True)]
        width = max(missing)
        if width > 1 and len(rows) * width > max(CHEAP, 2 * sum(missing)):
            # New rows are the last ones: rows that already decode come before them.
            first = next(at for at, count in enumerate(missing) if count > 1)
            return first, rows[first:]
        return 0, rows[:]

    def _free(self, gone: Sequence[int]) -> None:
        """Frees rows; the last row moves into each hole, so rows stay neighbours."""
        rows, slots = self._rows, self._slots
        self.ended = True
        for at in sorted(gone, reverse=True):
            job = rows[at]
            if slots is not None and not job.cancelled and job.failure is None:
                self._keep(slots, at, job)
            last = len(rows) - 1
            if at != last:
                if slots is not None:
                    slots.copy(last, at, rows[last].length)
                rows[at] = rows[last]
            rows.pop()

    def _keep(self, slots: CachedForward, at: int, job: Job) -> None:
        self.store.add(job.tokens[: job.length], lambda: slots.take(at, job.length))
