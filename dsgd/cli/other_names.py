"""What is called otherwise elsewhere: names of methods and of options, by which a mistyped line is answered."""

from __future__ import annotations

from collections.abc import Sequence

METHODS = {  # a name of a method: what chooses it here
    "allreduce": "sync",
    "ddp": "sync",
    "powersgd": "compressed algo.code=powersgd",
    "topk": "compressed algo.code=topk",
    "signsgd": "compressed algo.code=sign",
    "qsgd": "compressed algo.code=qsgd",
    "slowmo": "diloco algo.outer=slowmo",
    "bmuf": "diloco algo.outer=heavy_ball",
    "postlocalsgd": "localsgd algo.switch=...",
    "fedavg": "localsgd",
    "osgp": "sgp algo.overlap=1",
    "d2": "corrected algo.method=d2",
    "tracking": "corrected algo.method=tracking",
    "qg": "corrected algo.method=qg",
    "decentlam": "corrected algo.method=decentlam",
    "eamsgd": "easgd algo.momentum=...",
    "asgd": "downpour",
    "relaysgd": "relay",
    "chocosgd": "choco",
    "dpsgd": "dpsgd",
    "cocodsgd": "delayfree",
}
OPTIONS = {  # of an algorithm: names elsewhere, and those of the same option here, whichever the algorithm has
    "outer_lr": ("olr",),
    "outer_rate": ("olr",),
    "slow_lr": ("olr",),
    "slowmo_lr": ("olr",),
    "outer_momentum": ("beta",),
    "slowmo_factor": ("beta",),
    "slowmo_frequency": ("tau",),
    "sync_every": ("tau",),
    "inner_steps": ("tau",),
    "H": ("tau",),
    "period": ("tau",),
    "start_localSGD_iter": ("switch",),
    "matrix_approximation_rank": ("rank",),
    "compressor": ("code",),
    "code": ("compressor",),
    "consensus_step": ("gamma",),
    "fragment_sync_delay": ("delay",),
    "fragment_update_alpha": ("mix",),
    "num_fragments": ("fragments",),
}


def method(word: str) -> str | None:
    """Return what chooses the method of this name, as `compressed algo.code=powersgd`; None if it is not known."""
    return METHODS.get("".join(letter for letter in word.lower() if letter.isalnum()))


def option(word: str, known: Sequence[str]) -> str | None:
    """Return which of the known options is called `word` elsewhere; None if it is none of them."""
    return next((name for name in OPTIONS.get(word, ()) if name in known), None)
