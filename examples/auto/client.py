"""The client of the guide: `python client.py run --cmd "python train.py"`."""

import sys

from stoker.frontdoors.doors import enter

sys.exit(enter("auto", sys.argv[1:]))
