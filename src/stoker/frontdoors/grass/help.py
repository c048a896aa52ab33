"""What `grass --help` says."""

from __future__ import annotations

HELP = """\
  grass start [--db sqlite|postgres|URL]
  grass create-queue QUEUE (--json JSON5 | --file FILE) [--backfill]
  grass enqueue QUEUE [--json JSON5] [--cwd DIR] [-e NAME=VALUE]... [--] COMMAND...
  grass show [QUEUE] [--json | --table] [--limit N]
  grass delete-queue QUEUE [--confirmed]
  grass stop [--confirmed]

Queues with resources of their own, run by stoker's daemon.

  grass create-queue q1 --json '{gpu:4,cpu:16}'
  grass enqueue q1 --json '{gpu:0.5}' -- python train.py --device {gpu}

What a queue has, by type
  {gpu:4}                   four devices, 0 to 3, of capacity 1 each
  {hdd:[32,64,128]}         three devices, 0 to 2, of these capacities
  {gpu:{'2':1,'4':1}}       two devices with these names
Devices of one name are the same device in every queue, and are never given out twice.

What a job asks for: one amount by type, such as {gpu:0.5,RAM:256}. An amount above 1 is spread
over devices of capacity 1, and never over others. In the command and in -e values, {gpu} becomes
the names of the devices it got, such as 0 or 0,1; other braces stay. A queue serves its jobs in
the order in which they came; with --backfill, one that fits may go before one that has to wait.

grass VERB --help says more about a verb.
"""
