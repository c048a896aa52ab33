"""Slurm 24.11 of the next Debian suite, in the directory that `.ci/newer-slurm` creates."""

import os
import socket
from pathlib import Path

from conftest import ROOT
from e2e.daemon_fixture import until
from slurm.slurm_cluster import COMMANDS, DaemonGroup

DIRECTORY = ".newer-slurm"
TOOLS = (f"{DIRECTORY}/.installed", "unshare", "nsenter", "mount")
PROGRAMS = [*(f"/usr/bin/{name}" for name in COMMANDS), "/usr/sbin/slurmctld", "/usr/sbin/slurmd"]
# What its programs see of this host. Mounted in a name space, all of it ends with the holder.
START = """
cd "$1" || exit 1
for path in /proc /dev /sys /tmp "$2"; do
    mkdir -p ".$path" && mount --rbind "$path" ".$path" || exit 1
done
for path in passwd group; do
    mount --bind "/etc/$path" "./etc/$path" || exit 1
done
touch ./etc/hosts && mount --bind "$2/hosts" ./etc/hosts || exit 1
exec chroot . sh -c 'touch "$0/mounted"; exec sleep infinity' "$2"
"""
PROGRAM = """#!/bin/sh
exec nsenter --target {holder} --mount --root --wdns=/ \\
    /bin/sh -c 'cd "$0" 2>/dev/null; exec {path} "$@"' "$PWD" "$@"
"""


class NewerSlurm(DaemonGroup):
    """The programs of the newer Slurm, as a service of a cluster; needs root."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.settings: dict[str, str] = {}

    def start(self, environment: dict[str, str]) -> None:
        """Mount its file system, and put its programs first on the PATH."""
        # Its default, cgroup v2, is not what every host has.
        (self.base / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        (self.base / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
        holder = self.start_daemon(
            "holder", "unshare", "--mount", "--propagation", "private",
            "sh", "-c", START, "sh", str(ROOT / DIRECTORY), str(self.base),
        )  # fmt: skip
        until((self.base / "mounted").exists)
        directory = self.base / "bin"
        directory.mkdir()
        for path in PROGRAMS:
            program = directory / Path(path).name
            program.write_text(PROGRAM.format(holder=holder, path=path))
            program.chmod(0o755)
        environment["PATH"] = f"{directory}:{os.environ['PATH']}"
