"""Test hosts of the ssh suites: namespaces with an sshd each, on a switch that can be cut.

Outside, only one network device is added, which is removed with the test process.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ON_CI, require
from e2e.daemon_fixture import DaemonFixture
from ssh.client import generate_key, ssh_program
from ssh.namespace import KINDS, Namespace, ip
from ssh.ssh_host import SSHD, Done, SshHost

TOOLS = ("ssh", SSHD, "ssh-keygen", "ip", "unshare", "nsenter", "mount")
SLOTS = 256
PROBE = """
ip link add probe type bridge
mount -t proc proc /proc
mount -t overlay -o lowerdir=/etc:/usr/bin probe /mnt
"""


class SshCluster:
    """A switch, its hosts, and the configuration of an OpenSSH client for them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._slot, self._claim = claim_slot()
        self._device, self._network = f"sk{self._slot}", f"198.18.{self._slot}"
        self._machines: dict[object, SshHost] = {}
        self._switch = Namespace(base / "switch.log", ":")
        self.key = base / "key"
        try:
            generate_key(self.key)
            self._write_client()
            self._plug_in()
        except BaseException:
            self.close()
            raise

    # -- the client side ----------------------------------------------------------------

    def _write_client(self) -> None:
        self.config, self.known_hosts = self.base / "config", self.base / "known_hosts"
        self.calls = self.base / "calls"
        self._write_config()
        ssh_program(self.base / "bin", self.config, self.calls)
        self.environment = {"PATH": f"{self.base}/bin:{os.environ['PATH']}"}
        self.forget()

    def _write_config(self) -> None:
        aliases = [
            f"Host {each.alias}\nHostName {each.address}\nPort {each.port}\nUser {each.user}\n"
            f"IdentityFile {each.key}\nIdentitiesOnly yes\n"
            for each in self._machines.values()
        ]
        everyone = (
            f"Host *\nUserKnownHostsFile {self.known_hosts}\nGlobalKnownHostsFile none\n"
            f"IdentityAgent none\nIdentityFile {self.base}/no-key-unless-given\n"
        )
        self.config.write_text("".join((*aliases, everyone)))

    def forget(self) -> None:
        """Forget host keys and the log of ssh calls."""
        self.known_hosts.unlink(missing_ok=True)
        self.calls.write_text("")

    def ssh(self, machine: SshHost, command: str, *options: str, timeout: float = 30) -> Done:
        """Run a command by plain ssh."""
        return subprocess.run(
            ["ssh", "-T", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new",
             "-oLogLevel=ERROR", "-i", str(machine.key), *options, machine.url, command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=timeout, env={**os.environ, **self.environment},
        )  # fmt: skip

    # -- machines -----------------------------------------------------------------------

    @property
    def a(self) -> SshHost:
        """The first host."""
        return self.machine("a")

    @property
    def b(self) -> SshHost:
        """The second host."""
        return self.machine("b")

    @property
    def c(self) -> SshHost:
        """The third host."""
        return self.machine("c")

    @property
    def machines(self) -> list[SshHost]:
        """The hosts that have been created so far."""
        return list(self._machines.values())

    def machine(self, name: str | None = None, **variant: Any) -> SshHost:
        """Return a host of this kind, created at the first call.

        `bare=True`: no bash, rsync, perl or Python; `hide=("tar",)`: not these programs;
        `gpus=2`: an nvidia-smi; `small_disk="2m"`: a HOME of this size.
        """
        kind = (name, *sorted(variant.items()))
        if kind not in self._machines:
            number = len(self._machines)
            name = name or f"m{number}"
            address = f"{self._network}.{10 + number}"
            uid = 200_000 + 100 * self._slot + number
            self._machines[kind] = made = SshHost(
                self.base / name, name, uid, address, self.key, self._switch, **variant
            )
            self._connect(made)
            made.start_sshd()
            self._write_config()
        return self._machines[kind]

    # -- the network --------------------------------------------------------------------

    def _hardware(self, address: str) -> str:
        return f"02:73:6b:{self._slot:02x}:00:{int(address.rpartition('.')[2]):02x}"

    def _plug_in(self) -> None:
        """Create a cable between this host and the switch."""
        address, device = f"{self._network}.1", self._device
        # The device of a killed run is removed by the kernel, maybe a moment later.
        subprocess.run(["ip", "link", "del", device], check=False, capture_output=True, timeout=20)
        ip(f"link add {device} address {self._hardware(address)} type veth"
           f" peer name uplink netns {self._switch.pid}",
           f"addr add {address}/24 dev {device}", f"link set {device} up")  # fmt: skip
        ip("link add switch type bridge", "link set switch up",
           "link set dev uplink master switch up", inside=self._switch)  # fmt: skip

    def _connect(self, machine: SshHost) -> None:
        """Create a cable between a host and the switch.

        Both sides have a fixed hardware address of the other. With ARP, a cut link would soon be
        reported; packets are to be lost silently, as behind a router.
        """
        outer, inner = f"{self._network}.1", machine.address
        ip(f"link add {machine.port_name} type veth"
           f" peer name eth0 address {self._hardware(inner)} netns {machine.inside.pid}",
           f"link set dev {machine.port_name} master switch up", inside=self._switch)  # fmt: skip
        ip("link set lo up", f"addr add {inner}/24 dev eth0", "link set eth0 up",
           f"neigh replace {outer} lladdr {self._hardware(outer)} dev eth0 nud permanent",
           inside=machine.inside)  # fmt: skip
        ip(f"neigh replace {inner} lladdr {self._hardware(inner)} dev {self._device} nud permanent")

    # -- between tests ------------------------------------------------------------------

    def heal(self) -> None:
        """Make every host reachable again; processes continue."""
        for machine in self.machines:
            machine.heal()

    def wipe(self) -> None:
        """Reset every host."""
        for machine in self.machines:
            machine.wipe()
        self.forget()

    def close(self) -> None:
        """End everything."""
        for machine in self.machines:
            machine.inside.close()
        self._switch.close()
        self._claim.close()


def claim_slot() -> tuple[int, socket.socket]:
    """Return a number that no other cluster on this host has while the socket is open."""
    for slot in range(SLOTS):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0stoker-test-{slot}")
        except OSError:
            claim.close()
        else:
            return slot, claim
    raise AssertionError(f"{SLOTS} labs at once")


def require_namespaces() -> None:
    """Skip the test if they cannot be created; with CI=true fail."""
    require(*TOOLS)
    reason = why_no_cluster()
    if reason is not None:
        (pytest.fail if ON_CI else pytest.skip)(reason)


def why_no_cluster() -> str | None:
    """Return why this host cannot create a cluster, if it cannot."""
    probe = ["unshare", *KINDS, "sh", "-euc", PROBE]
    done = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=20)
    if os.getuid() == 0 and done.returncode == 0:
        return None
    said = done.stderr.strip() or "not root"
    return f"needs root, and a kernel that lets it make namespaces, bridges and overlays: {said}"


# ---------------------------------------------------------------------------- fixtures


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshCluster]:
    """One cluster for all tests of this process."""
    require_namespaces()
    cluster = SshCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(shared_cluster: SshCluster) -> Iterator[SshCluster]:
    """The cluster; its hosts are reset after the test."""
    try:
        yield shared_cluster
    finally:
        shared_cluster.wipe()


@pytest.fixture
def daemon_and_cluster(
    cluster: SshCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[DaemonFixture, SshCluster]]:
    """A daemon that is not started yet and can reach the cluster, and the cluster."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    try:
        yield idle, cluster
    finally:
        cluster.heal()  # so that the daemon can end its jobs
