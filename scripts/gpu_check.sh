#!/bin/sh
# What a machine with a GPU must show, in about 25 minutes, the most important first; without a GPU the rest of it runs.
#
#     scripts/gpu_check.sh [--wheels FOLDER] [PART ...]
#
# PART: devices gradients graphs streams step dist input tests, by default all. --wheels: install into .venv-gpu from the
# wheels in a folder, without a network; otherwise PYTHON, by default .venv/bin/python, is a Python that has dsgd.
set -u
cd "$(dirname "$0")/.." || exit 1
if [ "${1:-}" = --wheels ]; then
    python3 -m venv .venv-gpu && .venv-gpu/bin/pip install -q --no-index --find-links "$2" -e . pytest hypothesis || exit 1
    PYTHON=.venv-gpu/bin/python
    shift 2
fi
PYTHON=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=1
failed=

# say what comes, run it within so many seconds, remember what fails
part() {
    seconds=$1 && shift
    echo "== $*"
    timeout "$seconds" "$@" 2>&1 || { echo "FAILED with status $?"; failed="$failed; $*"; }
}

run() {
    part 120 "$PYTHON" -m dsgd.cli.run "hydra.run.dir=outputs/gpu/$(date +%s%N)" "$@"
}

for name in ${@:-devices gradients graphs streams step dist input tests}; do
    case $name in
    devices | gradients | graphs | streams)
        part 240 "$PYTHON" benchmarks/gpu.py "$name"
        ;;
    step)
        if [ -e /dev/nvidia0 ] || [ -e /dev/dxg ]; then
            for compile in "" --compile; do
                part 180 "$PYTHON" benchmarks/step.py --model resnet50 --batch 256 --steps 10 --repeats 5 \
                    --precision bf16 --channels-last $compile
            done
        else
            echo "step: skipped: no GPU"
        fi
        ;;
    dist)
        few="model=resnet8 budget.steps=50 eval.every_steps=25 cluster.gradient_s=0.01"
        run engine=dist nodes=1 $few
        for algo in sync easgd gossip dpsgd delayfree; do
            run engine=dist nodes=4 engine.workers_per_gpu=4 "algo=$algo" $few
        done
        ;;
    input)
        part 180 "$PYTHON" benchmarks/input.py --batches 8 --repeats 1
        ;;
    tests)
        part 600 "$PYTHON" -m pytest -q -x -m "not long" tests/gradients tests/oracles tests/problem tests/sim
        ;;
    *)
        echo "PART must be devices, gradients, graphs, streams, step, dist, input or tests, got $name" >&2
        exit 2
        ;;
    esac
done
[ -z "$failed" ] || { echo "failed$failed"; exit 1; }
