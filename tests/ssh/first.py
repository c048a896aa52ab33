"""The init process of a test host: sets it up, reaps orphans, and ends it when its stdin closes.

Only the test process has the other end of that pipe. When it ends for any reason, this process
exits, and the kernel removes every process, mount and network device of the host.
"""

import os
import select
import signal
import sys

outer_pid = os.readlink("/proc/self")  # its pid outside, before /proc is replaced
wake, woken = os.pipe()
os.set_blocking(woken, False)
os.set_blocking(wake, False)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.set_wakeup_fd(woken)
if os.spawnlp(os.P_WAIT, "sh", "sh", "-euc", *sys.argv[1:]) != 0:
    sys.exit(1)
print(outer_pid, flush=True)
while not select.select([0, wake], [], [])[0].count(0):
    os.read(wake, 4096)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
