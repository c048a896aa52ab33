#!/bin/sh
# Run twelve random trials of a scikit-learn script and write a report: sweep.html
# Options are passed on: ./run.sh -n 30 (runs 18 more after the first 12)
set -eu
cd "$(dirname "$0")"
id=$(stoker sweep sweep.yaml --cpus 1 --wait "$@")
stoker sweep show "$id"
stoker sweep show "$id" --html sweep.html
