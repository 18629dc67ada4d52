"""A real PostgreSQL for a test run, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs; None where it is not installed."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


@contextmanager
def running_postgres(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the URL of an empty database, and the data folder; skips where it is not installed."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    user = None
    if os.getuid() == 0:  # it refuses to run as root
        try:
            user = pwd.getpwnam("postgres").pw_name
        except KeyError:
            pytest.skip("no user postgres to run PostgreSQL as")
        for place in [folder, *folder.parents]:
            if place.stat().st_uid == 0 and place.name:
                place.chmod(place.stat().st_mode | 0o055)
        shutil.chown(folder, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"

    def call(*arguments: str) -> None:
        subprocess.run(arguments, check=True, user=user, capture_output=True, cwd=folder)

    call(str(programs / "initdb"), "-D", str(data), "-U", "tester", "-A", "trust", "-N")
    options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
    control = str(programs / "pg_ctl")
    call(control, "-D", str(data), "-w", "-o", options, "-l", str(folder / "log"), "start")
    try:
        yield f"postgresql://tester@127.0.0.1:{port}/postgres", data
    finally:
        call(control, "-D", str(data), "-w", "-m", "immediate", "stop")
