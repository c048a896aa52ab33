"""A mount namespace with a copy of /etc: an installation there does not change the machine."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from multiuser.users import User, account_lock

FIRST_DAEMON_UID = 2_000_000

SET_UP = """
set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
cp -a /etc "$1/etc"
sed -i "/^SYS_UID_M/d" "$1/etc/login.defs"
printf "SYS_UID_MIN %s\\nSYS_UID_MAX %s\\n" "$2" "$2" >> "$1/etc/login.defs"
mount --bind "$1/etc" /etc
for directory in /run /var/lib /usr/local/bin; do
    mount -t tmpfs -o mode=755 tmpfs "$directory"
done
echo ready
exec cat
"""


class MachineCopy:
    """Runs commands in the namespace."""

    def __init__(self, pid: int, program: Path) -> None:
        self.pid, self.program = pid, program

    def command(self, *words: object, user: User | None = None) -> list[str]:
        """Return a command line that runs a command there, as root or as a user."""
        enter = ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "--"]
        if user is not None:
            ids = [f"--reuid={user.uid}", f"--regid={user.gid}", "--init-groups"]
            enter += ["setpriv", *ids, "--", "env", f"--chdir={user.home}"]
        return [*enter, *map(str, words)]

    def run(
        self, *words: object, user: User | None = None, env: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command and return its output and exit code."""
        return subprocess.run(
            self.command(*words, user=user), capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=120, cwd="/",
            env={"PATH": os.environ["PATH"], **(user.environment() if user else {}), **(env or {})},
        )  # fmt: skip

    def stoker(
        self, *words: object, user: User | None = None, env: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run the command of the installation."""
        return self.run(self.program, *words, user=user, env=env)


@contextlib.contextmanager
def machine_copy(directory: Path, program: Path) -> Iterator[MachineCopy]:
    """Make the namespace; it ends with the process that holds it.

    The daemon gets a uid of its own: tests of other processes end all processes of theirs.
    """
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SET_UP, "sh"]
    command = [*unshare, str(directory), str(FIRST_DAEMON_UID + os.getpid())]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        with account_lock():  # useradd has temporary files in /etc
            holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            stack.enter_context(holder)
            stack.callback(holder.kill)
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
        yield MachineCopy(holder.pid, program)
