"""A login node: an sshd on loopback whose sessions have Slurm's configuration."""

import os
import subprocess
from pathlib import Path

from e2e.daemon_fixture import until
from slurm.slurm_cluster import SlurmCluster, free_ports
from ssh.client import generate_key, ssh_program
from ssh.ssh_host import SSHD, penalties_off

TOOLS = ("ssh", SSHD, "ssh-keygen", "unshare", "mount")
# sshd needs a directory of its own in /run, which only exists where it is installed as a service.
START = 'mount -t tmpfs run /run && mkdir /run/sshd && exec "$@"'
CONFIGURATION = """
ListenAddress 127.0.0.1:{port}
HostKey {base}/host_key
AuthorizedKeysFile {base}/key.pub
PidFile {base}/sshd.pid
SetEnv SLURM_CONF={conf} PATH={path} HOME={home}
PasswordAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
UseDNS no
KexAlgorithms curve25519-sha256
"""


class LoginNode:
    """The host `login` of the ssh that is first on `path`."""

    def __init__(self, base: Path, slurm: SlurmCluster, home: Path) -> None:
        self.base = base
        base.mkdir()
        port = free_ports(1)[0]
        for name in ("host_key", "key"):
            generate_key(base / name)
        path, conf = os.environ["PATH"], slurm.environment["SLURM_CONF"]
        text = CONFIGURATION.format(port=port, base=base, conf=conf, path=path, home=home)
        (base / "sshd_config").write_text(text + penalties_off())
        self.calls = base / "calls"
        (base / "config").write_text(
            f"Host login\nHostName 127.0.0.1\nPort {port}\nIdentityFile {base}/key\n"
            f"IdentitiesOnly yes\nUserKnownHostsFile {base}/known_hosts\nIdentityAgent none\n"
        )
        ssh_program(base / "bin", base / "config", self.calls)
        self.path = f"{base}/bin:{path}"
        command = [SSHD, "-D", "-f", f"{base}/sshd_config", "-E", f"{base}/log"]
        self._sshd = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", START, "sh", *command],
            stdin=subprocess.DEVNULL, env={"PATH": path}, cwd="/", start_new_session=True,
        )  # fmt: skip
        until((base / "sshd.pid").exists)

    def close(self) -> None:
        """End sshd."""
        self._sshd.terminate()
        self._sshd.wait(10)
