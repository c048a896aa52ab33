"""Paths of an installation for all users, and the files that it has below /etc."""

from __future__ import annotations

import os
import sys

DAEMON_USER = "stoker"
ADMIN_GROUP = "stoker-admin"
ETC = "/etc/stoker"
GATE_CONFIG = f"{ETC}/gate.toml"
REMOVED_CONFIG = f"{GATE_CONFIG}.uninstalled"
DAEMON_CONFIG = f"{ETC}/config.toml"
DAEMON_STATE = "/var/lib/stoker"
USERS_STATE = "/var/lib/stoker-users"
GATE_STATE = "/var/lib/stoker-gate"
RUN = "/run/stoker"
PAM_FILE = "/etc/pam.d/stoker"
UNITS = "/etc/systemd/system"
GATE_UNIT, DAEMON_UNIT = "stoker-gate.service", "stokerd.service"
COMMAND_LINK = "/usr/local/bin/stoker"
WRITTEN = "# Written by `stoker system install`; it is written again unless this line is removed."

GATE_TOML = """\
# The gate of stoker, the only part that runs as root. All settings: docs/multi-user.md.
# min_uid = 1000
# allow_groups = []          # empty: every user may run jobs
# deny_users = []
"""
CONFIG_TOML = """\
# Settings of the system daemon, and the defaults of users' own daemons. Every user can read this.
[multiuser]
admin_group = "stoker-admin"
private = "all"              # what other users do not see of a job: all, logs or none
"""
PAM = """\
# Account checks and limits of the users whose jobs stoker runs. No module that needs the end of
# a session (pam_systemd, pam_mount) belongs here: sessions are not closed.
account  required  pam_unix.so
session  required  pam_limits.so
"""
GATE_SERVICE = """\
{written}
[Unit]
Description=stoker gate: connections and processes of users
After=network.target nss-user-lookup.target

[Service]
Type=notify
ExecStart={python} -I -m stoker.gate
# The jobs of all users descend from the gate: they survive its restart, and a restriction of
# this unit (capabilities, read-only paths) would be one of every job.
KillMode=process
Delegate=yes
OOMPolicy=continue
TasksMax=infinity
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""
DAEMON_SERVICE = """\
{written}
[Unit]
Description=stoker daemon of all users
Wants={gate}
After={gate}

[Service]
Type=notify
User={user}
Group={user}
ExecStart={python} -I -m stoker.daemon --system
CapabilityBoundingSet=
NoNewPrivileges=yes
# No PrivateTmp: the GPU locks of users' own daemons are in /tmp.
ProtectSystem=strict
ProtectHome=yes
ReadWritePaths={state} -/run/stoker/gpus
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""


def units() -> dict[str, str]:
    """Return the systemd units of this interpreter, by path."""
    values = {
        "written": WRITTEN, "python": sys.executable, "user": DAEMON_USER, "gate": GATE_UNIT,
        "state": DAEMON_STATE,
    }  # fmt: skip
    return {
        f"{UNITS}/{GATE_UNIT}": GATE_SERVICE.format(**values),
        f"{UNITS}/{DAEMON_UNIT}": DAEMON_SERVICE.format(**values),
    }


def has_systemd() -> bool:
    """Return whether systemd runs this machine."""
    return os.path.isdir("/run/systemd/system")
