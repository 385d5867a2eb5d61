"""dsgd-compare compare.crossing=KEY: the value of a key at which the order of two contenders changes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command import shell


def test_a_crossing_is_bisected_seed_by_seed_and_one_outside_the_bracket_is_named(tmp_path: Path) -> None:
    """All-reduce learns faster by its rate, and sends sixteen times as often: with a slow network it is behind."""
    contenders = "[{algo: sync, optimizer.lr: 0.2}, {algo: localsgd, algo.tau: 16, optimizer.lr: 0.05}]"
    line = (
        f"dsgd-compare nodes=4 budget.epochs=4 eval.every_epochs=0.2 cluster.gradient_s=0.01 target.accuracy=0.85 "
        f"compare.seeds=2 compare.tune={{}} compare.contenders='{contenders}' compare.crossing=cluster.bandwidth"
    )
    outside = shell(f"{line} compare.bracket=[1e8,1e9]", tmp_path)
    assert outside.returncode == 2
    assert outside.stderr.splitlines()[-1].startswith(
        "dsgd-compare: compare.bracket must hold the crossing of most seeds, got [1e+08, 1e+09] of cluster.bandwidth: "
        "sync optimizer.lr=0.2 is ahead on 2 of 2 seeds and localsgd optimizer.lr=0.05 tau=16 on 0 at 100 Mbit/s"
    )
    result = shell(f"{line} compare.bracket=[8e6,1.4e7]", tmp_path)
    assert result.returncode == 0, result.stderr
    whole = json.loads((tmp_path / "comparison" / "crossing.setting.json").read_text())["crossing"]
    assert whole["above"] == "sync optimizer.lr=0.2"
    assert all(high <= 1.05 * low for low, high in whole["bounds"])
    assert 8e6 < whole["low"] <= whole["median"] <= whole["high"] < 1.4e7
