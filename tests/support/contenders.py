"""Make contenders by hand, from records that no run has written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsgd.comparison.contenders import Contender
from dsgd.record.reader import Run

BUDGET_S = 100.0


def run_reaching(
    algo: str,
    seconds: float,
    seed: int = 0,
    nodes: int = 8,
    lr: float = 0.1,
    target: float | None = 0.9,
    **summary: Any,
) -> Run:
    """Return a run whose accuracy comes to the target, and whose loss ends, at so many seconds; inf: never.

    Without a target `seconds` is its final loss; inf: the run diverged."""
    reached, budget_s = math.isfinite(seconds), max(BUDGET_S, 3 * seconds if math.isfinite(seconds) else 0.0)
    half_s = seconds if reached and target is not None else 0.4 * budget_s
    level = target if target is not None and reached else 0.6
    loss = seconds if target is None and reached else 0.2
    marks: list[dict[str, Any]] = []
    for share in (0.0, 0.3, 0.7, 1.0, 1.5, 3.0, budget_s / half_s):
        time_s = min(share * half_s, budget_s)
        accuracy = level * (0.1 + 0.9 * share) if share <= 1 else level + (0.97 - level) * reached * (1 - 1 / share)
        sent = 1e8 * nodes * time_s / budget_s
        marks.append(
            {
                "time_s": time_s,
                "clock": "virtual",
                "test_accuracy": accuracy,
                "test_loss": loss + 2 / (1 + 5 * share),
                "bytes_sent": sent,
                "samples": 16 * nodes * time_s,
            }
        )
    marks.sort(key=lambda mark: mark["time_s"])
    marks[-1]["test_loss"] = loss
    status = "diverged" if target is None and not reached else "completed"
    ended = marks[-1] | {
        "algo": algo, "nodes": nodes, "status": status, "bytes_sent_total": 1e8 * nodes, "idle_fraction_mean": 0.25,
        "target_accuracy": target, "model": "resnet8", "data": "shapes",
    }  # fmt: skip
    config = {
        "algo": {"name": algo}, "nodes": nodes, "seed": seed, "batch_size": 16, "optimizer": {"lr": lr},
        "model": {"name": "resnet8"}, "data": {"name": "shapes"}, "target": {"accuracy": target},
    }  # fmt: skip
    return Run(Path(f"runs/{algo}-{nodes}-{seed}"), config, marks, ended | summary)


def contender(
    name: str, seconds: Sequence[float], nodes: int = 8, lr: float = 0.1, target: float | None = 0.9, **summary: Any
) -> Contender:
    """Return a contender that reaches the target after these seconds, one for each seed; the algorithm is what its
    name begins with."""
    algo = name.partition(",")[0]
    runs = [
        run_reaching(algo, one, seed=seed, nodes=nodes, lr=lr, target=target, **summary)
        for seed, one in enumerate(seconds)
    ]
    return Contender(name, runs, chosen={"optimizer.lr": lr}, works=(lr / 2, lr * 2), spent=15)
