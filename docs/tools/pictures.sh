#!/bin/sh
# Create the screenshots of the documentation: real commands in a real terminal (tmux), drawn by
# ansi2svg.py. Needs tmux, and stoker on the PATH. Run it from the top of the repository.

set -eu
top=$(pwd)
work=$(mktemp -d /tmp/moons.XXXX)
cp "$top/examples/demo/train.py" "$work"
export STOKER_HOME="$work/.stoker"

# A separate terminal: no start-up files, a plain prompt, 100 columns.
screen() { tmux -L stoker-pictures "$@"; }
open_terminal() {
    screen -f /dev/null new-session -d -x 100 -y "$1" -c "$work" \
        "env PS1='\[\033[32m\]\$\[\033[0m\] ' bash --noprofile --norc"
    screen set-option -g default-terminal tmux-256color >/dev/null
    sleep 0.5
}
type_line() {
    screen send-keys -l -- "$1"
    screen send-keys Enter
    sleep "${2:-1}"
}
save_picture() {
    screen capture-pane -e -p |
        "$top/docs/tools/ansi2svg.py" --title "$2" --columns 100 >"$top/docs/images/$1.svg"
    screen kill-server
}
finish() {
    screen kill-server 2>/dev/null || true
    stoker daemon stop --cancel >/dev/null 2>&1 || true
    python3 -c 'import shutil; from stoker import places; shutil.rmtree(places.run_dir(), True)'
    rm -rf "$work"
}
trap finish EXIT
mkdir -p "$top/docs/images"

# feed, half-way through a list with one mistake in it
for lr in 0.0003 0.001 0.003 O.01 0.03 0.1 0.3 1 3; do
    echo "python3 train.py --lr $lr --epochs 250"
done >"$work/sweep.txt"
open_terminal 18
type_line 'cat sweep.txt'
type_line 'stoker feed --gpus 0,1 < sweep.txt' 4
save_picture feed 'stoker feed'
stoker cancel -y all >/dev/null 2>&1 || true
sleep 1
rm -rf "$STOKER_HOME"

# a queue with running, pending and failed jobs
cd "$work"
long="python3 train.py --lr 0.003 --epochs 100000"
stoker daemon start --gpus 0,1,2,3 2>/dev/null
{
    stoker submit --gpus 1 --name typo python3 train.py --lr O.1
    stoker wait --quiet typo || true
    stoker submit --gpus 2 --name wide --time 4h $long
    stoker submit --gpus 0.5 --name sweep --time 90m --array 0-7%4 $long
    stoker submit --gpus 4 --name big --time 12h $long
    stoker submit --name table --dependency afterany:sweep python3 table.py
    stoker submit --gpus 1 --name nightly --begin 23:30 $long
} >/dev/null 2>&1
sleep 1
open_terminal 40
type_line stoker 4
type_line 'stoker why big' 3
save_picture queue 'stoker'
stoker cancel -y all >/dev/null 2>&1 || true
sleep 1
stoker daemon stop --cancel >/dev/null 2>&1 || true
rm -rf "$STOKER_HOME"

# a training job that is preempted
cat >"$work/train.py" <<'END'
import time
from stoker.training import job
for epoch in job.epochs():
    for step in job.steps(range(100)):
        time.sleep(0.1)
    job.report(loss=1 / (epoch + 2))
END
stoker daemon start --gpus 0 2>/dev/null
stoker submit --name resnet --epochs 20 --single-gpu python3 train.py >/dev/null 2>&1
sleep 22
open_terminal 36
type_line 'stoker submit --gpus 1 --priority 10 --name urgent sleep 60' 1
type_line 'stoker' 4
type_line 'stoker why urgent' 2
type_line 'stoker show resnet | head -8'
save_picture training 'a training job is preempted'
