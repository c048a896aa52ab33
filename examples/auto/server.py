"""The server of the guide of auto: `python server.py --gpus 0 1 2 3`."""

import sys

from stoker.compat.registry import run_compat_command

sys.exit(run_compat_command("auto", ["server", *sys.argv[1:]]))
