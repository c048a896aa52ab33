"""The client side of ssh: keys, and an OpenSSH client that reads only a test's configuration."""

import shutil
import subprocess
from pathlib import Path


def generate_key(path: Path) -> None:
    """Create a key pair."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True, timeout=20, stdin=subprocess.DEVNULL)


def ssh_program(directory: Path, config: Path, calls: Path) -> None:
    """Create a program ssh for the PATH, with a configuration and a log of its calls.

    OpenSSH uses the home directory of the password file and ignores HOME: the files of the
    developer must be neither read nor written.
    """
    directory.mkdir()
    program = directory / "ssh"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >>{calls}\nexec {shutil.which("ssh")} -F {config} "$@"\n'
    )
    program.chmod(0o755)
