"""The time of a gradient in the simulator if the cluster does not set it: measured on this machine, once for a run or
for all jobs of a sweep, and stored, so that a command gives the same virtual times tomorrow. Does not import torch.

The cache has one small file for each kind of gradients. Delete it to measure the time again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsgd.data import DataLost
from dsgd.experiment import Experiment
from dsgd.host.fork import run_in_child
from dsgd.host.signals import Interrupted
from dsgd.host.stop import EXIT_INTERRUPTED
from dsgd.record.reader import name_of, read_summary
from dsgd.record.safe_files import json_object
from dsgd.record.safe_text import lines_for_terminal
from dsgd.runner.configuration import RunConfig, configure
from dsgd.runner.plan import Plan
from dsgd.runner.values import ConfigError, convert, key_prefix

if TYPE_CHECKING:
    from dsgd.problem.problem import Problem

GRADIENT_S = "gradient_s"  # in checkpoints and summaries

FILE_BYTES = 1 << 16
DATE = re.compile(r"\d{4}-\d\d-\d\d")


class CacheUnusable(Exception):
    """Raised when times cannot be stored or read: one line."""


@dataclass(frozen=True)
class KeptTime:
    """A stored gradient time. seconds: time of one gradient. measured: date, as 2026-11-25."""

    seconds: float
    measured: str


def kept_time(key: Mapping[str, str]) -> KeptTime | None:
    """Return the stored time for this key, or None. Raises CacheUnusable."""
    path = _path(key)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            content = json_object(file.read(FILE_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CacheUnusable(f"{path} cannot be read: {error.strerror}") from error
    content = content or {}
    seconds, measured = content.get("seconds"), content.get("measured")
    if not isinstance(seconds, float) or not 0 < seconds < math.inf or content.get("of") != dict(key):
        raise CacheUnusable(f"{path} is no gradient time of this version")
    if not isinstance(measured, str) or not DATE.fullmatch(measured):
        raise CacheUnusable(f"{path} is no gradient time of this version")
    return KeptTime(seconds, measured)


def keep_time(key: Mapping[str, str], seconds: float) -> None:
    """Store a time that was measured today. Another process sees the whole file or none. Raises CacheUnusable."""
    path = _path(key)
    content = {"seconds": seconds, "measured": date.today().isoformat(), "of": dict(key)}
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, partial = tempfile.mkstemp(prefix=path.name, dir=path.parent)  # follows no link, and overwrites nothing
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")
        os.replace(partial, path)
    except OSError as error:
        if partial is not None:
            with suppress(OSError):
                os.unlink(partial)
        raise CacheUnusable(f"{path.parent} cannot be written: {error.strerror}") from error


def _path(key: Mapping[str, str]) -> Path:
    """Return the file for a key. Raises CacheUnusable if this user has no cache folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        raise CacheUnusable("there is neither XDG_CACHE_HOME nor a home folder")
    name = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]
    return Path(base, "dsgd", f"gradient_{name}.json")


def gradient_name(values: Mapping[str, Any]) -> str:
    """Return the name of a configuration's gradients, as in `cluster.gradient_of`: mlp, batch 16, fp32."""
    return f"{name_of(values['model'])}, batch {values['batch_size']}, {values['precision']}"


def foreign_time(config: RunConfig) -> str | None:
    """Return a line if the cluster's gradient time is for another model, batch size or precision."""
    cluster, gradient = config.experiment.cluster, gradient_name(config.values)
    whose = cluster.gradient_of
    if cluster.gradient_s is None or whose is None or set(whose.split(", ")) <= set(gradient.split(", ")):
        return None
    name = config.values["cluster"].get("name", "the cluster")
    return f"warning: cluster={name} has the gradient time of {whose}, but this run takes gradients of {gradient}"


def with_gradient_time(experiment: Experiment, plan: Plan, problem: Problem) -> tuple[Experiment, str | None]:
    """Return the experiment of a plan with a gradient time: from its configuration, its checkpoint, its sweep, or this
    machine; and the date of measuring it, None if it is given, or not stored.

    Raises ConfigError, also for options that do not fit that time."""
    if experiment.cluster.mean_gradient_s is not None:
        return experiment, None
    if plan.checkpoint is not None:
        gradient_s = _recorded(plan.checkpoint.header)
    else:
        gradient_s = plan.gradient_s or measured_gradient_s(plan.config, problem)
    with key_prefix("cluster"):
        cluster = replace(experiment.cluster, gradient_s=gradient_s)
    with key_prefix(None):
        experiment = replace(experiment, cluster=cluster)
    kept = None
    with suppress(CacheUnusable):  # as a line has said
        kept = kept_time(_key(plan.config.experiment, problem, plan.config.engine.threads or 1))
    return experiment, kept.measured if kept is not None and kept.seconds == gradient_s else None


