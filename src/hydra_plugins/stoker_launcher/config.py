"""Configuration of `hydra.launcher`; other options of a submission need a leading `+`."""

from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore


# No `from __future__ import annotations`: during Hydra's plugin scan, a dataclass cannot
# resolve annotations that are strings.
@dataclass
class StokerConf:
    """The parameters of a `stoker.Executor`; null means not given."""

    _target_: str = "hydra_plugins.stoker_launcher.stoker_launcher.StokerLauncher"
    # Calls and results. Inside the working directory, it is uploaded to other nodes.
    folder: str = "${hydra.sweep.dir}/.stoker"
    name: str = "${hydra.job.name}"

    gpus: Any = None
    gpus_per_node: Any = None
    gpu_memory: Any = None
    gpus_min_vram: Any = None
    gpu_model: Any = None
    cpus_per_task: Any = None
    mem_gb: Any = None
    timeout_min: Any = None

    queue: Any = None
    priority: Any = None
    # Maximum number of running jobs: our name and submitit's.
    max_running: Any = None
    array_parallelism: Any = None
    dependency: Any = None
    comment: Any = None

    retries: Any = None
    retry_on: Any = None
    requeue: Any = None
    # How often a job is requeued at its time limit; if set, it is stopped before the limit.
    max_num_timeout: Any = None
    signal_delay_s: Any = None

    env: Any = None
    nodelist: Any = None
    exclude: Any = None
    constraint: Any = None
    stderr_to_stdout: Any = None
    python: Any = None


ConfigStore.instance().store(
    group="hydra/launcher", name="stoker", node=StokerConf, provider="stoker_launcher"
)
