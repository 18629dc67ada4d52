"""Fork-join decoding: the machine without I/O, its limits and joins, and the async decoder."""

from anabranch.decoding.decoder import decode, decode_many, run, solve
from anabranch.decoding.events import (
    Answer,
    BlockOpened,
    BranchClosed,
    Cancel,
    Event,
    Forced,
    Joined,
    LimitHit,
    Noted,
    Start,
    Token,
)
from anabranch.decoding.joins import FirstConclusive, JoinPolicy, WaitForAll, make_policy
from anabranch.decoding.machine import Machine
from anabranch.decoding.prompts import make_setup, render_prompt
from anabranch.decoding.script import trajectory_from_text
from anabranch.decoding.setup import Setup

__all__ = [
    "Answer",
    "BlockOpened",
    "BranchClosed",
    "Cancel",
    "Event",
    "FirstConclusive",
    "Forced",
    "JoinPolicy",
    "Joined",
    "LimitHit",
    "Machine",
    "Noted",
    "Setup",
    "Start",
    "Token",
    "WaitForAll",
    "decode",
    "decode_many",
    "make_policy",
    "make_setup",
    "render_prompt",
    "run",
    "solve",
    "trajectory_from_text",
]
