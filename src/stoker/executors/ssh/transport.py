"""SshTransport: the agent's shell, commands and rsync through one OpenSSH connection."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import shlex
import subprocess

from stoker.executors.agent.session.transport import LOST_CODES
from stoker.executors.ssh.address import Address

MAX_LOG_BYTES = 8 << 10
"""What is read of ssh's messages about a failure: the last ones."""


class SshTransport:
    """Opens connections to one host by OpenSSH; commands share the open connection."""

    run_suffix = ""
    """A node has a home directory of its own."""
    lost_codes = LOST_CODES

    def __init__(self, address: Address, control: str) -> None:
        """`control` is the path that leads to the socket of the open connection."""
        self.address, self.control = address, control
        self._log = f"{control}~log"
        """What ssh itself reports, kept apart from what comes over the connection."""

    @property
    def host(self) -> str:
        """The host name."""
        return self.address.host

    @property
    def key(self) -> str:
        """The path of the control socket."""
        return self.control

    def connect(self, command: str) -> subprocess.Popen[bytes]:
        """Start an ssh that serves as master of further sessions."""
        options = ("-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-E", self._log)
        return subprocess.Popen(
            [*self.address.command(self._new_socket(), *options), command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def _new_socket(self) -> str:
        """Return the path of a new socket; `control` leads to it from now on.

        An ssh that outlives its daemon removes its socket when it ends, perhaps long after
        another has taken its place. What earlier connections left is removed here.
        """
        for path in glob.glob(f"{glob.escape(self.control)}~*"):
            with contextlib.suppress(OSError):
                os.unlink(path)
        socket = f"{self.control}~{secrets.token_hex(3)}"
        os.symlink(os.path.basename(socket), f"{socket}.new")
        os.replace(f"{socket}.new", self.control)
        return socket

    def describe_failure(self, code: int | None, stderr: str) -> str:
        """Return ssh's own message about a failed connection, with what to do about it."""
        try:
            with open(self._log, "rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - MAX_LOG_BYTES, 0))
                logged = file.read(MAX_LOG_BYTES).decode(errors="replace")
        except OSError:
            logged = ""
        return explain_failure(logged or stderr, self.address, code)

    def disconnected(self) -> None:
        """Remove the log of a connection that has ended."""
        with contextlib.suppress(OSError):
            os.unlink(self._log)

    def command(self, script: str) -> list[str]:
        """Return an ssh that uses the open connection or fails at once: it never makes one."""
        return [*self._shared(), script]

    def rsync_shell(self) -> list[str]:
        """Return the same without the host, which rsync adds."""
        *options, _, _ = self._shared()
        return options

    @property
    def rsync_host(self) -> str:
        """The host, in brackets if it is an IPv6 address."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def _shared(self) -> list[str]:
        # -S takes a path as it is; in -o ControlPath= blanks and quotes would be interpreted.
        return self.address.command(
            "none", "-S", self.control, "-o", "ControlMaster=no", "-o", "ProxyCommand=exit 1"
        )


def explain_failure(text: str, address: Address, code: int | None) -> str:
    """Return what ssh reported, in a sentence that also says what to do."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    key = f"-i {shlex.quote(address.key)} " if address.key else ""
    by_hand = f"try manually: ssh {key}{address.url}"
    if "HOST IDENTIFICATION HAS CHANGED" in text or "Host key verification failed" in text:
        name = f"[{address.host}]:{address.port}" if address.port else address.host
        return (
            "the host key differs from the one in known_hosts; if the change is expected, "
            f"remove the old key with: ssh-keygen -R '{name}'"
        )
    if "bad permissions" in text or "UNPROTECTED PRIVATE KEY" in text:
        return (
            f"ssh rejects the key {address.key} because other users can read it; "
            f"run: chmod 600 {address.key}"
        )
    denied = re.search(r"Permission denied \(.*", text)
    if denied:
        keys = f"the key {address.key}" if address.key else "all keys offered by ssh"
        message = denied[0].rstrip(".")
        hint = "a key with a passphrase must be in ssh-agent"
        return f"the server rejected {keys} ({message}; {hint}); {by_hand}"
    if lines:
        return lines[-1]
    if code is None:
        return f"the remote side closed the connection without a message; {by_hand}"
    return f"ssh exited with code {code} and no message; {by_hand}"
