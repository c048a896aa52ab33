"""How much to measure."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """The options of one benchmark run, as every measure sees them."""

    cache: Path
    rounds: int = 5
    jobs: int = 1000
    quick: bool = False
    peers: str = ""

    @property
    def runs(self) -> Path:
        """Where the fresh directories are made: the same file system for everybody."""
        return self.cache / "runs"
