"""Which algorithms and options every rule is tried on: all that conf/algo/ holds, collected anew each time."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import torch
from omegaconf import DictConfig, OmegaConf

from dsgd.cli.compose import GROUPS, composed
from dsgd.experiment import Experiment
from dsgd.runner.configuration import configure
from tests.support.simulate import with_gradient_s

torch.set_num_threads(1)

ALGORITHMS = sorted(
    path.name.removesuffix(".yaml") for path in (files("dsgd.conf") / "algo").iterdir() if path.name.endswith(".yaml")
)

# One for each way of waiting: what the engine of real processes can tell apart.
WAITING = ["adpsgd", "delayfree", "downpour", "dpsgd", "easgd", "gossip", "localsgd", "sgp", "sync"]

# Options with which an algorithm keeps further state or waits for something else.
VARIANTS: list[tuple[str, ...]] = [
    ("sync", "algo.overlap=false"),
    ("sync", "algo.overlap=false", "algo.backups=1"),
    ("easgd", "algo.tau=3", "algo.servers=2", "algo.momentum=0.9"),
    ("easgd", "algo.variant=sync", "algo.tau=3"),
    ("easgd", "algo.variant=round_robin", "algo.tau=2"),
    ("downpour", "algo.server_optimizer=momentum", "algo.servers=3", "algo.n_push=2", "algo.n_fetch=3"),
    ("downpour", "algo.server_optimizer=adagrad"),
    ("gossip", "algo.mode=push", "algo.tau=2"),
    ("dpsgd", "algo.gradient=after", "topology=one_peer_exponential"),
    ("dpsgd", "algo.gradient=first", "topology=ring"),
    ("compressed", "algo.code=topk", "algo.share=0.3"),
    ("compressed", "algo.code=qsgd"),
    ("corrected", "algo.method=tracking"),
    ("corrected", "algo.method=qg", "topology=one_peer_exponential"),
    ("choco", "algo.compressor=topk", "algo.share=0.3", "algo.order=code"),
    ("delayfree", "algo.tau=4"),
    ("diloco", "algo.tau=3", "algo.outer=slowmo"),
    ("gasloc", "algo.tau=3", "algo.peers=two", "algo.overlap=0.5"),
    ("diloco", "algo.tau=3", "algo.overlap=eager"),
    ("diloco", "algo.tau=3", "algo.code=sparse", "algo.chunk=8", "algo.kept=2"),
    ("streaming", "algo.tau=7", "algo.fragments=2", "algo.delay=2", "algo.bits=8"),
    ("sparta", "algo.share=0.4", "algo.tau=3"),
    ("localsgd", "algo.tau=3", "algo.switch=5", "algo.momentum=average"),
    ("adpsgd", "algo.peers=topology", "topology=star"),
    ("asyncdiloco", "algo.tau=2", "algo.group=2", "algo.updates=3", "algo.slow_nodes={1: 3.0}"),
    ("asyncdiloco", "algo.tau=2", "algo.c_ok=0.9", "algo.delay_power=0.5"),
    ("relay", "topology=star"),
    ("sgp", "algo.overlap=1", "topology=one_peer_exponential"),
    ("sgp", "algo.overlap=3", "topology=star"),
    ("localsgd", "algo.tau=6", "algo.group=2", "algo.inner_tau=2", "algo.momentum=average"),
]

PLAIN: list[tuple[str, ...]] = [(name,) for name in ALGORITHMS]
CASES = PLAIN + [variant for variant in VARIANTS if variant[0] in ALGORITHMS]


def alone(case: tuple[str, ...]) -> tuple[str, ...]:
    """Return the case for one worker, who can have neither backups nor a group."""
    return tuple(text for text in case if not text.startswith(("algo.backups", "algo.group", "algo.slow_nodes")))


def described(case: tuple[str, ...]) -> str:
    return " ".join(text.removeprefix("algo.") for text in case)


@cache
def prepared(*overrides: str) -> Experiment:
    """The experiment of a command line, with gradients of 10 ms where it would measure them.

    It is frozen, so any number of simulations can share it. Composing takes longer than most of the runs, so it is done
    once for the same choice of groups."""
    choices = tuple(text for text in overrides if text.split("=")[0] in GROUPS)
    values = OmegaConf.from_dotlist([text for text in overrides if text not in choices])
    whole = OmegaConf.to_container(OmegaConf.merge(chosen(*choices), values))
    assert isinstance(whole, dict)
    return configure({str(key): value for key, value in whole.items()}).experiment


@cache
def chosen(*choices: str) -> DictConfig:
    return OmegaConf.create(with_gradient_s(composed(list(choices))))
