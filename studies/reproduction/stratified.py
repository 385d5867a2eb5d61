"""Summarise several tasks: the geometric mean of their median ratios, with a bootstrap stratified over tasks and seeds.

A draw takes as many seeds of each task as it has, with replacement, so that no task is missing from any draw (Agarwal
et al. 2021, arXiv 2108.13264)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dsgd.report.interval import CONFIDENCE, Estimate

DRAWS = 2000
SEED = 0  # the same ratios make the same interval


def ratio_over_tasks(tasks: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Estimate:
    """Return the ratio over all tasks. tasks: the ratios of each, a positive number for each seed, infinite where only
    the reference reached the target. Raises ValueError without a task, or for a task without ratios."""
    if not tasks or not all(map(len, tasks)):
        raise ValueError("tasks must be at least one, each with the ratios of its seeds, got none")
    if any(not ratio > 0 for ratios in tasks for ratio in ratios):
        raise ValueError(f"ratios must be > 0, got {tasks}")
    generator = np.random.default_rng(SEED)
    logs = [np.log(np.asarray(ratios, dtype=float)) for ratios in tasks]
    draws = np.zeros(DRAWS)
    for of_task in logs:
        seeds = generator.integers(len(of_task), size=(DRAWS, len(of_task)))
        draws += np.median(of_task[seeds], axis=1) / len(logs)
    draws.sort()
    outside = int(DRAWS * (1 - confidence) / 2)
    middle, low, high = np.mean([np.median(of_task) for of_task in logs]), draws[outside], draws[-1 - outside]
    return Estimate(math.exp(middle), math.exp(low), math.exp(high), sum(map(len, tasks)))
