"""A test host: its own processes, network, host name, user, home, /tmp and sshd."""

import contextlib
import functools
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from e2e.daemon_fixture import kill as end
from e2e.daemon_fixture import until
from ssh.client import generate_key
from ssh.gpus import NVIDIA_SMI, Rows, write_gpus
from ssh.namespace import Namespace, ip

Done = subprocess.CompletedProcess[str]
SSHD = "/usr/sbin/sshd"
PORT = 2222
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOT_ON_A_BARE_MACHINE = ("bash", "rbash", "rsync", "perl", "python", "python3*")

SETUP = """
base=$1 name=$2 user=$3 disk=$4
shift 4
mount -t proc proc /proc
mount --bind "$base/boot_id" /proc/sys/kernel/random/boot_id
echo "$name" >/proc/sys/kernel/hostname
mount -t tmpfs -o mode=755 run /run
mkdir /run/sshd /run/testhost
mount --bind "$base" /run/testhost
# Not on the files themselves: useradd outside replaces them, which removes the mounts.
mount -t overlay -o lowerdir=/run/testhost/etc:/etc etc /etc
mount -t tmpfs -o mode=755 home /home
mkdir "/home/$user"
if [ -n "$disk" ]; then
    mount -t tmpfs -o "$disk" home "/home/$user"
else
    mount --bind /run/testhost/home "/home/$user"
fi
mount --bind /run/testhost/tmp /tmp
# An overlay with a whiteout for each program to hide.
for tool in "$@"; do
    mkdir -p "/run/holes${tool%/*}"
    mknod "/run/holes$tool" c 0 0
    echo "${tool%/*}"
done | sort -u | while read -r place; do
    mount -t overlay -o "lowerdir=/run/holes$place:$place" holes "$place"
done
"""

SSHD_CONFIG = f"""
Port {PORT}
HostKey /run/testhost/host_key
AuthorizedKeysFile /run/testhost/authorized_keys
PidFile /run/testhost/sshd.pid
SetEnv PATH=/run/testhost/bin:{PATH}
Subsystem sftp internal-sftp
LogLevel VERBOSE
PasswordAuthentication no
StrictModes no
UsePAM no
UseDNS no
MaxStartups 1000
# The default takes 0.07 s more per connection on both ends, without use in tests.
KexAlgorithms curve25519-sha256
MaxSessions 1000
"""


class Process(NamedTuple):
    """A process of a test host."""

    pid: int
    namespace_pid: int
    """Its pid inside the test host."""
    parent: int
    uid: int
    words: list[str]


