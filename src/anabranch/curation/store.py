"""The folder of a curation: its configuration, its rows, the rows that were kept.

``run.json`` says what the rows are a result of; a run with another configuration is refused. A last
line that was cut off by a kill is removed, damage anywhere else is refused.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from anabranch.curation.rows import Row, end_of
from anabranch.errors import RecordError, UsageError
from anabranch.jsonl import (
    atomic_writer,
    cut_torn_tail,
    dump_line,
    read_rows,
    record_error,
    sha256_of,
    write_records,
)

VERSION = 1


@dataclass(frozen=True, slots=True)
class Shard:
    """Every ``of``-th row, beginning with row ``number`` (from 1)."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From ``2/8``.

        Raises:
            UsageError: not of that form.
        """
        first, _, second = text.partition("/")
        if not (first.isdigit() and second.isdigit() and 1 <= int(first) <= int(second)):
            raise UsageError(f"--shard {text!r}: write it like 2/8, from 1/8 to 8/8")
        return cls(int(first), int(second))


def input_rows(source: Path, shard: Shard | None = None) -> Iterator[dict[str, Any]]:
    """The rows of an input that was scanned; of a shard only its own.

    Raises:
        RecordError: a line is not JSON.
    """
    for place, (_, row) in enumerate(read_rows(source)):
        if shard is None or place % shard.of == shard.number - 1:
            yield row


def _checked(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in read_rows(source):
        try:
            Row.model_validate(row)
        except ValidationError as error:
            raise record_error(error, source, number) from None
        yield number, row


def _content(row: dict[str, Any]) -> bytes:
    """By what two rows are the same: problem and trace, but for white space and Unicode form."""
    trace = (row.get("data") or {}).get("sample", row).get("text", "")
    text = "\0".join(" ".join(part.split()) for part in (row["problem"], trace))
    plain = unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")
    return hashlib.sha256(plain).digest()


@dataclass(frozen=True, slots=True)
class Scan:
    """What an input holds: rows of the shard, and ids whose problem and trace an earlier row has.

    Repetition is judged over the whole input, so that shards agree.
    """

    total: int
    repeated: frozenset[str]


class Store:
    """The folder of a run.

    Args:
        folder: made where it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = folder / "rows.jsonl"
        self.kept = folder / "kept.jsonl"
        self.config = folder / "run.json"
        self._before = folder / ".previous.jsonl"

    def open(
        self,
        source: Path,
        stages: Sequence[Any],
        *,
        shard: Shard | None = None,
        extra: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> None:
        """Make the folder ready for a run, or for going on with one.

        Args:
            source: the input; its content is part of the configuration.
            stages: in order.
            shard: the part of the rows.
            extra: more of the configuration, such as the model.
            force: with another configuration, begin anew; answers in the cache stay.

        Raises:
            UsageError: the folder holds a run with another configuration.
            RecordError: its rows are damaged.
        """
        wanted = {
            "version": VERSION,
            "input": sha256_of(source) if source.is_file() else None,
            "stages": [{"name": stage.name, **stage.settings()} for stage in stages],
            "shard": [shard.number, shard.of] if shard else None,
            **(extra or {}),
        }
        wanted = json.loads(json.dumps(wanted))
        if self.config.exists():
            found = self._read_config()
            changed = sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))
            if changed and not force:
                raise UsageError(
                    f"{self.folder}: was begun with other settings ({', '.join(changed)}): use "
                    "--force to begin anew with the answers that are there, or another folder"
                )
            if changed:
                for path in (self.rows, self.kept, self._before):
                    path.unlink(missing_ok=True)
        elif self.rows.exists():
            raise UsageError(f"{self.folder}: has rows.jsonl and no run.json; use another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_writer(self.config) as handle:
            json.dump(wanted, handle, indent=1)
            handle.write("\n")
        if self.rows.exists():
            cut_torn_tail(self.rows)
            self._set_aside()

    def _read_config(self) -> dict[str, Any]:
        try:
            found = json.loads(self.config.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise RecordError("is no configuration of a run", path=self.config)
        return found

    def _set_aside(self) -> None:
        """Rows whose model was not to be had are treated again: the file is written anew."""
        if self._before.exists() or not any(_unreachable(row) for _, row in read_rows(self.rows)):
            return
        self.rows.replace(self._before)

    def previous(self, done: int) -> Iterator[dict[str, Any] | None]:
        """Rows of the run before, in order, where it is done again; None for those to treat.

        Args:
            done: rows that are written already.
        """
        if self._before.exists():
            for _, row in islice(read_rows(self._before), done, None):
                yield None if _unreachable(row) else row

    def scan(self, source: Path, shard: Shard | None) -> Scan:
        """Look through the input before any work.

        Raises:
            RecordError: a line is no row, an id is there twice, or there is no row.
        """
        ids: set[str] = set()
        contents: set[bytes] = set()
        repeated: set[str] = set()
        own = 0
        for place, (number, row) in enumerate(_checked(source)):
            if row["id"] in ids:
                what = f"{row['id']!r} is there twice"
                raise RecordError(what, path=source, line=number, field="id")
            ids.add(row["id"])
            content = _content(row)
            if content in contents:
                repeated.add(row["id"])
            contents.add(content)
            own += shard is None or place % shard.of == shard.number - 1
        if not ids:
            raise RecordError("holds no row", path=source)
        return Scan(own, frozenset(repeated))

    def written(self) -> Iterator[dict[str, Any]]:
        """The rows that are there.

        Raises:
            RecordError: a line is damaged.
        """
        if self.rows.exists():
            for number, row in read_rows(self.rows):
                if not isinstance(row.get("id"), str) or not isinstance(row.get("status"), dict):
                    raise RecordError("is no row of a curation", path=self.rows, line=number)
                yield row

    @contextmanager
    def append(self) -> Iterator[IO[str]]:
        """The file of rows, open at its end."""
        with self.rows.open("a", encoding="ascii", newline="\n") as handle:
            yield handle

    def finish(self) -> int:
        """Write the rows that were kept; returns how many."""
        count = write_records(self.kept, (_sample(row) for row in self.written() if _kept(row)))
        self._before.unlink(missing_ok=True)
        return count


def merge_shards(folders: Sequence[Path], output: Store) -> int:
    """Put the shards of a run together: byte for byte what one run would have written.

    Raises:
        UsageError: they are not all the shards of one run, or one is not finished.
        RecordError: a file is damaged.
    """
    stores = [Store(folder) for folder in folders]
    configs = [store._read_config() for store in stores]
    shards = [config.pop("shard") for config in configs]
    if any(shard is None for shard in shards) or any(config != configs[0] for config in configs):
        raise UsageError("these folders are not shards of one run")
    of = shards[0][1]
    if sorted(shards) != [[number, of] for number in range(1, of + 1)]:
        given = ", ".join(f"{number}/{total}" for number, total in shards)
        raise UsageError(f"each shard is needed once; given: {given}")
    for store in stores:
        if not store.kept.exists():
            raise UsageError(f"{store.folder}: is not finished")
    output.folder.mkdir(parents=True, exist_ok=True)
    with atomic_writer(output.config) as handle:
        json.dump({**configs[0], "shard": None}, handle, indent=1)
        handle.write("\n")
    places = [_placed(*one) for one in zip(stores, shards, strict=True)]
    with atomic_writer(output.rows) as handle:
        for _, line in merge(*places):
            handle.write(line + "\n")
    return output.finish()


def _placed(store: Store, shard: list[int]) -> Iterator[tuple[int, str]]:
    for place, row in enumerate(store.written()):
        yield shard[0] - 1 + place * shard[1], dump_line(row)


def yield_by_difficulty(rows: Iterable[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Kept rows and all rows in fifths of the difficulty, of rows that have one."""
    kept: Counter[int] = Counter()
    every: Counter[int] = Counter()
    for row in rows:
        value = row.get("difficulty")
        if value is not None:
            bucket = min(4, max(0, int(value * 5)))
            every[bucket] += 1
            kept[bucket] += _kept(row)
    return [(f"{n / 5:g}–{(n + 1) / 5:g}", kept[n], every[n]) for n in sorted(every)]


def _kept(row: dict[str, Any]) -> bool:
    return end_of(row["status"])[1] == "kept"


def _unreachable(row: dict[str, Any]) -> bool:
    return end_of(row["status"])[1] == "unreachable"


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    """What training reads: the rendered text where there is one, else the trace."""
    whole = Row.model_validate(row)
    made = whole.parallel or {}
    sample = {"id": whole.id, "problem": whole.problem, "text": made.get("text", whole.trace)}
    for name in ("answer", "difficulty"):
        if row.get(name) is not None:
            sample[name] = row[name]
    if "dialect" in made:
        sample["dialect"] = made["dialect"]
    return sample
