"""`python -I -m stoker.gate --config PATH`: run the gate in the foreground."""

from __future__ import annotations

import sys

from stoker.gate import config, server

DEFAULT_CONFIG = "/etc/stoker/gate.toml"
USAGE = f"usage: python -I -m stoker.gate [--config PATH]   (default: {DEFAULT_CONFIG})"


def main(arguments: list[str]) -> int:
    """Run the gate; return its exit code."""
    match arguments:
        case []:
            path = DEFAULT_CONFIG
        case ["--config", path]:
            pass
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    try:
        server.serve(config.read(path))
    except config.ConfigError as error:
        print(f"stoker-gate: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
