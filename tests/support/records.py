"""Write records of runs that never ran: data for the reader and for the figures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import yaml

from dsgd.record.reader import Run, find_runs

# seconds per step, idle share (mean, most idle), vectors sent per node and step, discrepancy, own options
ALGORITHMS: dict[str, tuple[float, float, float, float, float, dict[str, Any]]] = {
    "sync": (0.31, 0.62, 0.71, 1.75, 0.0, {"overlap": True}),
    "easgd": (0.16, 0.22, 0.30, 0.4, 1.1, {"tau": 4, "alpha": 0.1, "beta": None, "servers": 1}),
    "downpour": (0.19, 0.35, 0.41, 1.0, 2.3, {"n_push": 1, "n_fetch": 1, "servers": 1}),
    "gossip": (0.12, 0.05, 0.11, 1.0, 0.8, {"tau": 1, "mode": "pull"}),
    "dpsgd": (0.22, 0.40, 0.55, 2.0, 0.3, {"gradient": "before"}),
    "delayfree": (0.11, 0.002, 0.004, 0.44, 1.6, {"tau": 8}),
}
VECTOR_BYTES = 4 * 4810


def write_record(folder: Path, algo: str = "gossip", /, **changes: Any) -> Path:
    """Smooth made-up curves in the format of a run record: data for the reader and the drawing, not a result.

    changes: nodes, seed, status, timing_only, quadratic, target, target_loss, time_model, clock, marks, and
    anything else as a dotted key of the configuration.
    """
    nodes, seed = changes.pop("nodes", 8), changes.pop("seed", 0)
    status, marks = changes.pop("status", "completed"), changes.pop("marks", 40)
    timing_only, quadratic = changes.pop("timing_only", False), changes.pop("quadratic", False)
    target_loss = changes.pop("target_loss", None)
    target, clock = changes.pop("target", None if target_loss else 0.9), changes.pop("clock", "virtual")
    time_model = changes.pop("time_model", None)
    step_s, idle, idle_max, vectors, spread, options = ALGORITHMS[algo]
    config: dict[str, Any] = {
        "algo": {"_target_": f"dsgd.algorithms.{algo}.{algo.capitalize()}", "name": algo, **options},
        "nodes": nodes,
        "batch_size": 16,
        "seed": seed,
        "data": {"_target_": "dsgd.data.built_in.Digits", "name": "digits", "seed": seed},
        "model": {"_target_": "dsgd.models.mlp.MLP", "name": "mlp", "hidden": [64]},
        "optimizer": {"lr": 0.1, "momentum": 0.9},
        "cluster": {"gradient_s": 0.1, "bandwidth": 1e7, "latency_s": 1e-3, "slow_nodes": {3: 2.0},
                    "time_model": time_model},
        "target": {"accuracy": target, "loss": target_loss, "stop": False},
        "wandb": {"mode": "offline", "run": folder.name},
    }  # fmt: skip
    for key, value in changes.items():
        *groups, leaf = key.split(".")
        place = config
        for group in groups:
            place = place[group]
        place[leaf] = value
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "env.json").write_text("{}")
    wiggle = 0.03 * math.sin(seed + 1)
    step_s *= 1 + idle * math.log2(nodes) / 2
    lines, reached = [], None
    for i in range(marks):
        epoch = 0.5 * i
        steps = epoch * 1437 / (16 * nodes)
        loss = 0.03 + 2.27 * math.exp(-epoch / (1.5 + spread)) + wiggle * min(1, epoch)
        accuracy = 0.97 - 0.87 * math.exp(-epoch / (1.2 + spread)) + wiggle * min(1, epoch)
        if status == "diverged" and i > marks // 2:
            loss, accuracy = loss * 10.0 ** (3 * (i - marks // 2)), 0.1
        mark = {
            "time_s": steps * step_s * (1 + wiggle), "clock": clock, "wall_s": 0.02 * i, "samples": int(epoch * 1437),
            "epoch": epoch, "lr": 0.1, "train_loss": None if timing_only else loss,
            "test_loss": None if timing_only else 1.1 * loss,
            "test_accuracy": None if timing_only or quadratic else accuracy,
            "consensus_distance": None if timing_only else spread * math.exp(-epoch / 8) * min(1, epoch) / 2,
            "discrepancy": None if timing_only else spread * math.exp(-epoch / 8) * min(1, epoch),
            "bytes_sent": int(steps * nodes * vectors * VECTOR_BYTES),
            "idle_fraction_mean": idle if i else None, "idle_fraction_max": idle_max if i else None,
        }  # fmt: skip
        if reached is None and target is not None and (mark["test_accuracy"] or 0) >= target:
            reached = mark["time_s"]
        lines.append(json.dumps(mark))
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    if status != "running":
        last = json.loads(lines[-1])
        summary = {name: last[name] for name in last if name not in ("epoch", "bytes_sent", "lr")} | {
            "algo": algo, "nodes": nodes, "status": status, "epochs": last["epoch"], "model": "mlp", "data": "digits",
            "bytes_sent_total": last["bytes_sent"], "time_to_target_s": reached, "target_accuracy": target,
            "target_loss": target_loss, "seed": seed, "time_model": time_model,
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_all(top: Path, **changes: Any) -> list[Run]:
    return find_runs([write_record(top / algo, algo, **changes) for algo in ALGORITHMS])


def rewrite(folder: Path, change: dict[str, Any], summary: dict[str, Any] | None = None) -> None:
    """Change fields of all marks, and of the summary."""
    marks = [json.loads(line) | change for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    written = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(written | (summary or {})))


def reach(folder: Path, seconds: float | None, target: float = 0.9) -> None:
    """Replace the marks by three whose test accuracy comes to the target after so many seconds, or never."""
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    accuracies = {0.0: 0.1, seconds or 1.0: 0.1 if seconds is None else target, 1e6: target if seconds else 0.1}
    marks = [last | {"time_s": time_s, "test_accuracy": value} for time_s, value in accuracies.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    rewrite(folder, {}, {"time_to_target_s": seconds})
