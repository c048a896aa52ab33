"""Settings of the gate: gate.toml, which belongs to root."""

from __future__ import annotations

import sys
import tomllib
from typing import Any, NamedTuple

from stoker.gate import trust

EXECUTOR = (sys.executable, "-I", "-m", "stoker.executors.user.process")
"""Program of a user executor; the gate appends the directory of the user."""


class ConfigError(Exception):
    """gate.toml cannot be used."""


class Config(NamedTuple):
    """Settings of gate.toml, each with its type and default."""

    daemon_user: str = "stoker"
    min_uid: int = 1000
    allow_root: bool = False
    allow_groups: tuple[str, ...] = ()
    deny_users: tuple[str, ...] = ()
    pam_service: str = "stoker"
    run_dir: str = "/run/stoker"
    users_dir: str = "/var/lib/stoker-users"
    state_dir: str = "/var/lib/stoker-gate"
    executor_command: tuple[str, ...] = EXECUTOR
    cgroup: str = ""
    """Cgroup (version 2) below which each user gets one; empty: that of the gate, if any."""
    device_groups: str = ""
    """Directory of device groups; empty: below the devices controller (version 1), if mounted."""

    @property
    def users_socket(self) -> str:
        """Return the path of the socket for all users."""
        return f"{self.run_dir}/stoker.sock"

    @property
    def daemon_socket(self) -> str:
        """Return the path of the socket for the system daemon."""
        return f"{self.run_dir}/gate.sock"


def read(path: str) -> Config:
    """Return the settings in the file, which only root may be able to change."""
    reason = trust.reason_against(path)
    if reason is not None:
        raise ConfigError(f"{path} is not used: {reason}")
    try:
        with open(path, "rb") as file:
            return parse(tomllib.load(file))
    except (OSError, ValueError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(table: dict[str, Any]) -> Config:
    """Return the settings of a table; unknown names and wrong types raise ConfigError."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        default = Config._field_defaults.get(name)
        if default is None:
            raise ConfigError(f"unknown setting {name!r}")
        if isinstance(default, tuple):
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise ConfigError(f"{name} must be a list of strings")
            values[name] = tuple(value)
            continue
        if type(value) is not type(default):
            raise ConfigError(f"{name} must be of type {type(default).__name__}")
        values[name] = value
    config = Config(**values)
    for name in ("run_dir", "users_dir", "state_dir"):
        if not getattr(config, name).startswith("/"):
            raise ConfigError(f"{name} must be an absolute path")
    if not config.executor_command or not config.executor_command[0].startswith("/"):
        raise ConfigError("executor_command must begin with an absolute path")
    if config.min_uid < 1:
        raise ConfigError("min_uid must be at least 1; see allow_root")
    return config
