"""`python -m stoker.compat.auto`."""

import sys

from stoker.compat.registry import run_compat_command

sys.exit(run_compat_command("auto", sys.argv[1:]))
