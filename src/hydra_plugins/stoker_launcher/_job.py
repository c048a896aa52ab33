"""What runs in the job. (Hydra's scan executes modules again and again, except those with a _.)"""

from __future__ import annotations

import copy
import os
import traceback
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class Failed(Exception):
    """The task raised something. The job ends with this, so that the queue shows it as failed."""

    def __init__(self, outcome: JobReturn, where: str) -> None:
        super().__init__(outcome, where)
        self.outcome = outcome
        self.where = where

    def __str__(self) -> str:
        # The last line of a log is what people look at first.
        return f"{self.outcome.overrides}\n{self.where.rstrip()}"

    def with_traceback_of_job(self) -> JobReturn:
        """Return what Hydra expects; raised by it, the error says where it was raised first."""
        from stoker.api.result_files import RemoteTraceback

        self.outcome._return_value.__cause__ = RemoteTraceback(self.where)  # noqa: SLF001
        return self.outcome


class Job:
    """Runs the task once, with the configuration of one job."""

    def __init__(self, context: HydraContext, task: TaskFunction, singletons: Any) -> None:
        self.context = context
        self.task = task
        self.singletons = singletons

    def __call__(self, config: DictConfig) -> JobReturn:
        """Run it in this process."""
        Singleton.set_state(self.singletons)
        setup_globals()
        own = copy.deepcopy(
            config
        )  # a run changes and closes it; the next attempt needs it as it was
        with open_dict(own):
            own.hydra.job.id = _label()
        outcome = run_job(
            hydra_context=self.context,
            task_function=self.task,
            config=own,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        if outcome.status == JobStatus.FAILED:
            raise Failed(outcome, _story(outcome._return_value)) from None  # noqa: SLF001
        return outcome


class Again(Job):
    """Is run once more, the same, when its time was up; its task knows how to go on."""

    def checkpoint(self, config: DictConfig) -> Any:
        """Return what the next attempt does."""
        from stoker.api import DelayedSubmission

        return DelayedSubmission(self, config)


def _label() -> str:
    """Return what the job is called: `42`, or `42_3` in an array."""
    array = os.environ.get("STOKER_ARRAY_JOB_ID")
    if array is None:
        return os.environ["STOKER_JOB_ID"]
    return f"{array}_{os.environ['STOKER_ARRAY_INDEX']}"


def _story(error: BaseException) -> str:
    frames = error.__traceback__.tb_next if error.__traceback__ else None  # the first is Hydra's
    return "".join(traceback.format_exception(type(error), error, frames))
