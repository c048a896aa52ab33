"""The launcher: submits each batch of a sweep as an array and waits for it."""

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
    from stoker.api import Executor, Future

# Hydra imports all plugins whenever a Hydra program starts, so imports that only a sweep needs
# are local.
log = logging.getLogger(__name__)
INTERRUPTED = 130
CANCEL_SECONDS = 3
"""Time in which a second Ctrl-C cancels the jobs."""


class StokerLauncher(Launcher):
    """Runs each Hydra job as a job of stoker, with its own GPUs."""

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
        """Set what is launched."""
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Submit a batch of jobs, wait for all of them, return their outcomes in order."""
        setup_globals()
        hydra = self.config.hydra
        configure_log(hydra.hydra_logging, hydra.verbose)
        Path(str(hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        numbers = range(initial_job_idx, initial_job_idx + len(job_overrides))
        configs = [
            self._compose(overrides, number)
            for overrides, number in zip(job_overrides, numbers, strict=True)
        ]
        executor, futures = self._submit(configs)
        try:
            count = "1 job" if len(futures) == 1 else f"{len(futures)} jobs"
            log.info("Queued %s, output in %s", count, hydra.sweep.dir)
            for number, future, overrides in zip(numbers, futures, job_overrides, strict=True):
                text = " ".join(filter_overrides(overrides))
                log.info("\t#%d : %s : %s", number, future.job_id, text)
            _wait(dict(zip(futures, numbers, strict=True)))
        except KeyboardInterrupt:
            _leave_or_cancel(executor, futures)
            raise SystemExit(INTERRUPTED) from None  # Hydra would print a traceback
        return [_job_return(*pair) for pair in zip(futures, configs, strict=True)]

    def _compose(self, overrides: Sequence[str], number: int) -> DictConfig:
        """Compose now: files that are edited later do not change a pending job."""
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.num = number
        return config

    def _submit(self, configs: Sequence[DictConfig]) -> tuple[Executor, list[Future[JobReturn]]]:
        from hydra_plugins.stoker_launcher._job import HydraJob, ResumableJob
        from stoker.api import StokerError

        kind = ResumableJob if self.parameters.get("max_num_timeout") else HydraJob
        job = kind(self.hydra_context, self.task_function, Singleton.get_state())
        try:
            executor = self._executor()
            return executor, executor.map_array(job, configs)
        except StokerError as error:  # Hydra prints its message without a traceback
            raise CompactHydraException(f"hydra.launcher: {error}") from error

    def _executor(self) -> Executor:
        from stoker.api import Executor
        from stoker.api.arguments.options import as_options
        from stoker.api.calls.parameters import positive_int

        parameters = dict(self.parameters)
        max_running = positive_int(parameters.pop("max_running", None), "max_running")
        if max_running is not None:
            parameters["array_parallelism"] = max_running
        copied = [name for name in self.config.hydra.job.env_copy if name in os.environ]
        variables = as_options({"env": parameters.get("env")}).get("env", [])
        parameters["env"] = [
            *(f"{name}={os.environ[name]}" for name in copied),
            *cast("list[str]", variables),
        ]
        return Executor(parameters.pop("folder", None), **parameters)


def _wait(numbers: Mapping[Future[JobReturn], int]) -> None:
    unfinished = set(numbers)
    while unfinished:
        # With a timeout: a Ctrl-C just before the wait is handled only after it.
        done, _ = concurrent.futures.wait(unfinished, timeout=1.0, return_when="FIRST_COMPLETED")
        for future in unfinished & done:
            log.info("\t#%d : %s : %s", numbers[future], future.job_id, _outcome_text(future))
        unfinished -= done


def _leave_or_cancel(executor: Executor, futures: Sequence[Future[JobReturn]]) -> None:
    """Leave the jobs in the queue, or cancel them at a second Ctrl-C."""
    try:
        log.warning("The jobs continue. Ctrl-C again within %d s cancels them.", CANCEL_SECONDS)
        time.sleep(CANCEL_SECONDS)
    except KeyboardInterrupt:
        executor.client.cancel(futures)
        log.warning("The jobs are cancelled.")


def _outcome_text(future: Future[JobReturn]) -> str:
    if future.cancelled():
        return "cancelled"
    return "done" if future.exception() is None else "failed"


def _job_return(future: Future[JobReturn], config: DictConfig) -> JobReturn:
    """Return the outcome for Hydra, also of a job that was killed, cancelled or lost."""
    from hydra_plugins.stoker_launcher._job import TaskFailed
    from stoker.api import StokerError

    if future.cancelled():
        return _failed_return(config, StokerError(f"Job {future.job_id} was cancelled."))
    error = future.exception()
    if error is None:
        return future.result()
    return error.to_job_return() if isinstance(error, TaskFailed) else _failed_return(config, error)


def _failed_return(config: DictConfig, error: BaseException) -> JobReturn:
    return JobReturn(
        overrides=list(config.hydra.overrides.task),
        cfg=OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]),
        hydra_cfg=OmegaConf.masked_copy(config, "hydra"),
        task_name=config.hydra.job.name,
        status=JobStatus.FAILED,
        _return_value=error,
    )
