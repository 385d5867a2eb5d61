"""Is a replayed night the real one? Traced steps beside predicted ones, and other methods beside their replay.

    python benchmarks/replayed_nights.py --out results/replay
    python benchmarks/replayed_nights.py --large outputs/replayed_nights/2_1gbit/ddp/rank0.*.gz

On this machine (Linux, root) it makes 2 and 4 hosts with links of 100 Mbit/s and of 1 Gbit/s, as network namespaces.
On each, one process of torch.distributed (gloo) trains under torch's profiler: with DistributedDataParallel, and by
`dsgd.torch`. `dsgd-calibrate --from-trace` describes the cluster by these traces and predicts the traced step.
`dsgd-replay` predicts other methods from the same traces; then each of them really trains there, with engine=dist.

The hosts share this machine's processors, so most of a gradient is a pause, as if an accelerator computed it: a third
in the forward pass and two thirds in the backward pass, layer by layer, so that communication hides behind it. The
last host of a job with a slow rank pauses longer. It takes a quarter of an hour; give the machine nothing else to do.
With `--large` it reads a trace of 1 GB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support

from benchmarks.prediction import HERE, SCRIPTS, TRAINING, on_all_hosts
from dsgd.record.reader import find_runs
from dsgd.report.fields import DERIVED
from dsgd.report.table_layout import Cell, ReportTable
from dsgd.traces.kineto import STEP
from tests.support.network import Network

PAUSE_S, SLOWNESS = 0.1, 1.5
PAUSE = "PAUSE_S"  # variable of a host
LAYERS, WIDTH = 4, 512  # 1.1 million parameters in layers of 1 MB, and each of these is a bucket
BATCH = 4
TRACED = {"wait": 2, "warmup": 2, "active": 15}
NIGHT_STEPS = 40
LOOPS = ("ddp", "dsgd.torch")
METHODS = (("localsgd,gossip", ()), ("diloco", ("algo.tau=5,20",)))
CAPTIONS = {
    "traced": "step of the traced job, predicted by the cluster that its traces describe",
    "nights": "mean of {steps} steps a worker; predicted from traces of {loop}; measured with engine=dist",
}


class Pause(torch.autograd.Function):
    """Hand a tensor on after a third of a pause, and its gradient after two thirds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pause_s: float) -> Tensor:
        ctx.pause_s = pause_s
        time.sleep(pause_s / 3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.pause_s / 3)
        return gradients[0], None


class PausingLayer(nn.Linear):
    """A layer that takes as long as its share of this host's pause, in training."""

    def forward(self, input: Tensor) -> Tensor:
        share_s = float(os.environ.get(PAUSE, PAUSE_S)) / LAYERS
        x = Pause.apply(input, share_s) if torch.is_grad_enabled() else input
        return super().forward(x).relu()


def pausing_network() -> nn.Module:
    """Return the network, for the digits."""
    layers = [PausingLayer(WIDTH, WIDTH) for _ in range(LAYERS)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), *layers, nn.Linear(WIDTH, 10))


def train_traced(loop: str, folder: str) -> None:
    """Train as one rank under torch's profiler, which leaves a trace in the folder."""
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

    import dsgd.torch

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    network = pausing_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    ddp = loop == "ddp"
    model = DistributedDataParallel(network, bucket_cap_mb=1) if ddp else dsgd.torch.distribute(network, optimizer)
    images, labels = torch.randn(BATCH, 64), torch.randint(0, 10, (BATCH,))
    handler = tensorboard_trace_handler(folder, worker_name=f"rank{distributed.get_rank()}", use_gzip=True)
    times = schedule(**TRACED, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=times, on_trace_ready=handler, record_shapes=True
    ) as profiler:
        for _ in range(sum(TRACED.values())):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            (optimizer if ddp else model).step()  # pyright: ignore[reportCallIssue]
            profiler.step()
    distributed.destroy_process_group()


@dataclass(frozen=True)
class ShapedJob:
    """A job on hosts with links of a rate. slow: whether the last rank takes SLOWNESS times as long."""

    hosts: int
    rate: str
    slow: bool

    @property
    def cells(self) -> list[Cell]:
        """Return its first cells of a row."""
        return [self.hosts, self.rate, f"rank {self.hosts - 1}, {SLOWNESS} times" if self.slow else "none"]

    @property
    def name(self) -> str:
        """Return the name of its folders."""
        return f"{self.hosts}_{self.rate}{'_slow' * self.slow}"

    @property
    def pauses(self) -> list[dict[str, str]]:
        """Return the variables of each host."""
        last_s = PAUSE_S * (SLOWNESS if self.slow else 1)
        return [{PAUSE: str(pause_s)} for pause_s in [PAUSE_S] * (self.hosts - 1) + [last_s]]


def traced_step_s(job: ShapedJob, network: Network, loop: str, folder: Path) -> tuple[float, float]:
    """Trace a job, and describe its cluster by the traces. Returns the predicted and the traced step."""
    script = str(Path(__file__).absolute())
    on_all_hosts(network, job.hosts, "python", script, "--traced", loop, str(folder), variables=job.pauses)
    mine = folder.parent / f"{folder.name}.yaml"
    line = [str(SCRIPTS / "dsgd-calibrate"), "--from-trace", str(folder), "--out", str(mine)]
    described = subprocess.run(line, check=True, capture_output=True, text=True, env=HERE)
    mine.with_suffix(".txt").write_text(described.stdout + described.stderr)
    ((predicted, traced),) = re.findall(r"^step +(\S+) +(\S+)$", described.stdout, flags=re.MULTILINE)
    return float(predicted) / 1e3, float(traced) / 1e3


