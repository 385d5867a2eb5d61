"""The bandwidth that a method needs is that of its closed form, and the page's table is what the command prints."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from dsgd.cli import calibrate
from dsgd.cli.arguments import full_option
from dsgd.cli.need import (
    PER_OCTAVE,
    LinkNeed,
    experiment_of,
    first_enough,
    grid,
    needs_of,
    parameters_of,
    timing_overrides,
)
from tests.support.each_row import each_row

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "bandwidth.md"
STEP = 2 ** (1 / PER_OCTAVE)
GRADIENT_S, N_BYTES, TARGETS = 0.1, 4e8, (50.0, 90.0, 99.0)
WORDS = ("parameters=1e8", f"gradient_s={GRADIENT_S}", "cluster.collective=ring", "cluster.latency_s=0")


def needs(method: str, nodes: int, *words: str) -> list[LinkNeed]:
    timing = timing_overrides([*WORDS, f"nodes={nodes}", *words])
    return needs_of(method, experiment_of(method, timing), TARGETS)


@each_row(
    ("method", "nodes", "tau"), [("sync overlap=false", 2, 1), ("localsgd tau=10", 8, 10), ("diloco tau=20", 4, 20)]
)
def test_a_round_needs_the_bandwidth_of_its_ring(method: str, nodes: int, tau: int) -> None:
    """tau t / (tau t + c) of the time computes, where a ring takes c = 2 (p - 1) / p N / B + 2 (p - 1) a."""
    for need in needs(method, nodes):
        allowed_s = tau * GRADIENT_S * (100 / need.percent - 1)
        exact = 2 * (nodes - 1) / nodes * 8 * N_BYTES / allowed_s
        assert exact * (1 - 1e-9) <= need.bandwidth <= exact * STEP * (1 + 1e-9)
        latency_s = allowed_s / (2 * (nodes - 1))
        assert latency_s / STEP * (1 - 1e-9) <= need.latency_s <= latency_s * (1 + 1e-9)


def test_a_message_that_hides_behind_the_next_gradient_needs_little_more_for_all_of_the_time() -> None:
    half, most, all_but = needs("dpsgd", 8)
    assert half.bandwidth < most.bandwidth < all_but.bandwidth < 2.2 * half.bandwidth
    assert most.bandwidth == pytest.approx(2 * 8 * N_BYTES / GRADIENT_S, rel=0.15)  # to both neighbours


def test_where_the_latency_alone_takes_too_long_no_bandwidth_is_enough() -> None:
    *_, all_but = needs("localsgd tau=1", 8, "cluster.latency_s=1s")
    assert math.isinf(all_but.bandwidth)


def test_the_first_that_is_enough() -> None:
    def share_of(value: float) -> float:
        return value / (1 + value)

    values = grid(0.01, 100)
    found = first_enough(share_of, [50.0, 90.0, 99.9], values)
    half, most, all_but = found
    assert half is not None
    assert most is not None
    assert share_of(half / STEP) < 0.5 <= share_of(half)
    assert share_of(most / STEP) < 0.9 <= share_of(most)
    assert all_but is None


def test_an_option_without_a_dot_is_the_algorithm_s_unless_it_is_a_key_of_every_run() -> None:
    options = ["tau=10", "topology=torus", "optimizer.lr=0.1", "batch_size=4"]
    assert [*map(full_option, options)] == ["algo.tau=10", "topology=torus", "optimizer.lr=0.1", "batch_size=4"]
    timing = timing_overrides([*WORDS, "nodes=4", "topology=torus"])
    assert experiment_of("sgp topology=ring", timing).algo.topology.name == "ring"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_cluster_s_own_gradient_time_counts_unless_another_one_is_given(tmp_path: Path) -> None:
    trace = tmp_path / "times.csv"
    trace.write_text("step,rank,seconds\n0,0,0.2\n0,1,0.4\n")
    replayed = f"cluster.compute_trace={trace}"
    for words, mean_s in ((["cluster=jin2016"], 0.2), (["cluster=jin2016", "gradient_s=3s"], 3.0), ([replayed], 0.3)):
        timing = timing_overrides(["parameters=1e6", "nodes=2", *words])
        assert experiment_of("sync", timing).cluster.mean_gradient_s == pytest.approx(mean_s)


@each_row(("model", "count"), [("resnet50", 25_557_032), ("resnet18", 11_689_512)])
def test_parameters_of_a_model_are_those_for_imagenet(model: str, count: int) -> None:
    assert parameters_of(model) == count


WRONG = {
    "gradient_s must be given": ["model=resnet50"],
    "one of model and parameters must be given, got none": ["gradient_s=0.1"],
    "one of model and parameters must be given, got both": ["gradient_s=0.1", "model=resnet50", "parameters=1e6"],
    "parameters must be a number >= 1, got many": ["gradient_s=0.1", "parameters=many"],
    "precision must be one of fp64, fp32": ["gradient_s=0.1", "parameters=1e6", "precision=int8"],
    "cluster.bandwidth must not be given": ["gradient_s=0.1", "parameters=1e6", "cluster.bandwidth=1e9"],
    "algo must not be given": ["gradient_s=0.1", "parameters=1e6", "algo=sync"],
    "arguments must be KEY=VALUE, got resnet50": ["gradient_s=0.1", "resnet50"],
    "--target must be in (0, 100) %, got 100": ["gradient_s=0.1", "parameters=1e6", "--target", "100"],
    "--figure must be a .png, .svg or .pdf file": ["gradient_s=0.1", "parameters=1e6", "--figure", "need.txt"],
    "algo.tau must be >= 1": ["gradient_s=0.1", "parameters=1e6", "--method", "localsgd tau=0"],
    "nodes must be": ["gradient_s=0.1", "parameters=1e6", "nodes=0"],
    "cluster.gradient_s must be": ["gradient_s=-1", "parameters=1e6"],
    "--method must": ["gradient_s=0.1", "parameters=1e6", "--method", ""],
}


@each_row(("said", "words"), list(WRONG.items()))
def test_a_wrong_word_ends_in_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], said: str, words: Sequence[str]
) -> None:
    method = [] if "--method" in words else ["--method", "sync"]
    assert calibrate.main(["need", *words, *method]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_the_page_has_what_its_command_prints(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = PAGE.read_text()
    (command,) = re.findall(r"^    dsgd-calibrate (need model=resnet50 .* --target 90)$", page, flags=re.MULTILINE)
    heads, row = (re.search(rf"^\| {name}.*$", page, flags=re.MULTILINE) for name in ("model ", "ResNet-50"))
    assert heads is not None
    assert row is not None
    methods, cells = ([cell.strip() for cell in line[0].split("|")[3:-1]] for line in (heads, row))
    flags = [flag for method in methods for flag in ("--method", method)]
    out, figure = tmp_path / "need.json", tmp_path / "need.svg"
    assert calibrate.main([*command.split(), *flags, "--json", str(out), "--figure", str(figure)]) == 0
    printed = capsys.readouterr().out.splitlines()
    table = {
        method: line.removeprefix(method).strip()
        for method in methods
        for line in printed[:6]
        if line.startswith(method)
    }
    assert table == dict(zip(methods, cells, strict=True))
    assert [need["method"] for need in json.loads(out.read_text())["needs"]] == methods
    assert figure.read_text().count("<path") > len(methods)
