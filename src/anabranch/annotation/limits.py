"""How fast and how much may be asked: rates, a shared pause, and a budget that is never overspent.

The budget is reserved before a request and settled after it, from the caps that are sent; what an
answer really took is known only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from anabranch.errors import AnabranchError


class BudgetSpent(AnabranchError):
    """The next request might exceed the budget. Everything answered so far is kept."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for a million tokens."""

    prompt: float = 0.0
    sampled: float = 0.0

    def of(self, prompt: int, sampled: int) -> float:
        """What so many tokens cost."""
        return (prompt * self.prompt + sampled * self.sampled) / 1e6


class Budget:
    """Tokens and money of a run.

    Args:
        tokens, money: the most that may be spent; None is no limit.
        prices: of the model.
    """

    def __init__(
        self, tokens: int | None = None, money: float | None = None, prices: Prices | None = None
    ) -> None:
        self.tokens, self.money, self.prices = tokens, money, prices or Prices()
        self.requests = self.prompt = self.sampled = 0
        self._held = self._held_money = 0.0

    @property
    def cost(self) -> float:
        """Money spent so far."""
        return self.prices.of(self.prompt, self.sampled)

    def hold(self, prompt: int, sampled: int) -> tuple[int, float]:
        """Reserve what a request can take at most; give the result to :meth:`settle`.

        Raises:
            BudgetSpent: it might exceed the budget.
        """
        money = self.prices.of(prompt, sampled)
        spent = self.prompt + self.sampled
        if self.tokens is not None and spent + self._held + prompt + sampled > self.tokens:
            raise BudgetSpent(
                f"stopped before the budget of {self.tokens} tokens is exceeded "
                f"({spent} spent); a larger one goes on from here"
            )
        if self.money is not None and self.cost + self._held_money + money > self.money:
            raise BudgetSpent(
                f"stopped before the budget of {self.money:g} is exceeded "
                f"({self.cost:.4g} spent); a larger one goes on from here"
            )
        self._held += prompt + sampled
        self._held_money += money
        return prompt + sampled, money

    def settle(self, held: tuple[int, float], prompt: int = 0, sampled: int = 0) -> None:
        """Replace a reservation by what was taken; a request without answer took nothing."""
        self._held -= held[0]
        self._held_money -= held[1]
        if prompt or sampled:
            self.requests += 1
            self.prompt += prompt
            self.sampled += sampled


class Pace:
    """Spaces requests out, and stops all of them when the server asks for it.

    Args:
        requests, tokens: per minute; None is no limit.
        sleep: for tests.
    """

    def __init__(
        self,
        requests: float | None = None,
        tokens: float | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._gap = 60.0 / requests if requests else 0.0
        self._per_token = 60.0 / tokens if tokens else 0.0
        self._sleep = sleep
        self._next = self._until = 0.0

    async def turn(self) -> None:
        """Wait until the next request may be sent."""
        now = asyncio.get_running_loop().time
        while True:
            at = max(self._next, self._until)
            if at <= now():
                self._next = max(self._next, now()) + self._gap
                return
            await self._sleep(at - now())

    def took(self, tokens: int) -> None:
        """Tell how many tokens an answer took: they push the next request back."""
        if self._per_token:
            now = asyncio.get_running_loop().time()
            self._next = max(self._next, now) + tokens * self._per_token

    def pause(self, seconds: float) -> None:
        """Nobody sends before that many seconds have passed."""
        self._until = max(self._until, asyncio.get_running_loop().time() + seconds)
