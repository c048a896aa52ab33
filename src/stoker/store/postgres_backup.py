"""Backup of a PostgreSQL schema with pg_dump."""

from __future__ import annotations

import os
import shutil
import subprocess

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stoker.store.port import StoreError
from stoker.store.select import StoreConfig


def dump(config: StoreConfig, path: str) -> int:
    """Write the schema as SQL to a new file that only its owner can read; return its size."""
    program = shutil.which("pg_dump")
    if program is None:
        raise StoreError(
            "A backup of a PostgreSQL store needs pg_dump, which is not on the PATH of the daemon. "
            "Install the PostgreSQL client programs, or run pg_dump on another machine."
        )
    parameters = {key: str(value) for key, value in conninfo_to_dict(config.url or "").items()}
    password = parameters.pop("password", None)  # every user can read a command line
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"Cannot write {path}: {error.strerror}.") from error
    command = [program, f"--schema={config.schema}", "--no-owner", "--no-privileges"]
    command += ["--no-password", f"--dbname={make_conninfo(**parameters)}"]
    try:
        with open(fd, "wb") as out:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                env={**os.environ, **({"PGPASSWORD": password} if password else {})},
                check=False,
            )
        if done.returncode == 0:
            return os.stat(path).st_size
    except OSError as error:
        os.unlink(path)
        raise StoreError(f"Cannot copy {config.shown}: {error.strerror}.") from error
    os.unlink(path)
    errors = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
    raise StoreError(f"Cannot copy {config.shown}: {errors[-1].rstrip('.')}.")
