"""The client of the guide of auto: `python client.py run --cmd "python train.py"`."""

import sys

from stoker.compat.registry import run_compat_command

sys.exit(run_compat_command("auto", sys.argv[1:]))
