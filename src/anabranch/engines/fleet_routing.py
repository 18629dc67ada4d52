"""Which replica takes a call: a ranking by affinity, by spread or by load. Pure functions.

Affinity is rendezvous hashing: every replica draws a score for the key, the highest wins. When a
replica goes, only its own keys move, and they spread over all others; when it comes back, exactly
those return.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

from anabranch.engines.fleet_replicas import Replica

#: affinity: calls with one key meet one replica and its prefix cache, and spill over to the key's
#: next replica when it is full. spread: calls with one key go to different replicas. least_load:
#: the replica with the fewest calls for its limit.
Routing = Literal["affinity", "spread", "least_load"]


def score(key: str, name: str) -> int:
    """A replica's score for a key: the same in every process."""
    text = f"{len(key)}:{key}{name}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def load(replica: Replica) -> tuple[float, int, int]:
    """How busy a replica is; of equally busy ones the least used comes first."""
    share = replica.running / replica.limit if replica.limit else 0.0
    return share, replica.running, replica.calls


def choose(routing: Routing, key: str, replicas: Iterable[Replica]) -> Replica | None:
    """The replica that takes the call, None if there is none to choose from.

    Args:
        key: the call's affinity key; without one the load decides.
        replicas: those that may take it now.
    """
    among = list(replicas)
    if not among:
        return None
    if routing == "least_load" or not key:
        return min(among, key=load)
    if routing == "spread":
        return min(among, key=lambda r: (r.keys[key], *load(r), -score(key, r.name)))
    return max(among, key=lambda r: score(key, r.name))
