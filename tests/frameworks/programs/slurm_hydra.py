"""A Hydra application that writes its parameter and its place in the array."""

import os
from pathlib import Path
from typing import Any

import hydra


@hydra.main(version_base="1.3", config_path=None)
def main(config: Any) -> None:
    Path("result").write_text(f"{config.x} {os.environ['SLURM_ARRAY_TASK_ID']}\n")


if __name__ == "__main__":
    main()
