"""`python -m stoker.frontdoors.auto`."""

import sys

from stoker.frontdoors.doors import enter

sys.exit(enter("auto", sys.argv[1:]))
