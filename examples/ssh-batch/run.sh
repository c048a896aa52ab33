#!/bin/sh
# The example of the guide: four lines on two machines. Edit machine.yaml and machine2.yaml first.
# Options given here are passed on: ./run.sh --no-gpu-required
cd "$(dirname "$0")/.." &&
exec execute_batch ssh-batch/batch_script.sh \
    --machines ssh-batch/machine.yaml ssh-batch/machine2.yaml "$@"