class SshHost:
    """A host that ssh reaches. Pids are those outside, unless they are called namespace pids."""

    def __init__(
        self,
        base: Path,
        name: str,
        uid: int,
        address: str,
        key: Path,
        switch: Namespace,
        bare: bool = False,
        hide: Iterable[str] = (),
        gpus: int | None = None,
        small_disk: str | None = None,
    ) -> None:
        """Create the namespaces; the cluster connects the network and starts sshd."""
        self.base, self.name, self.uid, self.address, self.key = base, name, uid, address, key
        self.user, self.port, self.port_name = f"user-{name}", PORT, f"port-{name}"
        self._switch, self._bare, self._gpus = switch, bare, gpus
        self._lay_out()
        hidden = {"nvidia-smi", *hide, *(NOT_ON_A_BARE_MACHINE if bare else ())}
        disk = f"size={small_disk},uid={uid},gid={uid},mode=700" if small_disk else ""
        words = (str(base), name, self.user, disk, *installed(hidden))
        self.inside = Namespace(base / "log", SETUP, *words)

    def _lay_out(self) -> None:
        base, uid, user = self.base, self.uid, self.user
        base.mkdir(mode=0o755)
        for name, mode in (("home", 0o700), ("tmp", 0o1777), ("bin", 0o755), ("etc", 0o755)):
            (base / name).mkdir()
            (base / name).chmod(mode)
        os.chown(base / "home", uid, uid)
        shell = "/bin/sh" if self._bare or not shutil.which("bash") else "/bin/bash"
        users = Path("/etc/passwd").read_text()
        (base / "etc/passwd").write_text(f"{users}{user}:*:{uid}:{uid}::/home/{user}:{shell}\n")
        (base / "etc/group").write_text(f"{Path('/etc/group').read_text()}{user}:x:{uid}:\n")
        (base / "sshd_config").write_text(SSHD_CONFIG + penalties_off())
        self._new_boot_id()
        self.new_host_key()
        self.admit()
        if self._gpus is not None:
            self.gpus([{}] * self._gpus)

    @property
    def url(self) -> str:
        """Its address as a URL."""
        return f"ssh://{self.user}@{self.address}:{self.port}"

    @property
    def alias(self) -> str:
        """Its name in the ssh configuration, with user, port and key."""
        return f"test-{self.name}"

    @property
    def root(self) -> Path:
        """The root of its file system, seen from outside."""
        return Path(f"/proc/{self.inside.pid}/root")

    @property
    def home_inside(self) -> str:
        """The path of the user's HOME inside."""
        return f"/home/{self.user}"

    @property
    def home(self) -> Path:
        """The user's HOME, seen from outside."""
        return self.root / f"home/{self.user}"

    @property
    def log(self) -> str:
        """The log of sshd."""
        return (self.base / "log").read_text(errors="replace")

    # -- commands -----------------------------------------------------------------------

    def sh(self, command: str, as_root: bool = False, timeout: float = 30, **more: Any) -> Done:
        """Run a command inside without ssh, in the user's HOME."""
        who = () if as_root else ("-S", str(self.uid), "-G", str(self.uid))
        env = {
            "HOME": self.home_inside, "USER": self.user, "LOGNAME": self.user,
            "PATH": f"/run/testhost/bin:{PATH}", "LANG": "C.UTF-8",
        }  # fmt: skip
        return subprocess.run(
            [*self.inside.enter("-a", *who), "sh", "-c", 'cd && eval "$1"', "sh", command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            **{"env": env, "timeout": timeout, **more},
        )  # fmt: skip

    def tool(self, name: str, text: str) -> Path:
        """Put a program first on the PATH of the host's user."""
        path = self.base / "bin" / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    # -- processes ----------------------------------------------------------------------

    def processes(self) -> Iterator[Process]:
        """Yield all processes except init and zombies."""
        namespace = os.readlink(f"/proc/{self.inside.pid}/ns/pid")
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == namespace:
                    process = read_process(int(entry))
                    if process.namespace_pid != 1:
                        yield process

    def pids(self, word: str) -> list[int]:
        """Return the user's processes with this text in their arguments or environment."""
        token, matching = os.fsencode(word), []
        for process in self.processes():
            with contextlib.suppress(OSError):
                texts = [Path(f"/proc/{process.pid}/{file}").read_bytes().replace(b"\0", b" ")
                        for file in ("cmdline", "environ")]  # fmt: skip
                if process.uid == self.uid and any(token in text for text in texts):
                    matching.append(process.pid)
        return sorted(matching)

    def outer_pid(self, namespace_pid: int) -> int:
        """Return the outer pid of the process with this namespace pid."""
        return next(
            process.pid for process in self.processes() if process.namespace_pid == namespace_pid
        )

    def _sshd(self) -> list[Process]:
        return [process for process in self.processes() if process.words[0].startswith("sshd")]

    def _end_all(self) -> None:
        self.sh("kill -9 -1", as_root=True)
        until(lambda: not list(self.processes()))

    # -- failures -----------------------------------------------------------------------

    def cut(self) -> None:
        """Drop all packets, in both directions."""
        ip(f"link set dev {self.port_name} down", inside=self._switch)

    def restore(self) -> None:
        """Forward packets again."""
        ip(f"link set dev {self.port_name} up", inside=self._switch)

    def refuse(self) -> None:
        """Accept no key."""
        (self.base / "authorized_keys").write_text("")

    def admit(self) -> None:
        """Accept the key of the cluster."""
        shutil.copy(f"{self.key}.pub", self.base / "authorized_keys")

    def new_host_key(self) -> None:
        """Use another host key for new connections."""
        for name in ("host_key", "host_key.pub"):
            (self.base / name).unlink(missing_ok=True)
        generate_key(self.base / "host_key")
        if (self.base / "sshd.pid").exists():
            self.stop_sshd()
            self.start_sshd()

    @property
    def listener(self) -> int | None:
        """Return the pid of the sshd that accepts new connections."""
        return next(
            (process.pid for process in self._sshd() if "listener" in process.words[0]), None
        )

    def start_sshd(self) -> None:
        """Accept connections; return when sshd listens."""
        if self.listener is not None:
            return
        record = self.base / "sshd.pid"
        record.unlink(missing_ok=True)
        done = self.sh(f"{SSHD} -f /run/testhost/sshd_config -E /run/testhost/log", as_root=True)
        assert done.returncode == 0, f"{done.stderr}{self.log}"
        until(lambda: record.exists() and record.read_text().endswith("\n"))

    def stop_sshd(self, kill: bool = True) -> None:
        """Accept no new connections; open ones stay (see `kill_connections`)."""
        if (pid := self.listener) is not None:
            if not kill:
                os.kill(pid, 15)
                until(lambda: self.listener is None)
            end(pid)

    def kill_connections(self) -> int:
        """Kill the sshd processes of open connections only; return their number."""
        sessions = [process.pid for process in self._sshd() if "listener" not in process.words[0]]
        for pid in sessions:
            end(pid)
        return len(sessions)

    def agents(self) -> list[int]:
        """Return the shells that sshd runs for the user; one of them is the agent."""
        parents = {process.namespace_pid for process in self._sshd() if process.uid == self.uid}
        below = [process for process in self.processes() if process.parent in parents]
        return [
            process.pid
            for process in below
            if Path(process.words[0]).name in {"sh", "dash", "bash"}
        ]

    def kill_agent(self) -> int:
        """Kill the shells that sshd runs for the user, not their children; return their number."""
        shells = self.agents()
        for pid in shells:
            end(pid)
        return len(shells)

    def fake_reboot(self) -> None:
        """End every process, change the boot id, and accept connections again."""
        self._end_all()
        self._new_boot_id()
        self.start_sshd()

    def _new_boot_id(self) -> None:
        (self.base / "boot_id").write_text(f"{uuid.uuid4()}\n")

    # -- GPUs ---------------------------------------------------------------------------

    def gpus(self, gpus: Rows, apps: Rows = ()) -> list[str]:
        """Set the GPUs, by columns of nvidia-smi; apps may have `gpu`, an index; return UUIDs."""
        if not (self.base / "bin/nvidia-smi").exists():
            self.tool("nvidia-smi", NVIDIA_SMI.read_text())
        return write_gpus(self.base, gpus, apps)

    # -- between tests ------------------------------------------------------------------

    def heal(self) -> None:
        """Make the host reachable again; processes continue."""
        self.restore()
        self.admit()
        self.start_sshd()

    def wipe(self) -> None:
        """Reset the host: no processes, empty HOME and /tmp."""
        self._end_all()
        for directory in (self.home, self.base / "tmp", self.base / "bin"):
            for path in directory.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        self.home.chmod(0o700)
        if self._gpus is not None:
            self.gpus([{}] * self._gpus)
        self.heal()


def read_process(pid: int) -> Process:
    """Return a process by its outer pid."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {name: values.split() for name, _, values in (line.partition(":") for line in lines)}
    parent = Path(f"/proc/{fields['PPid'][0]}/status")
    parent_pid = 0
    with contextlib.suppress(OSError):  # the parent is outside, or has ended
        lines_with_pids = [
            line for line in parent.read_text().splitlines() if line.startswith("NSpid:")
        ]
        parent_pid = int(lines_with_pids[0].split()[-1])
    return Process(pid, int(fields["NSpid"][-1]), parent_pid, int(fields["Uid"][1]), words)


def installed(patterns: Iterable[str]) -> list[str]:
    """Return the paths of programs with these names on the PATH."""
    directories = {Path(directory).resolve() for directory in PATH.split(":")}
    return sorted(
        str(path)
        for directory in directories
        for pattern in patterns
        for path in directory.glob(pattern)
    )


@functools.cache
def penalties_off() -> str:
    """Return the setting without which OpenSSH 9.8 rejects clients after failed logins."""
    trial = [SSHD, "-G", "-f", "/dev/stdin"]
    check = subprocess.run(
        trial, input="PerSourcePenalties no\n", capture_output=True, text=True, check=False
    )
    return "" if check.returncode else "PerSourcePenalties no\n"
