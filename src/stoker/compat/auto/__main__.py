"""`python -m stoker.compat.auto`."""

import sys

from stoker.compat.registry import enter

sys.exit(enter("auto", sys.argv[1:]))
