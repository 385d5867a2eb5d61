"""Tell which algorithms can run over process groups. Does not import torch."""

from __future__ import annotations

from dsgd.worker import Algorithm


def why_not(algo: Algorithm) -> str | None:
    """Say what keeps an algorithm from running over process groups; None: nothing."""
    if algo.servers:
        return "its workers ask a parameter server, each when it gets there"
    if not algo.lockstep:
        return "its workers do not keep step, and reach peers in the midst of a gradient"
    if algo.backups:
        return "a step goes on without the gradients that are late"
    return None
