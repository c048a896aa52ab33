"""The systemd user unit of `stoker daemon install`."""

from __future__ import annotations

import os

from stoker.cli import output
from stoker.client.autostart import daemon_command

UNIT = """\
[Unit]
Description=stoker keeps your GPUs fed

[Service]
Type=simple
ExecStart={command}
{environment}# Jobs are children of the supervisor, not of the daemon: they survive its restart.
KillMode=process
Delegate=yes
Restart=on-failure
RestartSec=2

[Install]
WantedBy=default.target
"""


def install_unit(args: list[str], *, only_print: bool) -> int:
    """Print the unit, or write it and print how to enable it."""
    text, path = unit_text(args), unit_path()
    if output.wants_json:
        output.emit({"path": path, "unit": text, "written": not only_print})
    elif only_print:
        print(text, end="")
    if only_print:
        return 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    output.say(
        f"stoker: wrote {path}. Now:\n"
        "  systemctl --user daemon-reload\n"
        "  stoker daemon stop; systemctl --user enable --now stoker\n"
        "  loginctl enable-linger    # so that it runs while you are logged out"
    )
    return 0


def unit_path() -> str:
    """Return the path of the user unit."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "systemd", "user", "stoker.service")


def unit_text(args: list[str]) -> str:
    """Return the unit for this interpreter, STOKER_HOME and these arguments."""
    command = " ".join(_quoted(word) for word in daemon_command(*args))
    home = os.environ.get("STOKER_HOME")
    line = f"Environment={_quoted('STOKER_HOME=' + os.path.abspath(home))}\n" if home else ""
    return UNIT.format(command=command, environment=line)


def _quoted(word: str) -> str:
    """Quote a word for systemd: % and $ doubled, spaces and quotes in quotes."""
    word = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    if word and not any(char in word for char in " \t\"'\\;{}"):
        return word
    return '"' + word.replace('"', '\\"') + '"'
