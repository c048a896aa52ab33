#!/bin/sh
# Twelve random trials of a scikit-learn script, and a report of them: sweep.html
# Options given here are passed on: ./run.sh -n 30 (18 more, if 12 are done already)
set -eu
cd "$(dirname "$0")"
id=$(stoker sweep sweep.yaml --cpus 1 --wait "$@")
stoker sweep show "$id"
stoker sweep show "$id" --html sweep.html
