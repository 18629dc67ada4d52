"""Sources of tokens behind one protocol: in-process, OpenAI-compatible servers, simulation.

Importing this package imports no engine and no torch; each engine is a module of its own.
"""

from anabranch.engines.base import Call, Capabilities, Chunk, Engine, Tokenizer

__all__ = ["Call", "Capabilities", "Chunk", "Engine", "Tokenizer"]
