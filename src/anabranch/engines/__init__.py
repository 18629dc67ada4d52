"""Sources of tokens behind one protocol: in-process, OpenAI-compatible servers, simulation."""

from anabranch.engines.base import Call, Capabilities, Chunk, Engine, Tokenizer

__all__ = ["Call", "Capabilities", "Chunk", "Engine", "Tokenizer"]
