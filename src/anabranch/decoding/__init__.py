"""Fork-join decoding: the machine without I/O, its limits and joins, and the async decoder."""

from anabranch.decoding.decoder import decode, decode_many, run, solve
from anabranch.decoding.events import (
    Answer,
    BlockOpened,
    BranchClosed,
    Cancel,
    Decided,
    Event,
    Forced,
    Joined,
    LimitHit,
    Noted,
    Start,
    Token,
    Wake,
)
from anabranch.decoding.joins import (
    BlockView,
    BranchView,
    Confidence,
    Deadline,
    Decision,
    FirstConclusive,
    JoinPolicy,
    Quorum,
    WaitForAll,
)
from anabranch.decoding.judges import Checked, Confident, Contains, OnText
from anabranch.decoding.machine import Machine
from anabranch.decoding.policy_names import make_policy
from anabranch.decoding.prompts import make_setup, render_prompt
from anabranch.decoding.script import trajectory_from_text
from anabranch.decoding.setup import MODES, Mode, Setup, read_mode

__all__ = [
    "MODES",
    "Answer",
    "BlockOpened",
    "BlockView",
    "BranchClosed",
    "BranchView",
    "Cancel",
    "Checked",
    "Confidence",
    "Confident",
    "Contains",
    "Deadline",
    "Decided",
    "Decision",
    "Event",
    "FirstConclusive",
    "Forced",
    "JoinPolicy",
    "Joined",
    "LimitHit",
    "Machine",
    "Mode",
    "Noted",
    "OnText",
    "Quorum",
    "Setup",
    "Start",
    "Token",
    "WaitForAll",
    "Wake",
    "decode",
    "decode_many",
    "make_policy",
    "make_setup",
    "read_mode",
    "render_prompt",
    "run",
    "solve",
    "trajectory_from_text",
]
