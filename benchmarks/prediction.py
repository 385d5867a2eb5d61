"""Does the simulator predict the real run? Step times of algorithms between hosts, measured and predicted.

    python benchmarks/prediction.py --out results/prediction
    python benchmarks/prediction.py --model resnet18 --rates 1gbit --algorithms sync gossip dpsgd delayfree \
        --out results/prediction_resnet18
    python benchmarks/prediction.py --algorithms all --out results/prediction_all
    python benchmarks/prediction.py --algorithms all --latencies 1 5 --repeats 1 --out results/prediction_latency
    python benchmarks/prediction.py --hosts 2 --rates 1gbit --latencies 1 --algorithms dpsgd adpsgd --repeats 1
    python benchmarks/prediction.py --rates 100mbit --latencies 1 --algorithms dpsgd --repeats 1 --keys topology=chain

On this machine (Linux, root) it makes four hosts, or `--hosts`, with links of a known rate and latency, as network
namespaces. It calibrates them (`dsgd-calibrate`), runs each algorithm there in real processes, one a host, and
simulates the same on the calibrated cluster. The hosts share this machine's processors, so with the mlp a gradient is
mostly a pause, as if an accelerator computed it (`benchmarks/pausing.py`); everything else is real. Communication
cannot hide behind such a gradient's backward pass, so `sync` runs with algo.overlap=false. With resnet18, 46.8 MB a
vector, the processors compute all of it. Medians of `--repeats` runs, each with a seed of its own; the figure and the
table are `dsgd-plot`'s. With the mlp each run is also simulated with gradients, and `--log
results/papers/sanity.jsonl.gz` puts all runs where claim G5 finds them; among them, as a study of their own, some of
downpour with a quarter of its messages. Give the machine nothing else to do meanwhile.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support

from dsgd.record.reader import find_runs
from studies.reproduction import archive
from studies.reproduction.logged import Logged
from tests.support.network import Network

ALGORITHMS = ("sync", "easgd", "downpour", "gossip", "dpsgd", "delayfree")
PORTS = iter(range(29500, 29999))
TRAINING = ("optimizer.lr=0.01", "eval.every_epochs=null", "eval.every_time_s=1e6")  # marks of the start and the end
TRAINING += ("eval.train_samples=16",)
MODELS = {
    # 1.1 million parameters, 4.5 MB: a vector takes about 0.38 s at 100 Mbit/s and 0.04 s at 1 Gbit/s
    "mlp": [
        "model=mlp",
        "model.hidden=[1024,1000]",
        "batch_size=16",
        "data._target_=benchmarks.pausing.PausingDigits",
        "+data.pause_s=0.1",
    ],
    "resnet18": [
        "model=resnet18",
        "batch_size=4",
        "data=shapes",
        "data.resolution=32",
        "data.channels=3",
        "data.train_size=256",
        "data.test_size=16",
    ],
}
STEPS = {"sync": 16, "easgd": 120, "downpour": 24, "gossip": 30, "dpsgd": 16, "delayfree": 48}
STEPS |= {"localsgd": 48, "diloco": 60, "noloco": 60, "streaming": 60}
STEPS_OF_OTHERS = 16
STUDY, RELIEVED = "hosts", "relieved"
SELDOM = ("algo.n_push=4", "algo.n_fetch=4")
SCRIPTS = Path(sys.executable).parent
ROOT = Path(__file__).parents[1]
HERE = os.environ | {"PYTHONPATH": str(ROOT)}  # where benchmarks.pausing is found


def on_all_hosts(
    network: Network, hosts: int, command: str, *arguments: str, variables: Sequence[Mapping[str, str]] | None = None
) -> None:
    """Start a command on every host as torchrun or srun would, and wait for it. variables: further ones of each host.
    Raises on failure."""
    port = str(next(PORTS))
    started = []
    for rank in range(hosts):
        launcher = {"RANK": rank, "WORLD_SIZE": hosts, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        launcher |= {"MASTER_ADDR": network.address(1), "MASTER_PORT": port}
        environment = HERE | {name: str(value) for name, value in launcher.items()}
        environment |= {} if variables is None else variables[rank]
        line = [str(SCRIPTS / command), *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started.append(network.popen(rank + 1, *line, env=environment, text=True, **streams))
    outputs = [process.communicate(timeout=600)[0] for process in started]
    for process, output in zip(started, outputs, strict=True):
        if process.returncode:
            raise SystemExit(f"{command} {' '.join(arguments)} ended with {process.returncode}:\n{output}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/prediction"), help="of figure and tables")
    parser.add_argument("--runs", type=Path, default=Path("outputs/prediction"), help="of the records")
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit"])
    parser.add_argument("--latencies", nargs="+", type=float, default=[0.0], help="milliseconds between two hosts")
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), help="names, or all")
    parser.add_argument("--keys", nargs="+", default=[], help="key=value of dsgd-run, for every algorithm")
    parser.add_argument("--log", type=Path, help="archive that gets all runs, as the study `hosts`")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    runs: Path = options.runs.absolute()
    training = (f"nodes={options.hosts}", *TRAINING, *MODELS[options.model])
    every = sorted(path.stem for path in (ROOT / "conf" / "algo").glob("*.yaml"))
    algorithms = every if options.algorithms == ["all"] else options.algorithms
    studies = [(STUDY, algorithm) for algorithm in algorithms]
    studies += [(RELIEVED, "downpour")] if options.log is not None else []
    shutil.rmtree(runs, ignore_errors=True)
    for rate, latency_ms in product(options.rates, options.latencies):
        faster = 1 if rate == "100mbit" or options.model != "mlp" else 2
        link = f"{rate}_{latency_ms:g}ms" if latency_ms else rate
        with Network(options.hosts, rate, latency_ms / 1000) as network:
            calibrated = runs / "conf" / "cluster" / f"calibrated_{link}.yaml"
            on_all_hosts(network, options.hosts, "dsgd-calibrate", f"--out={calibrated}", *training)
            print(calibrated.read_text(), flush=True)
            for study, algorithm in studies:
                times = faster * (2 if study == RELIEVED else 1)
                steps = times * STEPS.get(algorithm, STEPS_OF_OTHERS)
                arguments = [f"--config-dir={runs / 'conf'}", f"cluster={calibrated.stem}", *training]
                arguments += [
                    f"algo={algorithm}",
                    f"budget.steps={steps}",
                    "budget.epochs=null",
                ]
                arguments += options.keys
                arguments += SELDOM if study == RELIEVED else ()
                arguments += ["algo.overlap=false"] if (algorithm, options.model) == ("sync", "mlp") else []
                for seed in range(options.repeats):
                    folder = runs / study / f"{algorithm}_{link}_{seed}"
                    real = ["engine=dist", "engine.patience_s=20", "engine.checkpoint_every_s=null", f"seed={seed}"]
                    on_all_hosts(network, options.hosts, "dsgd-run", *arguments, *real, f"hydra.run.dir={folder}")
                seeds = f"seed={','.join(map(str, range(options.repeats)))}"
                # gradients do not change times
                simulate(runs / study / f"{algorithm}_{link}_times", *arguments, seeds, "engine.gradients=none")
                if options.model == "mlp":
                    simulate(runs / study / f"{algorithm}_{link}_losses", *arguments, seeds, "data.pause_s=0")
                print(f"{link} {study} {algorithm}: done", flush=True)
    subprocess.run([SCRIPTS / "dsgd-plot", runs / STUDY, "--only", "predicted", "--out", options.out], check=True)
    if options.log is not None:
        found = {study: Logged(tuple(find_runs([runs / study]))) for study, _ in studies}
        rows = {study: archive.rows_of(study, (), logged.runs) for study, logged in found.items()}
        archive.write(options.log, archive.read(options.log) | rows)


def simulate(folder: Path, *overrides: str) -> None:
    """Simulate a sweep. Raises on failure."""
    line = [SCRIPTS / "dsgd-run", "-m", *overrides, "engine=sim", f"hydra.sweep.dir={folder}"]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=HERE)


if __name__ == "__main__":
    main()
