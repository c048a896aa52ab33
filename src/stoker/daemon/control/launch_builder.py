"""LaunchBuilder: state and placement -> what exactly is executed."""

from __future__ import annotations

import os
from collections.abc import Callable

from stoker.core.events.instructions import StartProcess
from stoker.core.launch.launch import Launch, launch
from stoker.core.launch.slurm_env import SubmitHost
from stoker.core.model.job import AttemptId
from stoker.core.state.state import State
from stoker.daemon.runtime.clock import system_clock
from stoker.engine import Instant


class LaunchBuilder:
    """Composes argv, environment and files of one start."""

    def __init__(
        self,
        state: Callable[[], State],
        token: Callable[[AttemptId], str],
        node: str,
        logs: str,
        scripts: str,
        clock: Callable[[], Instant] = system_clock,
    ) -> None:
        """`token` returns the mark of an attempt's processes; `node` is this machine."""
        self._state, self._token, self._clock = state, token, clock
        self._logs, self._scripts, self._home = logs, scripts, os.path.dirname(logs)
        self._submit_host = SubmitHost(node, os.getuid())

    def build(self, instruction: StartProcess, rank: int) -> Launch:
        """Return what to start on the node of the part with this rank."""
        state, placement = self._state(), instruction.placement
        job = state.jobs[instruction.job]
        return launch(
            job,
            state.spec(job),
            placement,
            state.cluster.nodes[placement.parts[rank].node],
            self._clock().wall,
            self._logs,
            self._token(AttemptId(instruction.job, instruction.attempt)),
            self._scripts,
            rank,
            self._home,
            self._submit_host,
        )
