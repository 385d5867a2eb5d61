"""The files of a traced cluster, and what the simulator predicts of the traced job with them."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from dsgd.cli.compose import composed
from dsgd.record.safe_files import write_atomically
from dsgd.record.safe_text import counted
from dsgd.runner.configuration import configure
from dsgd.traces.cluster_fit import ClusterFit
from dsgd.traces.traced_job import TracedJob

MOST_ERROR = 0.1  # of a predicted step, above which a description is not to be trusted

MOST_VARIATION = 0.3  # of transfer times, likewise
LEAST_GRADIENT_S = 1e-9


@dataclass(frozen=True)
class JobCheck:
    """The mean step of a job, predicted and traced: its seconds, the communication that also the last rank waits for,
    and the waiting of each rank for the last one."""

    step_s: tuple[float, float]
    exposed_s: tuple[float, float]
    waiting_s: tuple[tuple[float, float], ...]

    @property
    def error(self) -> float:
        """Return the relative error of the predicted step."""
        return self.step_s[0] / self.step_s[1] - 1


def cluster_entries(job: TracedJob, fit: ClusterFit, times: Path) -> list[tuple[str, str, str]]:
    """Return key, value and comment of each line of a traced cluster's file. times: file of the gradient times."""
    p, links, inside = job.world_size, fit.links, fit.inside or fit.links
    steps, alone = len(job.steps), len(fit.gradient_s) == 1
    trace = "null" if alone else json.dumps(str(times))
    islands = fit.hosts if fit.hosts < p else 1
    port = inside if islands > 1 else links
    port_ranks = p // islands if fit.inside is not None else p
    latency_s, wan_latency_s = port.latency_s(port_ranks), links.latency_s(p)
    if islands > 1:  # of the messages of a ring one after the other, few go to another island
        rounds = 2 * (p - 1)
        between = 1 + (rounds - 1) // (p // islands)
        wan_latency_s = max(latency_s, (links.fixed_s - (rounds - between) * latency_s) / between)
    entries = [
        ("gradient_s", _gradient(fit), "a step without exposed communication" if alone else "in the compute_trace"),
        ("compute_trace", trace, "one rank is in the trace" if alone else f"of {p} ranks in {steps} steps"),
        ("bandwidth", f"{port.bandwidth(port_ranks):.6g}", "payload, of all-reduces as rings"),
        ("latency_s", f"{latency_s:.6g}", f"{port.sizes} size{'s'[: port.sizes > 1]} of all-reduces, or of several"),
        ("islands", str(islands), "hosts" if islands > 1 else "links are alike"),
    ]
    if islands > 1:
        entries += [
            ("wan_bandwidth", f"{links.bandwidth(p):.6g}", "payload of a host, of all-reduces over all ranks"),
            ("wan_latency_s", f"{wan_latency_s:.6g}", f"of {links.sizes} sizes of these"),
        ]
    bucket_bytes = max(64, math.ceil(fit.message_bytes / fit.buckets))
    return [
        *entries,
        ("protocol_efficiency", "1.0", "bandwidth is measured as payload, beside headers"),
        ("collective", "ring", "assumed: traces do not name it"),
        ("message_bytes", f"{fit.message_bytes:.12g}", "the traced job's gradient, in the place of the model's own"),
        ("bucket_bytes", str(bucket_bytes), f"{fit.all_reduces} all-reduces hide as much as {fit.buckets} equal ones"),
        ("bucket_startup_s", f"{fit.bucket_startup_s:.6g}", "from the last call to the beginning, of all all-reduces"),
        ("chunks_per_message", "4", "assumed: messages share a port, as TCP streams do"),
        ("servers_colocated", "true", "as processes of torchrun and srun are"),
        ("time_model", "traced job", "whose times these are"),
    ]


def _gradient(fit: ClusterFit) -> str:
    """Return the time of a gradient, null where a trace of all ranks has it."""
    return f"{fmean(fit.gradient_s[0]):.6g}" if len(fit.gradient_s) == 1 else "null"


