"""The launcher: one batch of a sweep is one array in the queue, waited for."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

if TYPE_CHECKING:
    from hydra_plugins.stoker_launcher._job import Job
    from stoker.api import Executor, Future

# Hydra looks into all plugins whenever a program of its starts. So nothing is imported above that
# only a sweep needs.
log = logging.getLogger(__name__)
INTERRUPTED = 130
SECOND_THOUGHTS = 3
"""Seconds in which another Ctrl-C cancels the jobs."""


class StokerLauncher(Launcher):
    """Runs each of Hydra's jobs as a job of stoker, with GPUs of its own."""

    def __init__(self, **parameters: Any) -> None:
        self.parameters: dict[str, Any] = {
            name: OmegaConf.to_container(value, resolve=True)
            if OmegaConf.is_config(value)
            else value
            for name, value in parameters.items()
            if value is not None
        }

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Take in what is launched."""
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Queue a batch of jobs, wait for all of them, return what came of them in this order."""
        setup_globals()
        hydra = self.config.hydra
        configure_log(hydra.hydra_logging, hydra.verbose)
        Path(str(hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        numbers = range(initial_job_idx, initial_job_idx + len(job_overrides))
        configs = [
            self._composed(overrides, number)
            for overrides, number in zip(job_overrides, numbers, strict=True)
        ]
        executor, futures = self._queued(configs)
        try:
            many = "1 job" if len(futures) == 1 else f"{len(futures)} jobs"
            log.info("Queued %s, output in %s", many, hydra.sweep.dir)
            for number, future, overrides in zip(numbers, futures, job_overrides, strict=True):
                said = " ".join(filter_overrides(overrides))
                log.info("\t#%d : %s : %s", number, future.job_id, said)
            _wait(dict(zip(futures, numbers, strict=True)))
        except KeyboardInterrupt:
            _leave_or_cancel(executor, futures)
            raise SystemExit(INTERRUPTED) from None  # all is said; Hydra would show a traceback
        return [_returned(*each) for each in zip(futures, configs, strict=True)]

    def _composed(self, overrides: Sequence[str], number: int) -> DictConfig:
        """Compose here and now: a file that is edited later does not change a job that waits."""
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.num = number
        return config

    def _queued(self, configs: Sequence[DictConfig]) -> tuple[Executor, list[Future[JobReturn]]]:
        from stoker.api import StokerError

        try:
            executor = self._executor()
            return executor, executor.map_array(self._job(), configs)
        except StokerError as error:  # a sentence that says it all: Hydra shows no traceback then
            raise CompactHydraException(f"hydra.launcher: {error}") from error

    def _job(self) -> Job:
        from hydra_plugins.stoker_launcher._job import Again, Job

        kind = Again if self.parameters.get("max_num_timeout") else Job
        return kind(self.hydra_context, self.task_function, Singleton.get_state())

    def _executor(self) -> Executor:
        from stoker.api import Executor
        from stoker.api.options import as_options
        from stoker.api.parameters import positive

        parameters = dict(self.parameters)
        at_once = positive(parameters.pop("max_running", None), "max_running")
        if at_once is not None:
            parameters["array_parallelism"] = at_once
        copied = [name for name in self.config.hydra.job.env_copy if name in os.environ]
        own = as_options({"env": parameters.get("env")}).get("env", [])
        parameters["env"] = [
            *(f"{name}={os.environ[name]}" for name in copied),
            *cast("list[str]", own),
        ]
        return Executor(parameters.pop("folder", None), **parameters)


def _wait(numbers: Mapping[Future[JobReturn], int]) -> None:
    left = set(numbers)
    while left:
        # A Ctrl-C in the instant before Python falls asleep is heard when it wakes up.
        done, _ = concurrent.futures.wait(left, timeout=1.0, return_when="FIRST_COMPLETED")
        for future in left & done:
            log.info("\t#%d : %s : %s", numbers[future], future.job_id, _end(future))
        left -= done


def _leave_or_cancel(executor: Executor, futures: Sequence[Future[JobReturn]]) -> None:
    """Leave the jobs in the queue, as they do not need us; unless that is not what was meant."""
    try:
        log.warning("The jobs continue. Ctrl-C again within %d s cancels them.", SECOND_THOUGHTS)
        time.sleep(SECOND_THOUGHTS)
    except KeyboardInterrupt:
        executor.client.cancel(futures)
        log.warning("The jobs are cancelled.")


def _end(future: Future[JobReturn]) -> str:
    if future.cancelled():
        return "cancelled"
    return "done" if future.exception() is None else "failed"


def _returned(future: Future[JobReturn], config: DictConfig) -> JobReturn:
    """Return what Hydra expects of a job, also of one that was killed, cancelled or lost."""
    from hydra_plugins.stoker_launcher._job import Failed
    from stoker.api import StokerError

    if future.cancelled():
        return _lost(config, StokerError(f"Job {future.job_id} was cancelled."))
    error = future.exception()
    if error is None:
        return future.result()
    return error.with_traceback_of_job() if isinstance(error, Failed) else _lost(config, error)


def _lost(config: DictConfig, error: BaseException) -> JobReturn:
    return JobReturn(
        overrides=list(config.hydra.overrides.task),
        cfg=OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]),
        hydra_cfg=OmegaConf.masked_copy(config, "hydra"),
        task_name=config.hydra.job.name,
        status=JobStatus.FAILED,
        _return_value=error,
    )
