"""Starts: sends what an attempt needs to its node, then the start request."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stoker.executors.agent import start_command
from stoker.executors.agent.attempt import Phase, RemoteAttempt
from stoker.executors.agent.prerequisites import Prerequisites
from stoker.executors.agent.result_collector import result_kind
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot
from stoker.executors.port import SHORTAGE_SECONDS

if TYPE_CHECKING:
    from stoker.executors.agent.executor import AgentExecutor


class Starts:
    """Carries attempts of one executor from UPLOADING to ORDERED."""

    def __init__(self, executor: AgentExecutor, prerequisites: Prerequisites) -> None:
        self.executor, self.prerequisites = executor, prerequisites
        self._scripts: set[str] = set()
        """Hashes of the scripts that the node has."""

    def forget(self) -> None:
        """Assume nothing about the files on the node: they may have been removed."""
        self._scripts.clear()
        self.prerequisites.forget()

    def begin(self, attempt: RemoteAttempt) -> None:
        """Send the files of an attempt, its script and what else it needs, then start it."""
        launch = attempt.launch
        assert launch is not None
        if self.executor.shares_files or not launch.transfer.send:
            self._send_script(attempt, launch.directory if self.executor.shares_files else "empty")
        else:
            self.executor.uploads.ensure(
                launch.directory,
                launch.transfer,
                launch.files_after,
                lambda tree, why, may_pass: self._on_uploaded(attempt, tree, why, may_pass),
            )

    def _is_waiting(self, attempt: RemoteAttempt) -> bool:
        return self.executor.attempts.get(attempt.id) is attempt and not attempt.is_ordered

    def _on_uploaded(
        self, attempt: RemoteAttempt, tree: DirectorySnapshot | None, why: str, may_pass: bool
    ) -> None:
        if not self._is_waiting(attempt):
            return
        if tree is not None:
            attempt.workspace = replace(attempt.workspace, since=tree.at)
            self._send_script(attempt, f"tree {tree.id}")
        else:
            self._give_up(attempt, f"cannot send the job's files: {why}", why, may_pass)

    def _give_up(self, attempt: RemoteAttempt, failure: str, why: str, may_pass: bool) -> None:
        """Cancel a start if its obstacle may pass, else fail it."""
        if may_pass:
            self.executor.ends.cancel(attempt, why, delay=SHORTAGE_SECONDS)
        else:
            self.executor.ends.forget(attempt)
            self.executor.ends.fail(attempt.id, attempt.part, failure)

    def _send_script(self, attempt: RemoteAttempt, directory: str) -> None:
        """Send the script of an attempt if it has one that the node lacks."""
        script = attempt.launch.script if attempt.launch is not None else None
        if script is None or script in self._scripts:
            self._send_prerequisites(attempt, directory)
            return
        text = self.executor.environment.blob(script)
        if text is None:
            why = "cannot start: the job's script is no longer stored; submit the job again"
            self._give_up(attempt, why, why, may_pass=False)
            return

        def on_reply(words: list[str]) -> None:
            if words[0] == "done":
                self._scripts.add(script)
            if not self._is_waiting(attempt):
                return
            if words[0] == "done":
                self._send_prerequisites(attempt, directory)
            else:
                why = f"no space left on {self.executor.name}"
                self.executor.ends.cancel(attempt, why, delay=SHORTAGE_SECONDS)

        path = f"scripts/{script}"
        self.executor.connection.request(on_reply, "write_file", path, os.fsdecode(text))

    def _send_prerequisites(self, attempt: RemoteAttempt, directory: str) -> None:
        """Send the training library and checkpoints, if the attempt needs them."""
        assert attempt.launch is not None

        def on_ready(library: str | None, why: str, may_pass: bool) -> None:
            if not self._is_waiting(attempt):
                return
            if not why:
                self._order(attempt, directory, library)
            else:
                self._give_up(attempt, why, why, may_pass)

        self.prerequisites.ensure(attempt.launch, on_ready)

    def _order(self, attempt: RemoteAttempt, directory: str, library: str | None) -> None:
        """Send the start request."""
        executor, connection = self.executor, self.executor.connection
        launch, shell = attempt.launch, executor.uploads.shell
        assert launch is not None
        if attempt.end is not None:
            executor.ends.cancel(attempt, "cancelled before the start request was sent")
            return
        if shell is None:
            executor.ends.cancel(
                attempt, f"{executor.name} has not reported its home directory yet"
            )
            return
        work = f"{shell.root}/work/{connection.install}.{attempt.word}"
        launch = self.prerequisites.with_remote_paths(launch, shell, work, library)
        if launch.container is not None:
            launch = self.prerequisites.in_container(launch, shell, library, executor.grace)
        try:
            variables = start_command.variables(launch, executor.environment.secret)
        except KeyError as error:
            why = f"cannot start: {error.args[0]}"
            self._give_up(attempt, why, why, may_pass=False)
            return
        try:
            # A later daemon must not overwrite files that are changed here from now on.
            attempt.mirror.write_note(attempt.workspace.since)
        except OSError as error:
            why = f"cannot start: {error}"
            self._give_up(attempt, why, why, may_pass=False)
            return
        scripts = f"{executor.readings.home}/{connection.root}/scripts"
        results = "nothing" if executor.shares_files else result_kind(launch.transfer)
        attempt.phase, attempt.is_observed = Phase.ORDERED, True
        attempt.ordered_at = time.monotonic()
        attempt.launch = None
        executor.states.poll_soon()
        executor.send_start(
            attempt, launch, attempt.word, directory, "separate" if launch.err else "joined",
            "line" if launch.is_shell_line else "argv",
            str(attempt.barrier_timeout), results, str(round(executor.grace)),
            f"{launch.spec.umask:o}", str(len(variables)), *variables,
            *start_command.command(launch, scripts, executor.readings.has_bash),
        )  # fmt: skip
