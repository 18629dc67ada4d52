"""JSON Lines in and out, streamed, exact and never half-written.

Lines end at ``\\n`` only (U+2028, U+0085, form feeds are ordinary characters inside a string). The
writer escapes everything outside ASCII, so a file is valid UTF-8 even when a string holds a lone
surrogate, and reading gives the same string back. Compression and remote files are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import ValidationError

from anabranch.errors import RecordError
from anabranch.records import Record

R = TypeVar("R", bound=Record)


def dump_line(record: Record | dict[str, Any]) -> str:
    """One record as one line of ASCII JSON, without the newline."""
    data = record.to_json() if isinstance(record, Record) else record
    return json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=True)


def read_rows(
    path: Path | str, *, on_error: Callable[[RecordError], None] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(line number, object)`` of a JSON Lines file; blank lines are passed over.

    Args:
        path: the file.
        on_error: called with each bad line's error, which is then skipped; without it the first
            bad line raises.

    Raises:
        RecordError: the file is missing, or a line is not UTF-8, not JSON, or not an object.
    """
    path = Path(path)
    try:
        handle = path.open("rb")
    except OSError as error:
        raise RecordError(error.strerror or "cannot be opened", path=path) from error
    with handle:
        for number, raw in enumerate(handle, start=1):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if not raw.strip():
                continue
            try:
                row = _parse_line(raw, path, number)
            except RecordError as error:
                if on_error is None:
                    raise
                on_error(error)
                continue
            yield number, row


def read_records(
    path: Path | str, model: type[R], *, on_error: Callable[[RecordError], None] | None = None
) -> Iterator[R]:
    """Stream the records of a file.

    Args:
        path: a JSON Lines file.
        model: the record type of every line.
        on_error: as in :func:`read_rows`; also called for lines of the wrong shape.

    Raises:
        RecordError: naming file, line and field.
    """
    for number, row in read_rows(path, on_error=on_error):
        try:
            yield model.model_validate(row)
        except ValidationError as error:
            problem = record_error(error, path, number)
            if on_error is None:
                raise problem from None
            on_error(problem)


def record_error(error: ValidationError, path: Path | str | None, line: int | None) -> RecordError:
    """The first complaint of a pydantic error, as one sentence with its place."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or None
    message = first["msg"].removeprefix("Value error, ")
    return RecordError(message, path=path, line=line, field=field)


def write_records(path: Path | str, records: Iterable[Record | dict[str, Any]]) -> int:
    """Write all records, or nothing: the file appears only when the last line is on disk.

    Returns:
        the number of lines.
    """
    count = 0
    with atomic_writer(path) as handle:
        for record in records:
            handle.write(dump_line(record) + "\n")
            count += 1
    return count


@contextmanager
def atomic_writer(path: Path | str) -> Iterator[IO[str]]:
    """A text handle whose content replaces ``path`` on success and vanishes on any error."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = temporary.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise RecordError(f"cannot be written: {error.strerror}", path=path) from error
    try:
        with handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sha256_of(path: Path | str) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def cut_torn_tail(path: Path | str) -> int:
    """Cut off a last line that was not written whole, as a killed writer leaves it.

    Damage anywhere else is not touched: reading it raises.

    Returns:
        how many bytes were cut off; 0 where the file is missing.
    """
    path = Path(path)
    if not path.exists():
        return 0
    with path.open("rb+") as handle:
        size = handle.seek(0, os.SEEK_END)
        kept = size
        block = 1 << 16
        while kept:
            start = max(0, kept - block)
            handle.seek(start)
            at = handle.read(kept - start).rfind(b"\n")
            if at >= 0:
                kept = start + at + 1
                break
            kept = start
        if kept < size:
            handle.truncate(kept)
        return size - kept


def lone_surrogates(text: str) -> int:
    """How many code units of a string have no UTF-8 form."""
    return sum("\ud800" <= char <= "\udfff" for char in text)


def _parse_line(raw: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(f"not UTF-8 at byte {error.start}", path=path, line=number) from None
    except (json.JSONDecodeError, RecursionError) as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        column = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise RecordError(f"not JSON: {what}{column}", path=path, line=number) from None
    if not isinstance(row, dict):
        raise RecordError(
            f"a JSON object is expected, not {type(row).__name__}", path=path, line=number
        )
    return row
