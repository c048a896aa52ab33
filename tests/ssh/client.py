"""The near side of ssh: keys, and an OpenSSH client that reads a test's configuration only."""

import shutil
import subprocess
from pathlib import Path


def generate_key(path: Path) -> None:
    """A new key pair."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True, timeout=20, stdin=subprocess.DEVNULL)


def ssh_program(place: Path, config: Path, calls: Path) -> None:
    """A program called ssh, to come first on PATH, with a configuration and a record of calls.

    OpenSSH looks for its files in the home that the password file names, whatever HOME says:
    the developer's own must neither help nor be written to.
    """
    place.mkdir()
    program = place / "ssh"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >>{calls}\nexec {shutil.which("ssh")} -F {config} "$@"\n'
    )
    program.chmod(0o755)
