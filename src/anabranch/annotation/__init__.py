"""Asking a model behind an endpoint for structured answers: prompts, reading, cache, costs."""

from anabranch.annotation.asking import AnswerError, Ask, AskFailed, Message
from anabranch.annotation.cache import AnswerCache
from anabranch.annotation.client import Annotator, Patience
from anabranch.annotation.limits import Budget, BudgetSpent, Pace, Prices
from anabranch.annotation.replies import parse_json

__all__ = [
    "Annotator",
    "AnswerCache",
    "AnswerError",
    "Ask",
    "AskFailed",
    "Budget",
    "BudgetSpent",
    "Message",
    "Pace",
    "Patience",
    "Prices",
    "parse_json",
]
