"""CommandBuilder: the command line and variables of an attempt on this node."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from stoker.core.launch import training_env as contract
from stoker.core.launch.launch import Launch, fill_placeholders
from stoker.core.launch.slurm_env import SLURM_MARK
from stoker.executors.launch import container
from stoker.executors.launch.paths import SLURM_TOOLS, ExecutorPaths, terminal_path


class NoContainer(Exception):
    """This node cannot run containers."""


class CommandBuilder:
    """Turns a launch into the arguments and variables for a supervisor."""

    def __init__(
        self,
        places: ExecutorPaths,
        secret: Callable[[str], bytes | None],
        blob: Callable[[str], bytes | None],
        grace: float,
        engine: str,
    ) -> None:
        self.places, self.secret, self.blob, self.grace = places, secret, blob, grace
        self.engine = os.environ.get(container.CHOICE) or engine
        self.library: str | None = None

    def compose(self, launch: Launch) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the command line, and the variables beside the job's own environment."""
        self._provide_script(launch)
        argv = launch.argv
        extra = launch.extra | self._filled(launch) if launch.placeholders else launch.extra
        if launch.container is not None:
            argv, more = self._contained(launch)
            extra = extra | more
        else:
            if contract.TRAINING_MARK in extra:
                extra = extra | self._with_library(launch)
            if SLURM_MARK in extra:
                extra = extra | self._with_slurm_tools(launch)
        if launch.spec.pty:
            path = terminal_path(self.places.terminals, launch.job, launch.attempt)
            argv = (sys.executable, "-P", "-m", "stoker.executors.linux.pty_relay", path, *argv)
        return argv, extra

    def _with_library(self, launch: Launch) -> dict[str, str]:
        """Put the training library first, before any version that the interpreter has installed."""
        inherited = self.environment(launch.spec.environment).get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join(filter(None, (self._library(launch), inherited)))}

    def _with_slurm_tools(self, launch: Launch) -> dict[str, str]:
        """Put `srun` of stoker first on the PATH, since the SLURM_* variables are set by stoker."""
        inherited = self.environment(launch.spec.environment).get("PATH") or os.defpath
        return {"PATH": f"{self._library(launch)}/{SLURM_TOOLS}{os.pathsep}{inherited}"}

    def _library(self, launch: Launch) -> str:
        home = os.path.dirname(os.path.dirname(launch.reports))
        if self.library is None or not os.path.isdir(self.library):
            from stoker.executors.launch import training_library

            self.library = training_library.provide(home)
        return self.library

    def _contained(self, launch: Launch) -> tuple[tuple[str, ...], dict[str, str]]:
        environment = self.environment(launch.spec.environment)
        missing = container.absent(environment, self.engine, launch.spec.exported_variables)
        if missing is not None:
            raise NoContainer(missing)
        script = f"{self.places.scripts}/{launch.script}" if launch.script else None
        if script is not None:
            os.chmod(script, 0o755)  # noqa: S103 - an image may run as any user; its directory is private
        return container.command(launch, self._library(launch), self.grace, self.engine, script)

    def _filled(self, launch: Launch) -> dict[str, str]:
        """Return the variables with names of devices filled in for the braces."""
        values = self.environment(launch.spec.environment)
        filled = {
            name: fill_placeholders(text, launch.placeholders) for name, text in values.items()
        }
        return {name: text for name, text in filled.items() if text != values[name]}

    def environment(self, hash: str) -> dict[str, str]:
        """Return the variables of the submission."""
        values = self.secret(hash)
        if values is None:
            raise KeyError("the job's environment is no longer stored; submit the job again")
        pairs = (os.fsdecode(line).partition("=") for line in values.split(b"\0") if line)
        return {name: value for name, _, value in pairs}

    def _provide_script(self, launch: Launch) -> None:
        """Write the script to disk if it is not there."""
        if launch.script is not None:
            path = f"{self.places.scripts}/{launch.script}"
            if not os.path.exists(path):
                text = self.blob(launch.script)
                if text is None:
                    raise KeyError("the job's script is no longer stored; submit the job again")
                write_script(path, text)


def write_script(path: str, text: bytes) -> None:
    """Write an executable script, whole or not at all."""
    part = f"{path}.{os.getpid()}"
    with open(part, "wb", opener=lambda name, flags: os.open(name, flags, 0o700)) as file:
        file.write(text)
    os.rename(part, path)
