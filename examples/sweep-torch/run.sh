#!/bin/sh
# Run nine trials of a PyTorch script. At each rung, the best third continues (ASHA).
# Options are passed on: ./run.sh --gpus 1, ./run.sh -n 30
set -eu
cd "$(dirname "$0")"
id=$(stoker sweep --name torch -n 9 --maximize accuracy --stop asha --max-steps 27 --wait "$@" \
    python train.py 'lr=tag(log,interval(1e-4,1))' 'width=choice(8,32,128)' 'dropout=interval(0,0.5)')
stoker sweep show "$id"
