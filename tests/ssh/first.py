"""The first process of a lab machine: sets it up, buries orphans, ends it all when told to.

Its stdin is a pipe that only the test process holds. However that ends, the pipe closes, this
process exits, and the kernel takes every process, mount and network device of the machine.
"""

import os
import select
import signal
import sys

here = os.readlink("/proc/self")  # its number outside, while /proc is still the one outside
wake, woken = os.pipe()
os.set_blocking(woken, False)
os.set_blocking(wake, False)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.set_wakeup_fd(woken)
if os.spawnlp(os.P_WAIT, "sh", "sh", "-euc", *sys.argv[1:]) != 0:
    sys.exit(1)
print(here, flush=True)
while not select.select([0, wake], [], [])[0].count(0):
    os.read(wake, 4096)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
