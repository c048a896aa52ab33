"""PodTransport: the shell of the agent in a pod, by kubectl exec."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping

from stoker.executors.agent.session.transport import NotReady
from stoker.executors.kubernetes.kubectl import Kubectl, PodState, error_text, not_found_text
from stoker.executors.kubernetes.pilot_pod import CONTAINER

COMMAND = 'sh -c "$1"; code=$?; [ $code != 1 ] || code=2; exit $code'
"""kubectl ends with code 1 if it loses the connection: a command must not end with that."""


class PodTransport:
    """Opens connections to the agent of one pilot while its pod runs."""

    run_suffix = ""
    """A pod has a home directory of its own."""
    lost_codes = frozenset({1})

    def __init__(self, kubectl: Kubectl, name: str, variables: Mapping[str, str]) -> None:
        """`variables` describe the pod to the agent."""
        self.kubectl, self.name, self.variables = kubectl, name, variables
        self.pod: PodState | None = None
        """The pod as the API described it last."""
        self.waiting_for = "its pod has not been created yet"
        """Why the pod does not run."""

    @property
    def host(self) -> str:
        """The name of the pod."""
        return self.name

    @property
    def key(self) -> str:
        """The name of the pod."""
        return self.name

    def connect(self, command: str) -> subprocess.Popen[bytes]:
        """Start the agent's shell in the pod."""
        settings = "; ".join(
            f"{name}={shlex.quote(value)}; export {name}" for name, value in self.variables.items()
        )
        try:
            return subprocess.Popen(
                self._exec(f"{settings}; {command}"),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, cwd="/",
            )  # fmt: skip
        except NotReady:
            raise
        except OSError as error:
            raise NotReady(not_found_text(error)) from None

    def describe_failure(self, code: int | None, stderr: str) -> str:
        """Return what kubectl reported."""
        return error_text(stderr) or f"kubectl exec ended with code {code}"

    def disconnected(self) -> None:
        """Do nothing."""

    def command(self, script: str) -> list[str]:
        """Return the argv that runs a shell command in the pod."""
        return self._exec(COMMAND, script)

    def rsync_shell(self) -> list[str] | None:
        """Return None: rsync needs a remote shell that takes a host name."""
        return None

    @property
    def rsync_host(self) -> str:
        """The host."""
        return self.host

    def _exec(self, script: str, *words: str) -> list[str]:
        if self.pod is None or not self.pod.is_running:
            raise NotReady(self.waiting_for)
        return self.kubectl.argv(
            "exec", "-i", self.name, "-c", CONTAINER, "--", "sh", "-c", script, "sh", *words
        )
