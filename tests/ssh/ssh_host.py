"""A machine of the lab: its own processes, network, host name, user, home, /tmp and sshd."""

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
lab=$1 name=$2 user=$3 disk=$4
shift 4
mount -t proc proc /proc
mount --bind "$lab/boot_id" /proc/sys/kernel/random/boot_id
echo "$name" >/proc/sys/kernel/hostname
mount -t tmpfs -o mode=755 run /run
mkdir /run/sshd /run/lab
mount --bind "$lab" /run/lab
# Not on the files themselves: useradd outside replaces them, and what is mounted there goes.
mount -t overlay -o lowerdir=/run/lab/etc:/etc etc /etc
mount -t tmpfs -o mode=755 home /home
mkdir "/home/$user"
if [ -n "$disk" ]; then
    mount -t tmpfs -o "$disk" home "/home/$user"
else
    mount --bind /run/lab/home "/home/$user"
fi
mount --bind /run/lab/tmp /tmp
# A layer with a hole for each program that is not to be there.
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
HostKey /run/lab/host_key
AuthorizedKeysFile /run/lab/authorized_keys
PidFile /run/lab/sshd.pid
SetEnv PATH=/run/lab/bin:{PATH}
Subsystem sftp internal-sftp
LogLevel VERBOSE
PasswordAuthentication no
StrictModes no
UsePAM no
UseDNS no
MaxStartups 1000
# The default costs both ends 0.07 s more for each connection, and proves nothing here.
KexAlgorithms curve25519-sha256
MaxSessions 1000
"""


class Process(NamedTuple):
    """A process of a machine, as seen from here."""

    pid: int
    there: int
    """Its number on its own machine."""
    parent: int
    uid: int
    words: list[str]


class SshHost:
    """A machine that ssh reaches. Process ids are those seen from here, unless it says *there*."""

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
        """Switch it on; the lab plugs in its cable and starts sshd."""
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
        people = Path("/etc/passwd").read_text()
        (base / "etc/passwd").write_text(f"{people}{user}:*:{uid}:{uid}::/home/{user}:{shell}\n")
        (base / "etc/group").write_text(f"{Path('/etc/group').read_text()}{user}:x:{uid}:\n")
        (base / "sshd_config").write_text(SSHD_CONFIG + penalties_off())
        self._new_boot_id()
        self.new_host_key()
        self.admit()
        if self._gpus is not None:
            self.gpus([{}] * self._gpus)

    @property
    def url(self) -> str:
        """As one writes it."""
        return f"ssh://{self.user}@{self.address}:{self.port}"

    @property
    def alias(self) -> str:
        """A name that the lab's ssh configuration knows, with user, port and key."""
        return f"lab-{self.name}"

    @property
    def root(self) -> Path:
        """The machine's file system, seen from here."""
        return Path(f"/proc/{self.inside.pid}/root")

    @property
    def home_there(self) -> str:
        """The user's HOME, as the machine calls it."""
        return f"/home/{self.user}"

    @property
    def home(self) -> Path:
        """The user's HOME, seen from here."""
        return self.root / f"home/{self.user}"

    @property
    def log(self) -> str:
        """What sshd has said."""
        return (self.base / "log").read_text(errors="replace")

    # -- commands -----------------------------------------------------------------------

    def sh(self, command: str, as_root: bool = False, timeout: float = 30, **more: Any) -> Done:
        """Run a command there without ssh, in the user's HOME."""
        who = () if as_root else ("-S", str(self.uid), "-G", str(self.uid))
        env = {
            "HOME": self.home_there, "USER": self.user, "LOGNAME": self.user,
            "PATH": f"/run/lab/bin:{PATH}", "LANG": "C.UTF-8",
        }  # fmt: skip
        return subprocess.run(
            [*self.inside.enter("-a", *who), "sh", "-c", 'cd && eval "$1"', "sh", command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            **{"env": env, "timeout": timeout, **more},
        )  # fmt: skip

    def tool(self, name: str, text: str) -> Path:
        """Put a program first on the PATH of this machine's user."""
        path = self.base / "bin" / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    # -- processes ----------------------------------------------------------------------

    def processes(self) -> Iterator[Process]:
        """All of them but the first one, and no zombies."""
        mine = os.readlink(f"/proc/{self.inside.pid}/ns/pid")
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == mine:
                    found = look_at(int(entry))
                    if found.there != 1:
                        yield found

    def pids(self, word: str) -> list[int]:
        """The user's processes with this in their arguments or environment."""
        token, found = os.fsencode(word), []
        for process in self.processes():
            with contextlib.suppress(OSError):
                said = [Path(f"/proc/{process.pid}/{file}").read_bytes().replace(b"\0", b" ")
                        for file in ("cmdline", "environ")]  # fmt: skip
                if process.uid == self.uid and any(token in text for text in said):
                    found.append(process.pid)
        return sorted(found)

    def here(self, there: int) -> int:
        """The number here of the process with this number there."""
        return next(each.pid for each in self.processes() if each.there == there)

    def _sshd(self) -> list[Process]:
        return [each for each in self.processes() if each.words[0].startswith("sshd")]

    def _end_all(self) -> None:
        self.sh("kill -9 -1", as_root=True)
        until(lambda: not list(self.processes()))

    # -- what goes wrong ----------------------------------------------------------------

    def cut(self) -> None:
        """Pull the cable: packets vanish, both ways."""
        ip(f"link set dev {self.port_name} down", inside=self._switch)

    def restore(self) -> None:
        """Plug the cable in again."""
        ip(f"link set dev {self.port_name} up", inside=self._switch)

    def refuse(self) -> None:
        """Let nobody in."""
        (self.base / "authorized_keys").write_text("")

    def admit(self) -> None:
        """Let the lab's key in."""
        shutil.copy(f"{self.key}.pub", self.base / "authorized_keys")

    def new_host_key(self) -> None:
        """Show another host key from the next connection on."""
        for name in ("host_key", "host_key.pub"):
            (self.base / name).unlink(missing_ok=True)
        generate_key(self.base / "host_key")
        if (self.base / "sshd.pid").exists():
            self.stop_sshd()
            self.start_sshd()

    @property
    def listener(self) -> int | None:
        """The sshd that takes new connections."""
        return next((each.pid for each in self._sshd() if "listener" in each.words[0]), None)

    def start_sshd(self) -> None:
        """Take connections; return when they would be."""
        if self.listener is not None:
            return
        record = self.base / "sshd.pid"
        record.unlink(missing_ok=True)
        done = self.sh(f"{SSHD} -f /run/lab/sshd_config -E /run/lab/log", as_root=True)
        assert done.returncode == 0, f"{done.stderr}{self.log}"
        until(lambda: record.exists() and record.read_text().endswith("\n"))

    def stop_sshd(self, kill: bool = True) -> None:
        """Take no new connections; those that are stay (see `kill_connections`)."""
        if (pid := self.listener) is not None:
            if not kill:
                os.kill(pid, 15)
                until(lambda: self.listener is None)
            end(pid)

    def kill_connections(self) -> int:
        """Kill the sshd processes of living connections, and nothing else; say how many."""
        sessions = [each.pid for each in self._sshd() if "listener" not in each.words[0]]
        for pid in sessions:
            end(pid)
        return len(sessions)

    def agents(self) -> list[int]:
        """The shells that sshd runs for the user: one of them serves stoker."""
        parents = {each.there for each in self._sshd() if each.uid == self.uid}
        below = [each for each in self.processes() if each.parent in parents]
        return [each.pid for each in below if Path(each.words[0]).name in {"sh", "dash", "bash"}]

    def kill_agent(self) -> int:
        """Kill the shells that sshd runs for the user, not their children; say how many."""
        found = self.agents()
        for pid in found:
            end(pid)
        return len(found)

    def fake_reboot(self) -> None:
        """End every process, have another boot id, take connections again."""
        self._end_all()
        self._new_boot_id()
        self.start_sshd()

    def _new_boot_id(self) -> None:
        (self.base / "boot_id").write_text(f"{uuid.uuid4()}\n")

    # -- GPUs ---------------------------------------------------------------------------

    def gpus(self, gpus: Rows, apps: Rows = ()) -> list[str]:
        """Have these GPUs, by columns of nvidia-smi; apps may say `gpu` for an index. UUIDs."""
        if not (self.base / "bin/nvidia-smi").exists():
            self.tool("nvidia-smi", NVIDIA_SMI.read_text())
        return write_gpus(self.base, gpus, apps)

    # -- between tests ------------------------------------------------------------------

    def heal(self) -> None:
        """Answer again; what runs is left alone."""
        self.restore()
        self.admit()
        self.start_sshd()

    def wipe(self) -> None:
        """Be as new: nothing runs, HOME and /tmp are empty."""
        self._end_all()
        for place in (self.home, self.base / "tmp", self.base / "bin"):
            for path in place.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        self.home.chmod(0o700)
        if self._gpus is not None:
            self.gpus([{}] * self._gpus)
        self.heal()


def look_at(pid: int) -> Process:
    """A process by its number here."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    facts = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    parent = Path(f"/proc/{facts['PPid'][0]}/status")
    above = 0
    with contextlib.suppress(OSError):  # the parent is outside, or has just gone
        found = [line for line in parent.read_text().splitlines() if line.startswith("NSpid:")]
        above = int(found[0].split()[-1])
    return Process(pid, int(facts["NSpid"][-1]), above, int(facts["Uid"][1]), words)


def installed(patterns: Iterable[str]) -> list[str]:
    """Where programs of these names are on a machine's PATH."""
    places = {Path(place).resolve() for place in PATH.split(":")}
    return sorted(
        str(path) for place in places for pattern in patterns for path in place.glob(pattern)
    )


@functools.cache
def penalties_off() -> str:
    """OpenSSH 9.8 and later would shut out whoever fails to log in a few times."""
    trial = [SSHD, "-G", "-f", "/dev/stdin"]
    known = subprocess.run(
        trial, input="PerSourcePenalties no\n", capture_output=True, text=True, check=False
    )
    return "" if known.returncode else "PerSourcePenalties no\n"
