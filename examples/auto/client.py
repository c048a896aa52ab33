"""The client of the guide of auto: `python client.py run --cmd "python train.py"`."""

import sys

from stoker.compat.registry import enter

sys.exit(enter("auto", sys.argv[1:]))
