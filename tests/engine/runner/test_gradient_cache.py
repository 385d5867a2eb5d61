"""A measured gradient time is kept on this machine: the same command gives the same virtual times tomorrow."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from dsgd.cli.compose import composed
from dsgd.gradients.choice import SERIES, fastest
from dsgd.runner.configuration import configure
from dsgd.runner.gradient_time import CacheUnusable, keep_time, kept_time, measured_gradient_s
from tests.support.command import call, marks, summary

RUN = ("cluster=ideal", "nodes=2", "budget.steps=4", "engine=sim", "batch_size=5")
KEY = {"model": "mlp"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # whatever else runs here: as on a machine with nothing else to do
    monkeypatch.setattr("dsgd.gradients.choice.AGREE", float("inf"))
    return tmp_path / "cache/dsgd"


def file_of(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


def test_the_same_command_has_the_same_times_and_says_when_they_were_measured(tmp_path: Path, cache: Path) -> None:
    first = call(*RUN, "hydra.run.dir=first")
    assert first.status == 0, first.err
    assert "ms here (measured); cluster.gradient_s sets it" in first.err
    content = json.loads(file_of(cache).read_text())
    assert json.loads((tmp_path / "first/env.json").read_text())["gradient_measured"] == content["measured"]
    assert content["seconds"] == summary(tmp_path / "first")["gradient_s"]
    file_of(cache).write_text(json.dumps({**content, "measured": "2026-01-02", "seconds": 0.25}))
    again = call(*RUN, "hydra.run.dir=again")
    assert again.status == 0, again.err
    assert "one gradient of mlp, batch 5, fp32 takes 250 ms here (measured on 2026-01-02); cluster" in again.err
    assert summary(tmp_path / "again")["gradient_s"] == 0.25
    assert json.loads((tmp_path / "again/env.json").read_text())["gradient_measured"] == "2026-01-02"
    given = call(*RUN, "cluster.gradient_s=0.25", "hydra.run.dir=given")
    assert given.status == 0, given.err
    assert json.loads((tmp_path / "given/env.json").read_text())["gradient_measured"] is None
    swept = call("-m", *RUN, "seed=0,1", "hydra.sweep.dir=swept")
    assert swept.status == 0, swept.err
    assert [summary(path.parent)["gradient_s"] for path in (tmp_path / "swept").glob("*/summary.json")] == [0.25] * 2
    assert marks(tmp_path / "again")[-1]["time_s"] == 4 * 0.25


def test_what_a_time_depends_on_has_a_time_of_its_own_and_the_rest_shares_it(cache: Path) -> None:
    for line in ((), ("seed=1", "algo=gossip", "nodes=4", "optimizer.lr=0.5", "engine.gradients=loop")):
        assert measured_gradient_s(configure(composed([*RUN, *line]))) > 0
    assert len(list(cache.iterdir())) == 1
    for count, line in enumerate(("model.hidden=[7]", "batch_size=4", "precision=fp64", "data=shapes"), start=2):
        for _ in range(2):
            assert measured_gradient_s(configure(composed([*RUN, line]))) > 0
        assert len(list(cache.iterdir())) == count, line


def test_a_damaged_file_is_one_warning_and_is_written_again(cache: Path) -> None:
    keep_time(KEY, 0.5)
    path = file_of(cache)
    numbers = (b'{"seconds": -1.0}', b'{"seconds": 1.0, "measured": "2026-01-01", "of": {"model": "other"}}')
    for damage in (b"", b"{}", b"no JSON", b"\xff\x00", *numbers, b"[" * 9999):
        path.write_bytes(damage)
        with pytest.raises(CacheUnusable, match="is no gradient time of this version"):
            kept_time(KEY)
    path.unlink()
    assert call(*RUN, "hydra.run.dir=0").status == 0
    path = file_of(cache)
    path.write_bytes(b"{}")
    result = call(*RUN, "hydra.run.dir=1")
    assert result.status == 0, result.err
    assert result.err.count(f"warning: gradient times are not kept: {path} is no gradient time of this version\n") == 1
    assert "measured on" in call(*RUN, "hydra.run.dir=2").err


def test_links_are_not_followed(cache: Path, tmp_path: Path) -> None:
    """Neither to read nor to write: what they point at stays as it is."""
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    keep_time(KEY, 0.5)
    path = file_of(cache)
    path.unlink()
    path.symlink_to(victim)
    with pytest.raises(CacheUnusable, match="cannot be read"):
        kept_time(KEY)
    keep_time(KEY, 0.25)
    assert victim.read_text() == "as it was"
    assert not path.is_symlink()
    kept = kept_time(KEY)
    assert kept is not None
    assert kept.seconds == 0.25
    assert list(cache.iterdir()) == [path]


def test_without_a_folder_for_it_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without HOME and passwd entry
    for folder, rule in (
        (str(tmp_path / "file"), "cannot be written: Not a directory$"),
        ("relative", "^there is neither XDG_CACHE_HOME nor a home folder$"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        with pytest.raises(CacheUnusable, match=rule):
            keep_time(KEY, 0.5)


def test_times_that_never_agree_are_a_warning_and_not_kept(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr("dsgd.gradients.choice.AGREE", -1.0)
    result = call(*RUN, "hydra.run.dir=run")
    assert result.status == 0, result.err
    line = r"^warning: gradients take \S+ to \S+ ms here, beside other programs: this time is not kept$"
    assert len(re.findall(line, result.err, re.MULTILINE)) == 1
    assert not cache.exists()


def test_the_fastest_series_count_once_two_of_them_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other programs a gradient takes longer, and never less."""
    monkeypatch.setattr("dsgd.gradients.choice.AGREE", 0.05)

    def measured(*medians: float) -> tuple[float, float, bool, int]:
        series = iter([[median] * 5 for median in medians])
        found = fastest(lambda: next(series))
        return found.seconds, found.slowest, found.steady, len(medians) - len(list(series))

    assert measured(6.0, 6.1, 9.0) == (6.0, 6.1, True, 2)
    assert measured(12.5, 9.0, 5.9, 7.0, 6.0, 1.0) == (5.9, 12.5, True, 5)
    assert measured(*(2.0**number for number in range(SERIES))) == (1.0, 2.0 ** (SERIES - 1), False, SERIES)
