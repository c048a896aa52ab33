"""The call that runs in the job. Hydra's plugin scan skips modules with a leading underscore."""

from __future__ import annotations

import copy
import os
import traceback
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class TaskFailed(Exception):
    """The task raised an exception; the job ends with it and is shown as failed."""

    def __init__(self, outcome: JobReturn, traceback_text: str) -> None:
        super().__init__(outcome, traceback_text)
        self.outcome = outcome
        self.traceback_text = traceback_text

    def __str__(self) -> str:
        # The last line of the log is shown first.
        return f"{self.outcome.overrides}\n{self.traceback_text.rstrip()}"

    def to_job_return(self) -> JobReturn:
        """Return the outcome for Hydra, with the traceback of the job as cause."""
        from stoker.api.calls.result_files import RemoteTraceback

        self.outcome._return_value.__cause__ = RemoteTraceback(self.traceback_text)  # noqa: SLF001
        return self.outcome


class HydraJob:
    """Runs the task once, with the configuration of one job."""

    def __init__(self, context: HydraContext, task: TaskFunction, singletons: Any) -> None:
        self.context = context
        self.task = task
        self.singletons = singletons

    def __call__(self, config: DictConfig) -> JobReturn:
        """Run the task in this process."""
        Singleton.set_state(self.singletons)
        setup_globals()
        # A run changes the configuration, and the next attempt needs the original.
        run_config = copy.deepcopy(config)
        with open_dict(run_config):
            run_config.hydra.job.id = _label()
        outcome = run_job(
            hydra_context=self.context,
            task_function=self.task,
            config=run_config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        if outcome.status == JobStatus.FAILED:
            raise TaskFailed(outcome, _traceback_text(outcome._return_value)) from None  # noqa: SLF001
        return outcome


class ResumableJob(HydraJob):
    """Is run again unchanged after a stop; the task itself resumes its work."""

    def checkpoint(self, config: DictConfig) -> Any:
        """Return the call of the next attempt."""
        from stoker.api import DelayedSubmission

        return DelayedSubmission(self, config)


def _label() -> str:
    """Return the label of the job: `42`, or `42_3` in an array."""
    array = os.environ.get("STOKER_ARRAY_JOB_ID")
    if array is None:
        return os.environ["STOKER_JOB_ID"]
    return f"{array}_{os.environ['STOKER_ARRAY_INDEX']}"


def _traceback_text(error: BaseException) -> str:
    frames = (
        error.__traceback__.tb_next if error.__traceback__ else None
    )  # the first frame is Hydra's
    return "".join(traceback.format_exception(type(error), error, frames))
