"""The GPUs that the stand-in for nvidia-smi prints."""

import contextlib
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

NVIDIA_SMI = Path(__file__).parents[1] / "fakes" / "nvidia-smi"
GPU_COLUMNS = ("index", "uuid", "name", "memory.total", "memory.used", "memory.free",
               "utilization.gpu", "temperature.gpu", "power.draw")  # fmt: skip
APP_COLUMNS = ("gpu_uuid", "pid", "process_name", "used_memory")

Rows = Iterable[Mapping[str, object]]


def write_gpus(directory: Path, gpus: Rows, apps: Rows) -> list[str]:
    """Write both tables, with defaults for missing values; return the UUIDs."""
    rows = [gpu_row(directory, index, gpu) for index, gpu in enumerate(gpus)]
    uuids = [str(row["uuid"]) for row in rows]
    write_table(directory / "gpus", GPU_COLUMNS, rows)
    write_table(directory / "apps", APP_COLUMNS, [app_row(uuids, app) for app in apps])
    return uuids


def gpu_row(directory: Path, index: int, given: Mapping[str, object]) -> dict[str, object]:
    """Return the row of one GPU."""
    gpu: dict[str, object] = {
        "index": index,
        "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{directory.name}.{index}')}",
        "name": "Tesla T4", "memory.total": 16384, "memory.used": 0, "utilization.gpu": 0,
        "temperature.gpu": 40, "power.draw": "30.00", **given,
    }  # fmt: skip
    with contextlib.suppress(ValueError):  # [N/A]
        free = int(str(gpu["memory.total"])) - int(str(gpu["memory.used"]))
        gpu.setdefault("memory.free", free)
    return {"memory.free": "[N/A]", **gpu}


def app_row(uuids: list[str], given: Mapping[str, object]) -> dict[str, object]:
    """Return the row of one process on a GPU."""
    where = {"gpu_uuid": uuids[int(str(given.get("gpu", 0)))]}
    return {**where, "pid": 1, "process_name": "python", "used_memory": 100, **given}


def write_table(path: Path, columns: tuple[str, ...], rows: Iterable[Mapping[str, object]]) -> None:
    """Write a table atomically: a host may be reading it."""
    lines = ["\t".join(columns)]
    lines += ["\t".join(str(row[column]) for column in columns) for row in rows]
    new = path.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    new.replace(path)
