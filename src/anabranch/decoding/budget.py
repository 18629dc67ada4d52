"""How many tokens a call may sample: the arithmetic of the limits, and nothing else.

A call's cap is sent to the engine, so no limit is ever passed and cut back afterwards. What calls
in flight may still sample is held against the total until they end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.records import Limits

#: Cap of a call when neither a limit nor the model's window gives one: a server's own default may
#: be as small as 16 tokens, so a call always carries a cap.
DEFAULT_CAP = 32_768


@dataclass(slots=True)
class Budget:
    """Tokens spent and held of one trajectory.

    Attributes:
        limits: what the answer may cost.
        window: the model's context window in tokens, where known.
        spent: sampled tokens so far.
        held: request → tokens it may still sample.
    """

    limits: Limits
    window: int | None = None
    spent: int = 0
    held: dict[int, int] = field(default_factory=dict)

    def hold(self, request: int, cap: int) -> None:
        self.held[request] = cap

    def sample(self, request: int, count: int) -> None:
        """Book ``count`` sampled tokens of a request."""
        self.spent += count
        if request in self.held:
            self.held[request] = max(0, self.held[request] - count)

    def release(self, request: int) -> None:
        self.held.pop(request, None)

    def room(self, path: int, context: int, *, reserve: int) -> tuple[int, str]:
        """Tokens a call may sample, and the name of the limit that decides.

        Args:
            path: sampled tokens on the path to this call.
            context: length of its prompt.
            reserve: tokens kept back for the answer (0 for the answer itself).
        """
        choices = [(DEFAULT_CAP, "default_cap")]
        if (total := self.limits.max_total_tokens) is not None:
            free = total - self.spent - sum(self.held.values()) - reserve
            choices.append((free, "max_total_tokens"))
        if (longest := self.limits.max_path_tokens) is not None:
            choices.append((longest - path - reserve, "max_path_tokens"))
        if self.window is not None:
            choices.append((self.window - context - reserve, "window"))
        return min(choices, key=lambda choice: choice[0])

    def shares(self, count: int) -> int | None:
        """The largest equal share of the unheld total for ``count`` branches; None: unlimited."""
        total = self.limits.max_total_tokens
        if total is None:
            return None
        free = total - self.spent - sum(self.held.values()) - self.limits.answer_reserve
        return max(0, free // count)
