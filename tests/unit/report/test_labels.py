"""Naming runs by what differs between them, and gathering them into series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dsgd.record.reader import find_runs
from dsgd.report.labels import label, run_labels, series
from tests.support.each_row import each_row
from tests.support.records import write_record


def imported(target: str) -> dict[str, Any]:
    """A configuration with model=import."""
    return {"model": {"_target_": "dsgd.models.library.ImportedModel", "name": "import", "target": target}}


def test_labels_name_what_differs_and_nothing_else(tmp_path: Path):
    """Options that belong to one algorithm only follow from its name; those of one algorithm that vary do not."""
    folders = [
        write_record(tmp_path / "a", "gossip"),
        write_record(tmp_path / "b", "gossip", **{"algo.tau": 10}),
        write_record(tmp_path / "c", "easgd"),
        write_record(tmp_path / "d", "sync", **{"wandb.mode": "online"}),
    ]
    assert run_labels(find_runs(folders)) == ["gossip, tau=1", "gossip, tau=10", "easgd", "sync"]
    assert run_labels(find_runs(folders[2:])) == ["easgd", "sync"]
    assert run_labels(find_runs(folders[:2])) == ["tau=1", "tau=10"]
    assert run_labels(find_runs(folders[:1])) == ["gossip"]


@each_row(
    ("first", "second", "expected"),
    [
        ({"optimizer.lr": 1e-5}, {"optimizer.lr": 0.1}, ["lr=1e-05", "lr=0.1"]),
        ({"target": 0.9}, {"target": None}, ["target=0.9", "target=none"]),
        ({"cluster.slow_nodes": {3: 2.0}}, {"cluster.slow_nodes": {}}, ["slow_nodes={3: 2}", "slow_nodes={}"]),
        ({"model.name": "mlp"}, {"model.name": "resnet8", "model.hidden": []}, ["model=mlp", "model=resnet8"]),
        ({"model.width": 1}, {"model.width": 2, "data.width": 3}, ["model.width=1", "model.width=2, data.width=3"]),
        ({"clock": "wall"}, {"clock": "virtual"}, ["clock=wall", "clock=virtual"]),
        ({"model": {"_target_": "a.MLP"}}, {"model": {"_target_": "a.CNN"}}, ["model=MLP", "model=CNN"]),
        (imported("mine.wide"), imported("yours.wide"), ["target=mine.wide", "target=yours.wide"]),
        ({"resume": "a"}, {"resume": "b", "hydra": {"job": 1}}, ["gossip", "gossip"]),
    ],
)
def test_a_difference_is_named_by_its_shortest_key(
    first: dict[str, Any], second: dict[str, Any], expected: list[str], tmp_path: Path
):
    runs = find_runs([write_record(tmp_path / "a", **first), write_record(tmp_path / "b", **second)])
    assert sorted(run_labels(runs)) == sorted(expected)


FLATS = st.lists(
    st.fixed_dictionaries(
        {"algo.name": st.sampled_from(["sync", "gossip"]), "nodes": st.sampled_from("1248")},
        optional={key: st.sampled_from("xyz") for key in ("algo.tau", "lr", "model.width", "data.width", "data.name")},
    ),
    min_size=1,
    max_size=8,
)


@given(FLATS)
def test_labels_differ_exactly_where_configurations_do(flats: list[dict[str, str]]):
    """Two runs have one label if and only if they have one configuration: no difference is hidden, none invented."""
    labels = label(flats)
    for a, name_a in zip(flats, labels, strict=True):
        for b, name_b in zip(flats, labels, strict=True):
            assert (a == b) == (name_a == name_b)


@given(FLATS)
def test_a_key_equal_in_all_runs_is_in_no_label(flats: list[dict[str, str]]):
    constant = [flat | {"optimizer.momentum": "0.9"} for flat in flats]
    assert label(constant) == label(flats)


def test_runs_that_differ_by_seed_only_are_one_series(tmp_path: Path):
    for algo in ("sync", "gossip"):
        for seed in range(3):
            write_record(tmp_path / f"{algo}{seed}", algo, seed=seed)
    gathered = series(find_runs([tmp_path]))
    assert [(one.label, len(one.runs)) for one in gathered] == [("gossip", 3), ("sync", 3)]


def test_a_data_seed_that_stays_makes_one_series_though_the_first_run_has_the_same(tmp_path: Path):
    runs = [write_record(tmp_path / str(seed), seed=seed, **{"data.seed": 0}) for seed in range(3)]
    (one,) = series(find_runs(runs))
    assert len(one.runs) == 3


def test_seeds_that_are_not_averaged_over_are_named(tmp_path: Path):
    runs = find_runs([write_record(tmp_path / "a", "sync", seed=1), write_record(tmp_path / "b", "gossip", seed=2)])
    assert [one.label for one in series(runs)] == ["sync, seed=1", "gossip, seed=2"]
