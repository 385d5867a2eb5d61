"""What a GPU must show beside the other benchmarks: scripts/gpu_check.sh runs all of it.

    python benchmarks/gpu.py devices | gradients | dropout | graphs | threshold | streams

devices: what this machine has, and what a run would take. gradients: of every precision, against double precision on
the CPU, by both engines. graphs: gradients a second of the simulator, by the loop and as CUDA graphs on 1 to 16
streams, and whether these have the same bits. dropout: whether masks of gradients side by side are those of the loop.
threshold: gradients a second of networks of growing width, as graphs and by the kernels, and from which work on graphs
are faster. streams: whether an average waits for gradients of the same process. What needs a GPU is reported as skipped
where there is none. A line that begins with ROW is one of the table of scripts/gpu_check.sh.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dsgd.cli.compose import composed
from dsgd.engines.dist.worker.averaging import Groups, finish_work
from dsgd.engines.dist.worker.compute import Compute
from dsgd.engines.dist.worker.device_vectors import DeviceThread
from dsgd.gradients.choice import GRAPH_WORK, multiply_adds
from dsgd.gradients.compiled import CompiledEvaluator
from dsgd.gradients.device_graphs import GraphEvaluator
from dsgd.gradients.evaluators import GradientEvaluator, LoopEvaluator, PendingGradient
from dsgd.host.resources import cores, visible_gpus
from dsgd.models.library import Torchvision
from dsgd.problem.precision import AUTOCAST, compute_deterministically, prepare
from dsgd.problem.problem import Problem, build_problem
from dsgd.runner.configuration import configure
from dsgd.runner.plan import choose_engine

CUDA = torch.device("cuda", 0)
ALONE = Groups(0, 1)
LIMITS = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 0.4, "fp16": 0.1}  # of the relative error of a gradient
SMALL = ["model=resnet8", "data=digits", "batch_size=16", "nodes=2", "optimizer.weight_decay=1e-4"]
IN_FLIGHT = 64  # gradients that are evaluated together
STREAMS = (1, 4, 8, 16)
SECONDS, REPEATS = 2.0, 5  # of each measurement


def row(part: str, goal: str, measured: str, ok: bool) -> None:
    print("ROW", part, goal, measured, "ok" if ok else "NO", sep="\t", flush=True)


class Noise:
    """The same random images in every step, on one device."""

    def __init__(self, side: int, classes: int, batch_size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.samples, self.classes, self.input_shape = batch_size, classes, (3, side, side)
        self._batch = (
            torch.randn(batch_size, 3, side, side, generator=generator),
            torch.randint(classes, (batch_size,), generator=generator),
        )

    def move_to(self, device: torch.device) -> None:
        self._batch = self._batch[0].to(device), self._batch[1].to(device)

    @property
    def train_set(self) -> tuple[Tensor, Tensor]:
        return self._batch

    @property
    def test_set(self) -> tuple[Tensor, Tensor]:
        return self._batch

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        return self._batch

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets)


def devices() -> None:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    print(f"{versions}, {os.cpu_count()} cores")
    print(f"GPUs counted without CUDA: {visible_gpus(os.environ)}; by torch: {torch.cuda.device_count()}")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            memory = f"{found.total_memory / 2**30:.0f} GiB"
            print(f"cuda:{index}: {found.name}, {memory}, {found.multi_processor_count} multiprocessors")
        nccl = getattr(torch.cuda, "nccl", None)
        print(f"cuDNN {torch.backends.cudnn.version()}, NCCL {nccl.version() if nccl else None}")
    for line in ("nodes=1", "nodes=4", "nodes=4 engine.workers_per_gpu=4", "nodes=1 engine=sim"):
        print(f"{line}: {choose_engine(configure(composed(line.split())))[1]}")


def gradients() -> None:
    options = [("fp32", False), ("fp32", True), ("tf32", False), ("bf16", True), ("fp16", True)]
    device = CUDA if torch.cuda.is_available() else torch.device("cpu")
    exact = _small("fp64", False)
    truth = exact.gradient(exact.start, exact.start_buffers.clone(), 1, 3)
    failed, worst = False, dict.fromkeys(LIMITS, 0.0)
    layout = {slot.path: slot.view(truth) for slot in exact.parameters}
    for precision, channels_last in options:
        name = f"{precision}{', channels_last' if channels_last else ''}"
        if device.type == "cpu" and precision == "tf32":
            print(f"{name:20} skipped: no GPU")
            continue
        prepare(precision, device)
        for engine, gradient in _ways(precision, channels_last, device):
            of, g = gradient()
            pairs = [(slot.view(g.cpu()).double(), layout[slot.path]) for slot in of.parameters]
            wrong = sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5
            error = wrong / sum(float(b.square().sum()) for _, b in pairs) ** 0.5
            within = error < LIMITS[precision]
            failed |= not within
            worst[precision] = max(worst[precision], error)
            print(f"{name:20} {engine:16} {error:.1e}  {'ok' if within else 'TOO LARGE'}")
    for precision, error in worst.items():
        if error:
            row(f"gradients, {precision}", f"error < {LIMITS[precision]:g}", f"{error:.1e}", error < LIMITS[precision])
    if failed:
        sys.exit(1)


def _small(precision: str, channels_last: bool) -> Problem:
    line = [*SMALL, f"precision={precision}", f"channels_last={str(channels_last).lower()}"]
    return build_problem(configure(composed([*line, "cluster.gradient_s=0.01"])).experiment)


def _ways(
    precision: str, channels_last: bool, device: torch.device
) -> Iterator[tuple[str, Callable[[], tuple[Problem, Tensor]]]]:
    def of_worker() -> tuple[Problem, Tensor]:
        of = _small(precision, channels_last)
        compute = Compute(of, [device], ALONE)
        x, buffers = of.start.to(device, copy=True), of.start_buffers.to(device, copy=True)
        g = compute.gradient(x, buffers, 1, 3).result()
        compute.close()
        return of, g

    def of_simulator(kind: Callable[[Problem, torch.device], GradientEvaluator]) -> tuple[Problem, Tensor]:
        of = _small(precision, channels_last)
        evaluator = kind(of, device)
        item = PendingGradient(1, 3, of.start.clone(), of.start_buffers.clone())
        evaluator.evaluate([item])
        assert item.value is not None
        return of, item.value

    yield "worker", of_worker
    yield "simulator, loop", lambda: of_simulator(LoopEvaluator)
    if precision != "fp16":
        yield "simulator, graph", lambda: of_simulator(GraphEvaluator)


def graphs() -> None:
    if not torch.cuda.is_available():
        print("graphs: skipped: no GPU")
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    compute_deterministically()
    failed = False
    cases = [("ResNet-20, 32 x 32", precision) for precision in ("fp32", "tf32", "bf16")]
    for name, precision in [*cases, ("ResNet-18, 64 x 64", "bf16")]:
        prepare(precision, CUDA)
        rates = {"loop": _rate(LoopEvaluator(_of(name, precision), CUDA))}
        values: list[list[Tensor]] = []
        for streams in STREAMS:
            evaluator = GraphEvaluator(_of(name, precision), CUDA, streams)
            values.append(_values(evaluator))
            rates[f"{streams} streams"] = _rate(evaluator)
        same = all(all(map(torch.equal, values[0], others)) for others in values[1:])
        listed = ", ".join(f"{which} {rate:,.0f}" for which, rate in rates.items())
        peak = torch.cuda.max_memory_allocated(CUDA) / 2**30
        what = f"{name}, batch 32, {precision}, peak {peak:.1f} GiB"
        print(f"{what}: gradients/s {listed}", flush=True)
        row(f"graphs, {name}, {precision}", "the same bits on 1 to 16 streams", str(same).lower(), same)
        failed |= not same
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(CUDA)
    if failed:
        sys.exit(1)


def dropout() -> None:
    if not torch.cuda.is_available():
        print("dropout: skipped: no GPU")
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    compute_deterministically()
    prepare("fp32", CUDA)
    both = [_values(kind(_dropping(), CUDA)) for kind in (LoopEvaluator, GraphEvaluator)]
    error = max(float((a - b).norm() / a.norm()) for a, b in zip(*both, strict=True))
    row("dropout", f"masks of the loop: error < {LIMITS['fp32']:g}", f"{error:.1e}", error < LIMITS["fp32"])
    if error >= LIMITS["fp32"]:
        sys.exit(1)


def _dropping() -> Problem:
    torch.manual_seed(0)
    layers = torch.nn.Flatten(), torch.nn.Linear(3072, 256), torch.nn.Dropout(0.5), torch.nn.Linear(256, 10)
    return Problem(torch.nn.Sequential(*layers), Noise(32, 10, 32), torch.float32, 0.0, True)


def threshold() -> None:
    if not torch.cuda.is_available():
        print("threshold: skipped: no GPU")
        return
    compute_deterministically()
    prepare("fp32", CUDA)
    torch.set_num_threads(1)
    crossing: int | None = None
    for width in (64, 128, 256, 512, 1024, 2048):
        line = ["data=digits", "model=mlp", f"model.hidden=[{width}]", "batch_size=16", f"nodes={IN_FLIGHT}"]
        settings = configure(composed([*line, "cluster.gradient_s=0.01"])).experiment
        kernels = CompiledEvaluator(build_problem(settings), IN_FLIGHT, cores=cores())
        work = multiply_adds(kernels.problem)
        by_kernels, by_graphs = _rate(kernels), _rate(GraphEvaluator(build_problem(settings), CUDA))
        print(f"{work / 1e6:8.2f} million multiply-adds: kernels {by_kernels:,.0f}/s, graphs {by_graphs:,.0f}/s")
        if crossing is None and by_graphs > by_kernels:
            crossing = work
    fits = crossing is not None and GRAPH_WORK / 4 <= crossing <= GRAPH_WORK * 4
    measured = "kernels always" if crossing is None else f"{crossing / 1e6:.2f} million"
    row("threshold", f"graphs are faster from {GRAPH_WORK / 1e6:g} million on, within a factor 4", measured, fits)
    if not fits:
        sys.exit(1)


def _of(name: str, precision: str) -> Problem:
    torch.manual_seed(0)
    if name.startswith("ResNet-20"):
        module = configure(composed(["model=resnet20", "data=shapes"])).experiment.model.build((3, 32, 32), 10)
        data = Noise(32, 10, 32)
    else:
        module, data = Torchvision("resnet18").build((3, 64, 64), 100), Noise(64, 100, 32)
    low = precision == "bf16"
    return Problem(module, data, torch.float32, 1e-4, True, autocast=AUTOCAST.get(precision), channels_last=low)


def _pending(of: Problem) -> list[PendingGradient]:
    start = of.start
    noise = torch.Generator(start.device).manual_seed(7)
    found: list[PendingGradient] = []
    for rank in range(IN_FLIGHT):
        x = start + 1e-3 * torch.randn(of.dimension, generator=noise, device=start.device)
        found.append(PendingGradient(rank, 0, x, of.start_buffers.clone()))
    return found


def _values(evaluator: LoopEvaluator | GraphEvaluator) -> list[Tensor]:
    pending = _pending(evaluator.problem)
    evaluator.evaluate(pending)
    return [item.value.cpu() for item in pending if item.value is not None]


def _rate(evaluator: LoopEvaluator | GraphEvaluator | CompiledEvaluator) -> float:
    """Gradients a second, from the device to the device."""
    evaluator.evaluate(_pending(evaluator.problem))
    found: list[float] = []
    begun = time.perf_counter()
    while len(found) < 3 or time.perf_counter() - begun < SECONDS:
        pending = _pending(evaluator.problem)
        finish_work(CUDA)
        begin = time.perf_counter()
        evaluator.evaluate(pending)
        finish_work(CUDA)
        found.append(IN_FLIGHT / (time.perf_counter() - begin))
    return statistics.median(found)


def streams() -> None:
    if not torch.cuda.is_available():
        print("streams: skipped: no GPU")
        return
    matrix = torch.randn(8192, 8192, device=CUDA, dtype=torch.bfloat16)
    product, vector = torch.empty_like(matrix), torch.randn(25_000_000, device=CUDA)
    thread = DeviceThread(CUDA, "averaging")

    def halved(v: Tensor) -> Tensor:
        time.sleep(0.01)  # until the products are queued
        return v.clone().div_(2)

    shares: list[float] = []
    for _ in range(REPEATS):
        finish_work(CUDA)
        begin = time.perf_counter()
        future = thread.submit(halved, vector)
        for _ in range(200):
            torch.mm(matrix, matrix, out=product)
        future.result()
        done = time.perf_counter()
        finish_work(CUDA)
        shares.append((done - begin) / (time.perf_counter() - begin))
    thread.close()
    share = statistics.median(shares)
    row("streams", "an average beside products is done after < 0.5 of their time", f"{share:.2f}", share < 0.5)
    if share >= 0.5:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {part.__name__: part for part in (devices, gradients, dropout, graphs, threshold, streams)}
    parser.add_argument("part", choices=parts)
    parts[parser.parse_args().part]()


if __name__ == "__main__":
    main()
