"""A ladder as users type it: the forecast is written before the largest rung is run, and never again."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from dsgd.comparison.command import main

SMALL = ["algo=sync,gossip", "nodes=4", "model.hidden=[16]", "budget.epochs=2", "cluster.gradient_s=0.01"]
LADDER = "compare.ladder={batch_size: [2, 4, 8, 16]}"


def test_a_ladder_forecasts_its_largest_rung_and_shows_the_miss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ladder"
    command = [*SMALL, LADDER, "compare.tune={}", "compare.seeds=2", f"--folder={folder}"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^sync over gossip: [\d.]+, [\d.]+, [\d.]+[,;] .*measured", printed, re.MULTILINE)

    forecast = folder / "forecast.json"
    written = forecast.read_bytes()
    assert json.loads(written)["sizes"] == [2, 4, 8]
    records = {rung: list((folder / f"batch_size={rung}").rglob("metrics.jsonl")) for rung in (2, 4, 8, 16)}
    assert {len(of_rung) for of_rung in records.values()} == {4}
    first_of_largest = min(path.with_name("env.json").stat().st_mtime_ns for path in records[16])
    last_before = max(path.stat().st_mtime_ns for rung in (2, 4, 8) for path in records[rung])
    assert last_before <= forecast.stat().st_mtime_ns <= first_of_largest

    drawn = {path: path.read_bytes() for path in folder.glob("ladder.*") if path.suffix in (".csv", ".md", ".png")}
    assert len(drawn) == 3
    stamps = {path: path.stat().st_mtime_ns for of_rung in records.values() for path in of_rung}
    assert main(command) == 0  # nothing is run again
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert {path: path.read_bytes() for path in drawn} == drawn
    assert forecast.read_bytes() == written

    forecast.write_bytes(written.replace(b'"size": 16', b'"size": 17'))
    assert main(command) == 2
    assert f"--folder must be new for other runs, got {folder}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare.ladder={batch_size: [2, 4, 8]}"], "compare.ladder.batch_size must be 4 ascending numbers or more"),
        (["compare.ladder={batch_sise: [2, 4, 8, 16]}"], "batch_sise is not a key of the configuration"),
        (["compare.ladder={batch_size: [2, 4, 8, 1000000]}"], "batch_size must be <= "),
        ([LADDER, "--html=page.html"], "--html must not be given with compare.ladder, got page.html"),
    ],
    ids=["three rungs", "a wrong key", "too large", "html"],
)
def test_a_wrong_ladder_ends_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    folder = tmp_path / "ladder"
    assert main([*SMALL, *words, "compare.tune={}", f"--folder={folder}"]) == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()


def test_the_tutorial_says_what_its_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of the tutorial, with two seeds and few steps: every output that it explains is there."""
    page = (Path(__file__).parents[3] / "docs" / "tutorials" / "ladder.md").read_text()
    (_, ladder) = re.findall(r"^    dsgd-compare ((?:.*\\\n)*.*)$", page, flags=re.MULTILINE)
    short = ["budget.steps=160", "target.loss=1.9", "eval.every_steps=8", "data.train_size=2000", "data.test_size=500"]
    replaced = {"--folder", *(word.partition("=")[0] for word in short)}
    words = [word for word in shlex.split(ladder.replace("\\\n", " ")) if word.partition("=")[0] not in replaced]
    words += [*short, "compare.seeds=2", "compare.tune={}"]
    folder = tmp_path / "ladder"
    assert main([*words, f"--folder={folder}"]) == 0
    printed = capsys.readouterr().out
    assert re.search(
        r"^sync over gossip: .*; samples to the target [\d., ]+, seconds a sample [\d., ]+$", printed, re.M
    )
    assert json.loads((folder / "forecast.json").read_text())["sizes"] == [32, 64, 128]
    fields = re.findall(r'^     "(\w+)":', page, flags=re.MULTILINE)
    assert {*fields} <= {*json.loads((folder / "forecast.json").read_text())["forecasts"]["sync over gossip"]}
    assert (folder / "ladder.png").exists()
