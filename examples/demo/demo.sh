#!/bin/sh
# Demo of stoker on a machine without a GPU: a small sweep of real trainings, first with `feed`,
# then through the queue. Every command is shown as it is run. Everything happens in a temporary
# directory that is deleted at the end. Run it with: make demo

set -eu
here=$(cd "$(dirname "$0")" && pwd)

STOKER_HOME=$(mktemp -d "${TMPDIR:-/tmp}/stoker-demo.XXXXXX")
export STOKER_HOME
# Defaults that the user has set for other jobs must not apply here.
for name in $(env | sed -n 's/^\(STOKER_[A-Z_]*\|SBATCH_[A-Z_]*\)=.*/\1/p'); do
    [ "$name" = STOKER_HOME ] || unset "$name"
done

finish() {
    code=$?
    trap - EXIT HUP INT TERM
    cd /
    stoker daemon stop --cancel >/dev/null 2>&1 || true
    # Claims of running jobs may be on a tmpfs outside STOKER_HOME.
    python3 -c 'import shutil; from stoker import places; shutil.rmtree(places.run_dir(), True)' \
        2>/dev/null || true
    rm -rf "$STOKER_HOME"
    exit "$code"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$STOKER_HOME/work"
cp "$here/train.py" "$here/table.py" "$STOKER_HOME/work"
cd "$STOKER_HOME/work"

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    esc=$(printf '\033')
    bold="$esc[1m" dim="$esc[2m" green="$esc[32m" plain="$esc[0m"
else
    bold='' dim='' green='' plain=''
fi
title() { printf '\n%s%s%s %s%s%s\n' "$bold" "$1" "$plain" "$dim" "$2" "$plain"; }
run() {
    printf '%s$%s %s\n' "$green" "$plain" "$*"
    eval "$*"
}

printf '%sNo GPU needed: devices 0 and 1 are only declared. The training jobs are small, but real.%s\n' \
    "$dim" "$plain"

title '1. Run a list of commands.' 'In the foreground, one GPU each; no daemon, no set-up.'
for lr in 0.0003 0.003 0.03 0.3 3; do
    echo "python3 train.py --lr $lr"
done >sweep.txt
run 'head -n 3 sweep.txt'
run 'stoker feed --gpus 0,1 < sweep.txt'

title '2. Start the queue.' 'It continues when this terminal is closed. Here it has two devices.'
rm -rf results
run 'stoker daemon start --gpus 0,1'

title '3. Submit jobs.' 'The sweep in one call, an urgent job with a typo, and a summary after all of them.'
run 'stoker submit --gpus 1 --name moons --each-line sweep.txt'
run 'stoker submit --gpus 1 --name typo --priority 9 python3 train.py --lr O.1'
run 'stoker submit --name table --dependency afterany:moons:typo python3 table.py'

title '4. Inspect the queue.' 'Running jobs, pending jobs and why, failed jobs with the end of their logs.'
stoker wait --quiet typo 2>/dev/null || true # so that the listing shows a failure
run stoker
run 'stoker why table'

title '5. Wait for the summary.' 'The typo fails only its own job.'
run 'stoker wait table'
run 'stoker history --since 1h --name moons'
run 'stoker logs --tail 3 6'
run 'stoker logs table'

title 'Done.' 'Submit your own job: stoker submit --gpus 1 python train.py'
