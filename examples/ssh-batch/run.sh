#!/bin/sh
# The example of the guide of execute_batch: four lines on two nodes. First edit machine.yaml and
# machine2.yaml. Options are passed on: ./run.sh --no-gpu-required
cd "$(dirname "$0")/.." &&
exec execute_batch ssh-batch/batch_script.sh \
    --machines ssh-batch/machine.yaml ssh-batch/machine2.yaml "$@"
