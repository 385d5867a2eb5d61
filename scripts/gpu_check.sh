#!/bin/sh
# What a machine with a GPU must show, in four calls of under ten minutes each; without a GPU the rest of it runs. This
# script has never run on a GPU.
#
#     scripts/gpu_check.sh [--wheels FOLDER] 1|2|3|4
#     scripts/gpu_check.sh [--wheels FOLDER] PART ...
#
# 1: devices gradients dropout streams dist. 2: graphs threshold. 3: step. 4: input tests. --wheels: on a machine without
# a network that has torch, install dsgd into .venv-gpu beside that torch, with hydra-core, omegaconf,
# antlr4-python3-runtime, msgspec, pynacl, cffi, pycparser and simplejpeg from the wheels in a folder. Otherwise PYTHON,
# by default .venv/bin/python, is a Python that has dsgd. Each call ends in one table: part, goal, measured, ok.
set -u
wheels=
if [ "${1:-}" = --wheels ]; then
    wheels=$(realpath "$2") && shift 2 || exit 1
fi
cd "$(dirname "$0")/.." || exit 1
if [ -n "$wheels" ]; then
    [ -e .venv-gpu ] || python3 -m venv --system-site-packages .venv-gpu || exit 1
    .venv-gpu/bin/python -m pip install -q --no-index --no-deps --find-links "$wheels" \
        hydra-core omegaconf antlr4-python3-runtime msgspec pynacl cffi pycparser simplejpeg || exit 1
    .venv-gpu/bin/python -m pip install -q --no-index --no-deps --no-build-isolation -e . || exit 1
    PYTHON=.venv-gpu/bin/python
fi
PYTHON=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=1
failed=
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
table="$work/table"

# say what comes, run it within so many seconds, remember its rows of the table and what fails
part() {
    name=$1 seconds=$2 && shift 2
    echo "== $*"
    begun=$(date +%s)
    timeout "$seconds" "$@" >"$work/output" 2>&1
    status=$?
    grep -v "^ROW" "$work/output"
    sed -n "s/^ROW	//p" "$work/output" >>"$table"
    ok=ok
    [ "$status" = 0 ] || { echo "FAILED with status $status"; failed="$failed; $*"; ok=NO; }
    printf '%s\tstatus 0 within %s s\tstatus %s after %s s\t%s\n' \
        "$name" "$seconds" "$status" $(($(date +%s) - begun)) "$ok" >>"$table"
}

run() {
    part "dist, $1" 60 "$PYTHON" -m dsgd.cli.run "hydra.run.dir=outputs/gpu/$(date +%s%N)" engine=dist "$@"
}

case ${1:-nothing} in
1) set -- devices gradients dropout streams dist ;;
2) set -- graphs threshold ;;
3) set -- step ;;
4) set -- input tests ;;
nothing) set -- nothing ;;
esac
for name; do
    case $name in
    devices | dropout | streams)
        part "$name" 40 "$PYTHON" benchmarks/gpu.py "$name"
        ;;
    gradients)
        part "$name" 90 "$PYTHON" benchmarks/gpu.py "$name"
        ;;
    graphs | threshold)
        part "$name" 280 "$PYTHON" benchmarks/gpu.py "$name"
        ;;
    step)
        if [ -e /dev/nvidia0 ] || [ -e /dev/dxg ]; then
            step="--model resnet50 --batch 256 --steps 10 --repeats 5 --precision bf16 --channels-last"
            part step 150 "$PYTHON" benchmarks/step.py $step
            part "step, compile" 400 "$PYTHON" benchmarks/step.py $step --compile
        else
            echo "step: skipped: no GPU"
        fi
        ;;
    dist)
        few="budget.steps=50 eval.every_steps=25 cluster.gradient_s=0.01"
        for algo in sync easgd gossip dpsgd delayfree; do
            run "algo=$algo" nodes=4 engine.workers_per_gpu=4 model=resnet8 $few
        done
        run algo=adpsgd nodes=2 engine.workers_per_gpu=2 model=resnet20 $few # vectors of a megabyte
        ;;
    input)
        part "$name" 120 "$PYTHON" benchmarks/input.py --batches 8 --repeats 1
        ;;
    tests) # they are of CPUs
        part "$name" 450 env CUDA_VISIBLE_DEVICES= "$PYTHON" -m pytest -q -x \
            tests/unit/gradients tests/unit/problem tests/unit/host
        ;;
    *)
        echo "PART must be devices, gradients, dropout, streams, dist, graphs, threshold, step, input or tests, got $name" >&2
        exit 2
        ;;
    esac
done
[ ! -s "$table" ] || { printf 'part\tgoal\tmeasured\tok\n' | cat - "$table" | column -t -s "$(printf '\t')" 2>/dev/null || cat "$table"; }
[ -z "$failed" ] || { echo "failed$failed"; exit 1; }
