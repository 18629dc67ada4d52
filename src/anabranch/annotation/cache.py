"""Answers of models, kept by the content of the question: nothing is paid for twice.

One SQLite file, safe against being killed at any moment; several processes may share it. What was
spent is kept beside each answer, for the run that paid for it.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anabranch.annotation.asking import Ask, Message
from anabranch.errors import RecordError

_TABLES = """
create table if not exists answers (
    key text primary key, text text not null, finish text not null,
    kind text not null, run text not null,
    prompt_tokens integer not null, sampled_tokens integer not null
) without rowid;
create index if not exists answers_of_run on answers (run);
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered, and how many tokens it took."""

    text: str
    finish: str = "stop"
    prompt_tokens: int = 0
    sampled_tokens: int = 0


def key_of(model: str, ask: Ask[object], messages: Sequence[Message]) -> str:
    """SHA-256 of everything that an answer depends on."""
    content = [
        model,
        [[message.role, message.content] for message in messages],
        ask.schema,
        ask.max_tokens,
        ask.temperature,
        ask.sample,
    ]
    line = json.dumps(content, ensure_ascii=True, sort_keys=True)
    return hashlib.sha256(line.encode("ascii")).hexdigest()


class AnswerCache:
    """The answers of one file.

    Args:
        path: made where it is not there.
        run: name under which what is spent is counted.

    Raises:
        RecordError: the file is not a cache, or cannot be written.
    """

    def __init__(self, path: Path, run: str = "") -> None:
        self.path, self.run = path, run
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path, timeout=30)
            self._base.execute("pragma journal_mode=wal")
            # A killed process loses nothing; a power cut at most the last answers.
            self._base.execute("pragma synchronous=normal")
            self._base.executescript(_TABLES)
        except (sqlite3.Error, OSError) as error:
            raise RecordError(f"cannot be used for answers: {error}", path=path) from error

    def get(self, key: str) -> Answer | None:
        """The answer with that key."""
        query = "select text, finish, prompt_tokens, sampled_tokens from answers where key = ?"
        row = self._base.execute(query, (key,)).fetchone()
        return None if row is None else Answer(json.loads(row[0]), *row[1:])

    def put(self, key: str, kind: str, answer: Answer) -> None:
        """Keep an answer; one that is there stays.

        Raises:
            RecordError: the disk is full, or the file cannot be written.
        """
        # As JSON in ASCII: lone surrogates survive, which SQLite's own text does not allow.
        tokens = (answer.prompt_tokens, answer.sampled_tokens)
        row = (key, json.dumps(answer.text), answer.finish, kind, self.run, *tokens)
        try:
            with self._base:
                query = "insert or ignore into answers values (?, ?, ?, ?, ?, ?, ?)"
                self._base.execute(query, row)
        except sqlite3.Error as error:
            raise RecordError(f"an answer cannot be kept: {error}", path=self.path) from error

    def spent(self) -> tuple[int, int, int]:
        """Answers, prompt tokens and sampled tokens that this run has paid for so far."""
        query = "select count(*), sum(prompt_tokens), sum(sampled_tokens) from answers where run=?"
        count, prompt, sampled = self._base.execute(query, (self.run,)).fetchone()
        return count, prompt or 0, sampled or 0

    def close(self) -> None:
        """Closes the file."""
        self._base.close()