def measured_step_s(job: ShapedJob, network: Network, night: str, folder: Path) -> float:
    """Really train by a method with its options. Returns the mean time of a worker's step."""
    method, *options = night.split()
    options = [f"algo.{option}" for option in options]
    keys = [f"nodes={job.hosts}", *TRAINING, f"batch_size={BATCH}", f"algo={method}", *options, "engine=dist"]
    keys += ["model=import", "model.target=benchmarks.replayed_nights.pausing_network", "data=digits"]
    keys += [f"budget.steps={NIGHT_STEPS}", "budget.epochs=null", "engine.patience_s=20"]
    keys += ["engine.checkpoint_every_s=null", f"hydra.run.dir={folder}"]
    on_all_hosts(network, job.hosts, "dsgd-run", *keys, variables=job.pauses)
    (run,) = find_runs([folder])
    return float(DERIVED["step_s"](run))


def replayed_steps_s(traces: Path) -> Iterator[tuple[str, float]]:
    """Replay traces by all methods. Yields their names with their options, and the mean time of a step."""
    file = traces.parent / "night.json"
    for methods, options in METHODS:
        line = [str(SCRIPTS / "dsgd-replay"), str(traces), f"algo=sync,{methods}", *options, f"steps={NIGHT_STEPS}"]
        subprocess.run([*line, "--json", str(file)], check=True, capture_output=True, env=HERE)
        for night in json.loads(file.read_text())["methods"][1:]:
            yield str(night["method"]), float(night["step_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/replay"), help="of the tables")
    parser.add_argument("--runs", type=Path, default=Path("outputs/replayed_nights"), help="of traces and records")
    parser.add_argument("--hosts", nargs="+", type=int, default=[4, 2])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit"])
    parser.add_argument("--traced", nargs=2, metavar=("LOOP", "FOLDER"), help="train as one rank, under the profiler")
    parser.add_argument("--large", type=Path, metavar="TRACE", help="read copies of this trace, 1 GB, and nothing else")
    options = parser.parse_args()
    if options.large is not None:
        read_large(options.large, options.runs)
        return
    if options.traced is not None:
        train_traced(*options.traced)
        return
    runs: Path = options.runs.absolute()
    shutil.rmtree(runs, ignore_errors=True)
    traced: list[list[Cell]] = []
    nights: list[list[Cell]] = []
    for hosts, rate in product(options.hosts, options.rates):
        with Network(hosts, rate) as network:
            for job in (ShapedJob(hosts, rate, slow) for slow in (False, True)):
                folder = runs / job.name
                for loop in LOOPS:
                    steps_s = traced_step_s(job, network, loop, folder / loop)
                    traced.append([loop, *job.cells, *row_of(*steps_s)])
                    print(*traced[-1], flush=True)
                if not (job.slow or hosts == max(options.hosts)):
                    continue  # a quarter of an hour is enough
                for number, (night, predicted_s) in enumerate(replayed_steps_s(folder / LOOPS[0])):
                    measured_s = measured_step_s(job, network, night, folder / f"night_{number}")
                    nights.append([night, *job.cells, *row_of(predicted_s, measured_s)])
                    print(*nights[-1], flush=True)
        write_tables(options.out, traced, nights)


def write_tables(out: Path, traced: list[list[Cell]], nights: list[list[Cell]]) -> None:
    """Write the tables of traced steps and of nights into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    heads = ["hosts", "links", "slow rank", "predicted step (ms)", "measured step (ms)", "difference (%)"]
    captions = [CAPTIONS["traced"], CAPTIONS["nights"].format(steps=NIGHT_STEPS, loop=LOOPS[0])]
    for name, first, rows, caption in zip(CAPTIONS, ("loop", "method"), (traced, nights), captions, strict=True):
        errors = [abs(float(str(row[-1]))) for row in rows]
        caption += f"; median of the differences {median(errors):.1f} %, largest {max(errors):.1f} %"
        table = ReportTable([first, *heads], frozenset({first, *heads[1:3]}), rows, [[first, *heads], *rows], caption)
        table.write(out / name)


def read_large(trace: Path, folder: Path) -> None:
    """Write a trace of 1 GB, copies of another one's events one after the other, and print what describing it takes."""
    whole = json.loads(gzip.decompress(trace.read_bytes()))
    events = [event for event in whole.pop("traceEvents") if event.get("ph") == "X"]
    begin = min(event["ts"] for event in events)
    span = max(event["ts"] + event["dur"] for event in events) - begin
    large, copy = folder / "large.json", 0
    with large.open("w") as file:
        file.write(json.dumps(whole)[:-1] + ', "traceEvents": [\n')
        while file.tell() < 1e9:
            for event in events:
                name = event["name"]
                if name.startswith(STEP):
                    name = f"{STEP}{int(name.removeprefix(STEP)) + 1000 * copy}"
                file.write(f"{json.dumps(event | {'name': name, 'ts': event['ts'] + copy * span})},\n")
            copy += 1
        file.write(json.dumps(events[0] | {"name": "end"}) + "]}")
    line = [str(SCRIPTS / "dsgd-calibrate"), "--from-trace", str(large), "--out", str(folder / "large.yaml")]
    subprocess.run(line, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    large.unlink()
    print(f"{used.ru_utime + used.ru_stime:.1f} s of CPU, {used.ru_maxrss / 1e6:.2f} GB of memory")


def row_of(predicted_s: float, measured_s: float) -> list[Cell]:
    """Return the last cells of a row, in ms and percent."""
    difference = f"{100 * (predicted_s / measured_s - 1):+.1f}"
    return [f"{1e3 * predicted_s:.1f}", f"{1e3 * measured_s:.1f}", difference]


if __name__ == "__main__":
    main()
