"""Seeds derived from one root, so that every call of a trajectory has its own, reproducible one."""

from __future__ import annotations

import hashlib


def derive_seed(root: int, *parts: object) -> int:
    """A seed in ``[0, 2**31)`` which depends on the root and on every part, and on nothing else."""
    text = "\x1f".join(str(part) for part in (root, *parts))
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") & 0x7FFF_FFFF
