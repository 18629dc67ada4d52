"""When to send a request again that produced nothing, and after how long.

This is the only retry layer below the decoder: an error that comes out of an engine after retries
says so by not being retryable. Requests that produced a token are never repeated here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

#: Statuses that mean "not now": nothing was generated and the same request may do later.
BUSY = frozenset({408, 425, 429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Retries:
    """A bounded back-off.

    Attributes:
        attempts: how often a failed request is sent again, at most.
        backoff: seconds before the first repetition; doubled each time, up to ``longest``.
        longest: most seconds of one wait. A server's Retry-After may ask for more.
        deadline: seconds that all attempts and waits of one call may take together.
        jitter: share of a wait that is random, so that many callers do not return at once.
    """

    attempts: int = 2
    backoff: float = 0.5
    longest: float = 30.0
    deadline: float = 600.0
    jitter: float = 0.5

    def wait(
        self, attempt: int, elapsed: float, retry_after: float | None, rng: random.Random
    ) -> float | None:
        """Seconds to wait before repetition ``attempt`` (from 1), None to give up.

        Args:
            elapsed: seconds since the call began.
            retry_after: what the server asked for, in seconds.
        """
        if attempt > self.attempts:
            return None
        delay = min(self.longest, self.backoff * 2 ** (attempt - 1))
        delay *= 1 - self.jitter * rng.random()
        delay = max(delay, retry_after or 0.0)
        return delay if elapsed + delay < self.deadline else None


def parse_retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds from a Retry-After header in either of its forms; None where it makes no sense."""
    if not header:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(header)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())
