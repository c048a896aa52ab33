"""TimedLoader: a data loader with timed batches."""

from __future__ import annotations

from typing import Generic, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stoker.training.training_job import Job

Batch = TypeVar("Batch")


class TimedLoader(Generic[Batch]):
    """Iterates over a loader and times each batch; has its length, for progress bars."""

    def __init__(self, job: Job, loader: Iterable[Batch]) -> None:
        self._job = job
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        measure = self._job.measure
        for batch in self._loader:
            yield batch
            measure()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]