def times_text(job: TracedJob, fit: ClusterFit) -> str:
    """Return the file of the gradient times, as `cluster.compute_trace` reads it."""
    lines = ["step,rank,seconds"]
    for trace, seconds in zip(job.traces, fit.gradient_s, strict=True):
        for step, value in zip(job.steps, seconds, strict=True):
            lines.append(f"{step},{trace.rank},{max(value, LEAST_GRADIENT_S):.9g}")
    return "\n".join(lines) + "\n"


def write_cluster(job: TracedJob, fit: ClusterFit, folder: Path) -> None:
    """Write the files of a traced cluster into a folder for --config-dir, where its name is traced_job."""
    from dsgd.engines.dist.calibration.cluster_file import cluster_text

    clusters, times = folder / "cluster", folder / "times.csv"
    clusters.mkdir()
    write_atomically(clusters / "traced_job.yaml", cluster_text("", cluster_entries(job, fit, times)).encode())
    write_atomically(times, times_text(job, fit).encode())


def check_job(job: TracedJob, fit: ClusterFit) -> JobCheck:
    """Simulate the traced job on its described cluster, and compare both."""
    from dsgd.engines.sim.simulation import Simulation

    with tempfile.TemporaryDirectory() as folder:
        write_cluster(job, fit, Path(folder))
        # the experiment is one without data, and has a gradient's time of its own
        gradient = f"cluster.gradient_s={_gradient(fit)}"
        overrides = ["experiment=quadratic", *timing_words(job), "cluster=traced_job", gradient]
        simulation = Simulation(configure(composed(overrides, folder)).experiment)
        for _ in simulation.run():
            pass
    predicted_s = simulation.summary()["time_s"] / len(job.steps)
    exposed = [[step.exposed_s for step in job.steps_of(trace)] for trace in job.traces]
    traced_s = fmean(job.mean_s(trace, lambda step: step.seconds) for trace in job.traces)
    least_s = fmean(map(min, zip(*exposed, strict=True)))
    longest_s = fmean(map(max, zip(*fit.gradient_s, strict=True)))
    waiting = (
        (longest_s - fmean(work), fmean(of_rank) - least_s)
        for work, of_rank in zip(fit.gradient_s, exposed, strict=True)
    )
    return JobCheck((predicted_s, traced_s), (predicted_s - longest_s, least_s), tuple(waiting))


def timing_words(job: TracedJob) -> list[str]:
    """Return the words of dsgd-run for the traced job, timing only."""
    return [
        "algo=sync", f"nodes={job.world_size}",
        "engine.gradients=none", "eval.every_steps=null", "budget.epochs=null", f"budget.steps={len(job.steps)}",
    ]  # fmt: skip


def doubts(job: TracedJob, fit: ClusterFit, check: JobCheck) -> Iterator[str]:
    """Yield why a prediction is wrong, as far as the traces show it; nothing if it is within MOST_ERROR."""
    if abs(check.error) <= MOST_ERROR:
        return
    yield f"the predicted step is {check.error:+.0%} from the traced one: do not trust this description"
    traced_s, simulated_s = fit.hidden_s
    if abs(traced_s - simulated_s) > MOST_ERROR / 2 * check.step_s[1]:
        yield (
            f"{1e3 * traced_s:.3g} ms of communication hide behind a gradient; in the simulator, with "
            f"{counted(fit.buckets, 'equal bucket')}, {1e3 * simulated_s:.3g} ms"
        )
    if fit.variation > MOST_VARIATION:
        yield (
            f"transfers of one size vary by {fit.variation:.0%}: others use the network or the cores; the simulator "
            "has their mean"
        )
    if len(job.traces) == 1:
        yield "one rank's trace has the waiting for others inside its transfers: trace all ranks"
    others = [joint.transfer_s for joint in job.collectives if joint.kind != "all_reduce"]
    if (other_s := sum(others) / len(job.steps)) > MOST_ERROR / 4 * check.step_s[1]:
        yield f"other collectives take {other_s:.3g} s of a step, which the description leaves out"
