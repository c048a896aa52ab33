"""An image of this host's Python, its shared libraries and some tools: no registry is needed.

usage: python_image.py OUT.tar NAME [TOOL...]

The archive is one that `ctr images import` and `docker load` take.
"""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

PILOT_TOOLS = (
    "awk", "basename", "bash", "cat", "chmod", "cksum", "cp", "cut", "date", "dd", "df", "dirname",
    "env", "false", "find", "grep", "head", "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mv",
    "nproc", "ps", "readlink", "rm", "rmdir", "sed", "seq", "setsid", "sleep", "sort", "stat",
    "tail", "tar", "tee", "touch", "tr", "true", "uname", "wc", "xargs",
)  # fmt: skip
SKIPPED = re.compile(
    r"/(test|tests|idlelib|ensurepip|lib2to3|tkinter|turtledemo|site-packages|dist-packages"
    r"|__pycache__|config-[^/]*)(/|$)|\.a$"
)
PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
PATH = "/usr/local/bin:/usr/bin:/bin"


class Root:
    """A root file system that is written to a tar file."""

    def __init__(self, file: io.BytesIO) -> None:
        self.tar = tarfile.open(fileobj=file, mode="w")  # noqa: SIM115 — closed by the caller
        self.names: set[str] = set()

    def add(self, source: str, name: str) -> None:
        name = name.lstrip("/")
        if name not in self.names:
            self.names.add(name)
            self.tar.add(source, name, recursive=False)

    def link(self, name: str, target: str) -> None:
        if name not in self.names:
            self.names.add(name)
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            self.tar.addfile(info)

    def tree(self, source: Path, name: str) -> None:
        """Add a file or a directory with all its files, except byte code."""
        self.tar.add(
            source, name.lstrip("/"),
            filter=lambda info: None if "__pycache__" in info.name else info,
        )  # fmt: skip

    def directory(self, name: str, mode: int = 0o755) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self.tar.addfile(info)

    def text(self, name: str, text: str) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(text)
        self.tar.addfile(info, io.BytesIO(text.encode()))


def standard_library() -> Iterator[str]:
    """Yield the files of the standard library."""
    prefix = os.path.realpath(sys.base_prefix)
    paths = {"base": prefix, "installed_base": prefix}
    for directory, names, files in os.walk(
        os.path.realpath(sysconfig.get_path("stdlib", vars=paths))
    ):
        names[:] = [name for name in names if not SKIPPED.search(f"{directory}/{name}/")]
        yield from (f"{directory}/{name}" for name in files if not SKIPPED.search(name))


def shared_libraries(programs: set[str]) -> dict[str, str]:
    """Return the libraries that programs load: the path by which they are found, and the file."""
    output = subprocess.run(["ldd", *sorted(programs)], capture_output=True, text=True, check=False)
    found = re.finditer(r"(?:=>\s+)?(/\S+)\s+\(0x", output.stdout)
    return {match[1]: os.path.realpath(match[1]) for match in found}


def root_file_system(tools: tuple[str, ...], modules: tuple[str, ...] = ()) -> bytes:
    """Return the tar file of Python, sh and these tools, and of the libraries of C modules."""
    python = os.path.realpath(os.path.join(sys.base_prefix, "bin", "python3"))
    shell = os.path.realpath("/bin/sh")
    paths = {name: path for name in tools if (path := shutil.which(name, path="/usr/bin:/bin"))}
    library = list(standard_library())
    programs = {python, shell, *map(os.path.realpath, paths.values())}
    loaded = programs | set(modules) | {path for path in library if path.endswith(".so")}
    file = io.BytesIO()
    root = Root(file)
    for name in ("proc", "sys", "dev", "etc", "root", "work", "mnt", "data"):
        root.directory(name)
    root.directory("tmp", 0o1777)
    for path in [*library, *sorted(programs)]:
        root.add(path, path)
    for name, path in shared_libraries(loaded).items():
        root.add(path, name)
    root.link("bin/sh", shell)
    for name, path in paths.items():
        if os.path.basename(os.path.realpath(path)) != name:
            root.link(f"usr/bin/{name}", os.path.realpath(path))
    for name in ("python3", "python"):
        root.link(f"usr/local/bin/{name}", python)
    root.text("etc/passwd", PASSWD)
    root.tar.close()
    return file.getvalue()


def write_image(
    out: Path,
    name: str,
    tools: tuple[str, ...] = PILOT_TOOLS,
    files: dict[str, str] | None = None,
    trees: dict[str, Path] | None = None,
    environment: tuple[str, ...] = (),
) -> None:
    """Write the archive of an image.

    `files` are texts, and `trees` files and directories of this host, by their paths in it.
    """
    sources = [path for tree in (trees or {}).values() for path in [tree, *tree.rglob("*.so")]]
    modules = tuple(str(path) for path in sources if path.suffix == ".so")
    layers = [root_file_system(tools, modules)]
    if files or trees:
        extra = io.BytesIO()
        root = Root(extra)
        for path, text in (files or {}).items():
            root.text(path.lstrip("/"), text)
        for path, source in (trees or {}).items():
            root.tree(source, path)
        root.tar.close()
        layers.append(extra.getvalue())
    digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Env": [f"PATH={PATH}", *environment],
                "Cmd": ["sleep", "infinity"],
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"{digest}/layer.tar" for digest in digests]
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": names}]).encode()
    with tarfile.open(out, "w") as archive:
        contents = [
            (config_name, config),
            *zip(names, layers, strict=True),
            ("manifest.json", manifest),
        ]
        for path, data in contents:
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    write_image(Path(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:]) or PILOT_TOOLS)
