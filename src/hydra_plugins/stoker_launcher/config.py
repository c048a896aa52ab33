"""What can be said under `hydra.launcher`; anything else of a submission goes there with a `+`."""

from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore


# Annotations are no texts here: while Hydra scans plugins, a dataclass cannot look them up.
@dataclass
class StokerConf:
    """The parameters of a `stoker.Executor`; what is null is as if it were not there."""

    _target_: str = "hydra_plugins.stoker_launcher.stoker_launcher.StokerLauncher"
    # Calls and their results. Inside the working directory it goes along to other machines.
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
    # How many of a sweep run at a time, in our word and in submitit's.
    max_running: Any = None
    array_parallelism: Any = None
    dependency: Any = None
    comment: Any = None

    retries: Any = None
    retry_on: Any = None
    requeue: Any = None
    # So often a job whose time is up is run again; only then is it stopped before its limit.
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
