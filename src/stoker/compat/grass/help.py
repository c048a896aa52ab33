"""Text of `grass --help`."""

from __future__ import annotations

HELP = """\
  grass start [--db sqlite|postgres|URL]
  grass create-queue QUEUE (--json JSON5 | --file FILE) [--backfill]
  grass enqueue QUEUE [--json JSON5] [--cwd DIR] [-e NAME=VALUE]... [--] COMMAND...
  grass show [QUEUE] [--json | --table] [--limit N]
  grass delete-queue QUEUE [--confirmed]
  grass stop [--confirmed]

Queues with their own devices, run by stoker's daemon.

  grass create-queue q1 --json '{gpu:4,cpu:16}'
  grass enqueue q1 --json '{gpu:0.5}' -- python train.py --device {gpu}

Devices of a queue, by type
  {gpu:4}                   four devices, 0 to 3, of capacity 1 each
  {hdd:[32,64,128]}         three devices, 0 to 2, of these capacities
  {gpu:{'2':1,'4':1}}       two devices with these names
Devices with the same name are the same device in every queue and are never allocated twice.

A job requests one amount per type, such as {gpu:0.5,RAM:256}. An amount above 1 is spread over
devices of capacity 1, and never over others. In the command and in -e values, {gpu} is replaced by
the names of the allocated devices, such as 0 or 0,1; other braces stay. Jobs of a queue start in
the order of submission; with --backfill, a job may start ahead of a blocked job.

For details of a command: grass VERB --help
"""
