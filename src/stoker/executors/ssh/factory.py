"""SshExecutorFactory: executors for nodes that are reached by SSH."""

from __future__ import annotations

import os
from _blake2 import blake2b

from stoker.core.events import NodeAdded
from stoker.executors.agent.executor import AgentEnvironment, AgentExecutor
from stoker.executors.port import AttemptRecords
from stoker.executors.ssh.address import parse_address
from stoker.executors.ssh.transport import SshTransport


class SshExecutorFactory:
    """Creates an AgentExecutor with an SSH transport for each node."""

    def __init__(self, run: str, environment: AgentEnvironment) -> None:
        """`run` is the directory of the control sockets."""
        self.run, self.environment = run, environment

    def node(self, added: NodeAdded, records: AttemptRecords) -> AgentExecutor:
        """Return the executor of a node."""
        os.makedirs(self.environment.notes, 0o700, exist_ok=True)
        key = os.path.expanduser(added.key) if added.key else None
        transport = SshTransport(
            parse_address(added.address, key), control_path(self.run, added.name)
        )
        return AgentExecutor(added.name, transport, self.environment, records, added.shared)


def control_path(run: str, name: str) -> str:
    """Return the path of a node's control socket: short, since socket paths are limited."""
    return f"{run}/ssh-{blake2b(name.encode(), digest_size=4).hexdigest()}"
