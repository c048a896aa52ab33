"""The server of the guide of auto: `python server.py --gpus 0 1 2 3`."""

import sys

from stoker.compat.registry import enter

sys.exit(enter("auto", ["server", *sys.argv[1:]]))
