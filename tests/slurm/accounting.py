"""Slurm's accounting for a cluster on loopback: slurmdbd, and MariaDB behind a socket file."""

import subprocess
from pathlib import Path

from e2e.daemon_fixture import until
from slurm.slurm_cluster import DaemonGroup, free_ports

MARIADB, SLURMDBD = "/usr/sbin/mariadbd", "/usr/sbin/slurmdbd"
TOOLS = (MARIADB, SLURMDBD, "sacct", "sacctmgr")

# Without tables of privileges: only this user can reach the socket file. Nothing has to survive.
DATABASE = """
[mariadbd]
user={user}
datadir={base}/database
socket={base}/database.socket
pid-file={base}/database.pid
skip-networking
skip-grant-tables
innodb-flush-log-at-trx-commit=0
innodb-fast-shutdown=2
innodb-log-file-size=4M
innodb-buffer-pool-size=32M
"""
CONFIGURATION = """
AuthType=auth/none
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
CommunicationParameters=NoInAddrAny
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageLoc=slurm
StorageUser={user}
PidFile={base}/slurmdbd.pid
LogFile={base}/slurmdbd.log
"""


class Accounting(DaemonGroup):
    """A slurmdbd with an empty database; its files are beside those of the cluster."""

    def __init__(self, base: Path, user: str) -> None:
        super().__init__(base)
        port = free_ports(1)[0]
        self.settings = {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(port),
        }
        """For slurm.conf."""
        (base / "database").mkdir()
        (base / "database.conf").write_text(DATABASE.format(base=base, user=user))
        configuration = base / "slurmdbd.conf"
        configuration.touch(mode=0o600)
        configuration.write_text(CONFIGURATION.format(base=base, user=user, port=port))

    def start(self, environment: dict[str, str]) -> None:
        """Start both, with slurm.conf in the environment, and create the cluster's tables."""
        socket = self.base / "database.socket"
        self.start_daemon("mariadbd", MARIADB, f"--defaults-file={self.base}/database.conf")
        until(socket.exists)
        variables = {**environment, "MYSQL_UNIX_PORT": str(socket)}
        self.start_daemon("slurmdbd", SLURMDBD, "-D", environment=variables)

        def create_tables() -> bool:
            done = subprocess.run(
                ["sacctmgr", "--immediate", "--quiet", "add", "cluster", "test"],
                env=variables, capture_output=True, check=False, timeout=20, cwd="/",
            )  # fmt: skip
            return done.returncode == 0

        until(create_tables)
