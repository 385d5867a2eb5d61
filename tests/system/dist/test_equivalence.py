"""Both engines run every algorithm with every option that changes what is sent, kept or waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.dist.test_equivalence import (
    QUADRATIC,
    assert_same,
    assert_same_at_the_end,
    assert_same_in_turns,
    assert_same_on_quadratics,
)
from tests.support.prefork import Prefork

LOCKSTEP: tuple[tuple[str, ...], ...] = (
    ("sync", "algo.overlap=false"),
    ("dpsgd", "algo.gradient=first"),
    ("compressed", "algo.code=topk", "algo.share=0.3"),
    ("compressed", "algo.code=sign"),
    ("compressed", "algo.code=randomk", "algo.share=0.5", "seed=2"),
    ("corrected",),
    ("corrected", "algo.method=tracking"),
    ("choco", "algo.compressor=topk", "algo.share=0.3", "algo.order=code"),
    ("delayfree", "algo.tau=2"),
    ("delayfree", "algo.tau=16"),
    ("localsgd", "algo.tau=4", "algo.switch=6", "algo.momentum=average"),
    ("localsgd", "algo.tau=6", "algo.group=${nodes}", "algo.inner_tau=2"),
    ("localsgd", "algo.tau=2", "algo.momentum=zero"),
    ("diloco", "algo.tau=2", "algo.outer=slowmo", "algo.olr=1", "algo.beta=0.5"),
    ("diloco", "algo.tau=3", "algo.code=sparse", "algo.chunk=8", "algo.kept=2"),
    ("streaming", "algo.tau=5", "algo.fragments=2", "algo.delay=0", "algo.bits=4"),
    ("sparta", "algo.share=0.4", "algo.tau=4"),
    ("gasloc", "algo.tau=3", "algo.peers=two", "algo.overlap=0.5"),
    ("sgp", "topology=one_peer_exponential"),
)
FREE: tuple[tuple[str, ...], ...] = (
    ("gossip", "algo.mode=push"),
    ("adpsgd", "algo.peers=topology", "topology=star"),
    ("easgd", "algo.tau=1", "algo.momentum=0.7", "algo.servers=2"),
    ("asyncdiloco", "algo.tau=2", "algo.slow_nodes={1: 2.0}"),
    ("asyncdiloco", "algo.tau=2", "algo.group=3", "algo.updates=3", "algo.local_buffer=2"),
    ("asyncdiloco", "algo.tau=2", "algo.c_ok=0.9", "algo.kappa=0.1", "algo.delay_power=0.5"),
    ("decoupled", "algo.tau=4", "algo.fragments=2", "algo.delay=1", "algo.quorum=2"),
    ("downpour", "algo.n_fetch=2", "algo.server_optimizer=adagrad"),
)
TEXT = ("precision=fp64", "model=gpt", "model.width=16", "model.depth=1", "model.heads=2", "data=text", "batch_size=4")
TEXT += ("data.generated_bytes=4000", "data.context=16", "nodes=2", "budget.steps=4", "eval.every_epochs=null")


@pytest.mark.parametrize("case", LOCKSTEP, ids=" ".join)
def test_lock_step_ends_with_the_same_parameters(prefork: Prefork, tmp_path: Path, case: tuple[str, ...]) -> None:
    assert_same_on_quadratics(prefork, tmp_path, *case)


@pytest.mark.parametrize("algo", ["sync", "delayfree"])
def test_lock_step_ends_with_the_same_parameters_with_adamw(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    options = ("nodes=3", "budget.steps=21", "optimizer=adamw", "optimizer.weight_decay=0.1")
    assert_same(prefork, tmp_path, algo, *QUADRATIC, *options)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_language_model_ends_with_the_same_parameters(prefork: Prefork, tmp_path: Path, optimizer: str) -> None:
    """With an outer optimiser."""
    assert_same(prefork, tmp_path, "diloco", "algo.tau=2", *TEXT, f"optimizer={optimizer}")


@pytest.mark.parametrize("case", FREE, ids=" ".join)
def test_free_workers_that_take_the_simulation_s_turns_end_where_it_ends(
    prefork: Prefork, tmp_path: Path, case: tuple[str, ...]
) -> None:
    assert_same_in_turns(prefork, tmp_path, *case)


def test_workers_that_go_apart_end_with_the_same_parameters(prefork: Prefork, tmp_path: Path) -> None:
    assert_same_at_the_end(prefork, tmp_path, "noloco")
