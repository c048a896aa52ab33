"""The training library as an object of the API: a ConfigMap, mounted in pods. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def build_library(directory: str) -> dict[str, Any]:
    """Return a ConfigMap with the files of a directory: at most 1 MiB, the library has 0.1."""
    files = {
        str(path.relative_to(directory)): path.read_text()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"stoker-library-{os.path.basename(directory).rpartition('-')[2]}"},
        "data": {_key(path): text for path, text in files.items()},
    }


def _key(path: str) -> str:
    return path.replace("/", "..")


def library_volume(library: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source of a volume with the library's directories."""
    items = [{"key": key, "path": key.replace("..", "/")} for key in library["data"]]
    return {"configMap": {"name": library["metadata"]["name"], "items": items}}
