"""Settings of a benchmark run."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Options of one benchmark run."""

    cache: Path
    rounds: int = 5
    jobs: int = 1000
    quick: bool = False
    peers: str = ""

    @property
    def runs(self) -> Path:
        """Return the parent of the fresh directories: the same file system for all peers."""
        return self.cache / "runs"