def measured_gradient_s(config: RunConfig, problem: Problem | None = None) -> float:
    """Return the seconds of a gradient, to three digits: measured before on this machine, or now, in a separate
    process. Prints a line that says which.

    problem: the experiment's problem, if it is already built. Raises ConfigError, and KeyboardInterrupt after a
    signal."""
    experiment, name, answer = config.experiment, gradient_name(config.values), None
    threads = config.engine.threads or 1  # threads of a worker, as in real processes, not of the whole simulation
    if problem is not None and experiment.gradients != "none":
        with suppress(CacheUnusable):  # as the process will say
            if (kept := kept_time(_key(experiment, problem, threads))) is not None:
                answer = {"seconds": kept.seconds, "date": kept.measured, "warnings": []}
    if answer is None:
        answer = _measured_by_child(experiment, name, problem, threads)
    when = f"measured on {answer['date']}" if answer["date"] else "measured"
    line = f"one gradient of {name} takes {1e3 * answer['seconds']:.3g} ms here ({when}); cluster.gradient_s sets it"
    print(lines_for_terminal("\n".join([line, *answer["warnings"]])), file=sys.stderr, flush=True)
    return answer["seconds"]


def _measured_by_child(experiment: Experiment, name: str, problem: Problem | None, threads: int) -> dict[str, Any]:
    """Return the measurement of a separate process, as `_kept_or_measured` does. Raises as `measured_gradient_s`."""
    import dsgd.gradients.choice  # noqa: F401  # here once: each process would take more than a second for it

    child = run_in_child(lambda: _in_a_new_thread(experiment, problem, threads))
    if child.signals or child.status == EXIT_INTERRUPTED:
        raise Interrupted
    if child.status != 0:
        ended = f"killed by {signal.Signals(-child.status).name}" if child.status < 0 else "an error"
        raise _not_measured(name, f"its process ended with {ended}")
    answer = json.loads(child.text)
    if "wrong" in answer and experiment.gradients != "none":
        raise ConfigError(answer["wrong"])
    if "seconds" not in answer:
        raise _not_measured(name, answer.get("wrong") or answer["failed"])
    return answer


def _not_measured(name: str, reason: str) -> ConfigError:
    return ConfigError(f"cluster.gradient_s must be given, as a gradient of {name} cannot be measured: {reason}")


