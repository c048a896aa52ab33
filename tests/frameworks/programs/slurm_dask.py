"""One worker of dask-jobqueue computes one number."""

from dask_jobqueue import SLURMCluster
from distributed import Client

if __name__ == "__main__":
    cluster = SLURMCluster(
        cores=1, processes=1, memory="200MB", walltime="00:05:00", interface="lo",
        death_timeout=60, log_directory="logs",
    )  # fmt: skip
    with cluster:
        cluster.scale(1)
        with Client(cluster) as client:
            client.wait_for_workers(1, timeout=60)
            print(client.submit(lambda x: x + 1, 41).result(timeout=60))
