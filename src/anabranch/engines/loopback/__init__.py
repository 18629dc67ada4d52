"""A small server that speaks the completions protocol on the loopback interface, for tests.

It has no model: a script says what each request generates. It streams as vLLM does, or, by its
:class:`Manners`, as servers do that know less; and it fails on order. It keeps a record of every
request, and of whether the client left. Run it in an event loop (``async with``) or in a thread
of its own (``with``).
"""

from anabranch.engines.loopback.chat import ChatReply, ChatServer
from anabranch.engines.loopback.data import Fault, Manners, Reply, Script, Served
from anabranch.engines.loopback.server import LoopbackServer

__all__ = [
    "ChatReply",
    "ChatServer",
    "Fault",
    "LoopbackServer",
    "Manners",
    "Reply",
    "Script",
    "Served",
]
