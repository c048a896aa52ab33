"""Print what Lightning's SLURMEnvironment reads."""

from lightning.pytorch.plugins.environments import SLURMEnvironment

assert SLURMEnvironment.detect()
found = SLURMEnvironment()
print(
    found.world_size(), found.global_rank(), found.local_rank(), found.node_rank(),
    found.job_id(), found.job_name(), found.creates_processes_externally,
)  # fmt: skip