def _in_a_new_thread(experiment: Experiment, problem: Problem | None, threads: int) -> str:
    """Call `_measured` in a new thread, which has no pool of threads: a forked thread with a pool would wait for it for
    ever."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_measured, experiment, problem, threads).result()


def _measured(experiment: Experiment, problem: Problem | None, threads: int) -> str:
    """Return the result of measuring, as JSON: seconds; wrong: error of the configuration; failed: other error."""
    from dsgd.problem.problem import build_problem

    if experiment.gradients == "none":  # whose problem is one of single samples
        problem, experiment = None, replace(experiment, gradients="loop")
    try:
        # of one worker, since there may be more workers than samples
        problem = problem or build_problem(replace(experiment, nodes=1))
        return json.dumps(_kept_or_measured(experiment, problem, threads))
    except (ValueError, DataLost) as error:
        return json.dumps({"wrong": str(error)})
    except BaseException as error:  # a model or a data set may raise anything; signals reach another thread
        return json.dumps({"failed": " ".join(f"{type(error).__name__}: {error}".split())})


def _kept_or_measured(experiment: Experiment, problem: Problem, threads: int) -> dict[str, Any]:
    """Return the seconds of a gradient, to three digits; the date, if they were measured before; and warnings."""
    from dsgd.gradients.choice import gradient_duration

    key, warnings = _key(experiment, problem, threads), list[str]()
    try:
        if (kept := kept_time(key)) is not None:
            return {"seconds": kept.seconds, "date": kept.measured, "warnings": []}
    except CacheUnusable as error:
        warnings.append(f"warning: gradient times are not kept: {error}")
    duration = gradient_duration(experiment, problem, threads)
    seconds = float(f"{duration.seconds:.3g}")
    if not duration.steady:
        span = f"{1e3 * duration.seconds:.3g} to {1e3 * duration.slowest:.3g} ms"
        warnings.append(f"warning: gradients take {span} here, beside other programs: this time is not kept")
    else:
        try:
            keep_time(key, seconds)
        except CacheUnusable as error:
            warnings = [f"warning: gradient times are not kept: {error}"]
    return {"seconds": seconds, "date": None, "warnings": warnings}


def _key(experiment: Experiment, problem: Problem, threads: int) -> dict[str, str]:
    """Return all that the time of a gradient depends on, here and now: also the names of machine and processor."""
    import torch

    from dsgd.data.protocols import content_hash
    from dsgd.host.gpu_facts import chosen_device, device_name

    processor = platform.processor() or platform.machine()
    with suppress(OSError):  # a system without /proc
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        names = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        processor = names[0] if names else processor
    device = torch.device("cpu") if problem.data.classes is None else chosen_device(experiment.device)
    return {
        "model": repr(experiment.model),
        "structure": content_hash(
            [repr(problem.module), *map(str, problem.layout)]
        ),  # layers with their options, shapes
        "data": f"{type(experiment.data).__name__}, {tuple(problem.data.input_shape)}, {problem.data.classes}",
        "batch": str(experiment.batch_size),
        "arithmetic": f"{experiment.precision}, {experiment.channels_last}, {experiment.compile}",
        "threads": str(threads),
        "device": "cpu" if device.type == "cpu" else device_name(device),
        "torch": torch.__version__,
        "machine": f"{platform.node()}, {processor}",
    }


def with_shared_times(
    plans: Sequence[Plan | None], jobs: Sequence[tuple[Mapping[str, Any], Path]]
) -> list[Plan | None]:
    """Return the plans of a sweep's jobs with one gradient time for all jobs with the same gradients: the time of an
    earlier start, or one measured now. Raises ConfigError, and KeyboardInterrupt after a signal.

    jobs: configuration and record folder of each job; jobs without a plan have ended."""
    if not any(map(is_open, plans)):
        return list(plans)
    times = _times_before(plans, jobs)
    return [with_time_of_kind(plan, times) if plan is not None and is_open(plan) else plan for plan in plans]


def with_time_of_kind(plan: Plan, times: dict[str, float]) -> Plan:
    """Return a plan with the time of its kind of gradients, which is measured if it is not among `times` yet."""
    kind = kind_of(plan.config)
    if kind not in times:
        times[kind] = measured_gradient_s(plan.config)
    return replace(plan, gradient_s=times[kind])


def _times_before(plans: Sequence[Plan | None], jobs: Sequence[tuple[Mapping[str, Any], Path]]) -> dict[str, float]:
    """Return the gradient times of earlier starts of jobs, by the kind of their gradients."""
    times: dict[str, float] = {}
    for plan, (values, folder) in zip(plans, jobs, strict=True):
        config = configure(values) if plan is None else plan.config
        before = read_summary(folder) if plan is None else plan.checkpoint and plan.checkpoint.header
        gradient_s = _recorded(before or {})
        if config.experiment.cluster.mean_gradient_s is None and gradient_s is not None:
            times.setdefault(kind_of(config), gradient_s)
    return times


def _recorded(before: Mapping[str, Any]) -> float | None:
    """Return the gradient time in a checkpoint or summary. Raises ConfigError for an invalid one."""
    return convert(before.get(GRADIENT_S), float | None, GRADIENT_S)


def is_open(plan: Plan | None) -> bool:
    """Return whether this run starts in the simulator without a given gradient time."""
    if plan is None or plan.engine != "sim" or plan.checkpoint is not None:
        return False
    return plan.config.experiment.cluster.mean_gradient_s is None


def kind_of(config: RunConfig) -> str:
    """Return all that the time of a gradient depends on."""
    experiment, data = config.experiment, config.experiment.data
    model = (experiment.model, type(data), data.input_shape, data.classes, experiment.batch_size)
    arithmetic = (experiment.precision, experiment.channels_last, experiment.compile, config.engine.threads or 1)
    return repr((*model, *arithmetic, experiment.device))
