"""Check without Node that the committed pages were built from the committed sources."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent
DIST = ROOT.parent / "src" / "stoker" / "ui" / "dist"


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def source_hash() -> str:
    """Return the hash of everything that the pages are built from, as build.mjs computes it."""
    files = [path for path in (ROOT / "src").rglob("*") if path.is_file()]
    files = [path for path in files if not path.name.endswith(".d.ts")]
    files += [ROOT / "build.mjs", ROOT / "package-lock.json"]
    total = hashlib.sha256()
    for name, path in sorted((path.relative_to(ROOT).as_posix(), path) for path in files):
        total.update(f"{name}\0{sha256(path)}\n".encode())
    return total.hexdigest()


def problems() -> list[str]:
    """Return what differs between sources and built pages."""
    try:
        manifest = json.loads((DIST / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        return [f"{DIST / 'manifest.json'} cannot be read: {error}"]
    found = []
    if manifest["source"] != source_hash():
        found.append("the pages were built from other sources")
    present = {path.name for path in DIST.iterdir()} - {"manifest.json"}
    unknown = sorted(present - set(manifest["files"]))
    found += [f"{name} is not in manifest.json" for name in unknown]
    for name, digest in manifest["files"].items():
        if name not in present:
            found.append(f"{name} is missing")
        elif sha256(DIST / name) != digest:
            found.append(f"{name} was changed")
    return found


if __name__ == "__main__":
    found = problems()
    if found:
        sys.exit(f"src/stoker/ui/dist: {'; '.join(found)}. Run `make ui` and commit the result.")
