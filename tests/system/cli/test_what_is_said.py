"""What takes long, from which step a run resumes, and which names there are: said before anybody has to ask."""

from __future__ import annotations

import pydoc
import re
import shutil
from pathlib import Path

import pytest

import dsgd
from dsgd.cli.compose import composed
from dsgd.comparison.command import main as compare
from dsgd.record.reader import FIELDS, find_runs
from dsgd.runner.plan import plan_run
from dsgd.topology import MOST_DENSE, Chain, Ring
from tests.support.command import call

SMALL = ("experiment=quadratic", "nodes=2", "cluster.gradient_s=0.01", "eval.every_steps=5")


def why(*options: str) -> str:
    return plan_run(composed([*SMALL, "engine=sim", *options]), []).why


def test_that_the_model_is_compiled_and_that_messages_are_many() -> None:
    messages = ("cluster.collective_messages=true", "budget.steps=100")
    assert "compile: torch.compile translates the model before the first step" in why("compile=true")
    assert "compile" not in why()
    line = (
        r"warning: cluster\.collective_messages=true simulates up to 1,980,000 messages, as the square of nodes=100; "
    )
    assert re.search(line, why(*messages, "cluster.collective=ring", "nodes=100"))
    for fewer in (("cluster.collective=ring", "nodes=50"), ("cluster.collective=tree", "nodes=100")):
        assert "collective_messages" not in why(*messages, *fewer)


@pytest.mark.parametrize("engine", ["sim", "dist"])
def test_from_which_step_a_run_resumes(engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kept = ("engine.keep_checkpoint=true", "budget.steps=20")
    assert call(*SMALL, *kept, f"engine={engine}", f"hydra.run.dir={folder}").status == 0
    result = call(f"resume={folder}", "budget.steps=40")
    assert result.status == 0, result.err
    (step,) = re.findall(r"^resumes after step ([0-9]+), in epoch [0-9.]+$", result.err, re.M)
    assert 15 <= int(step) <= 20 if engine == "sim" else int(step) <= 20


def test_a_field_that_no_record_has(tmp_path: Path) -> None:
    assert call(*SMALL, "engine=sim", "budget.steps=20", f"hydra.run.dir={tmp_path}/run").status == 0
    (run,) = find_runs([tmp_path])
    (tmp_path / "run" / "summary.json").unlink()
    (killed,) = find_runs([tmp_path])
    for each in (run, killed):
        with pytest.raises(ValueError, match=r"^field must be one of .*\btest_accuracy\b.*, got test_acuracy$"):
            each.final("test_acuracy")
        assert each.final("gpu") is None
        assert each.final("test_loss") is not None
    assert killed.final("steps") is None


def test_the_names_of_fields_are_those_of_the_documentation() -> None:
    text = Path("docs/reference/record.md").read_text().partition("\n## env.json")[0]
    marks = text[text.index("\n## metrics.jsonl") :]
    named = re.findall(r"^\| `?([a-z_0-9]+)`?(?:, in (?:the|marks)[a-z ]*)? \|", marks, re.M)
    assert {*named, "extended"} - {"field"} == FIELDS


def test_help_is_of_the_functions() -> None:
    for name in ("run", "compare", "load_runs", "load_marks"):
        assert f"function {name} in" in pydoc.render_doc(f"dsgd.{name}")
        assert f"function {name} in" in pydoc.render_doc(getattr(dsgd, name))


def test_a_comparison_is_complete_though_its_winner_makes_no_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = [*SMALL, "algo=gossip", "budget.steps=20", "target.loss=1", "compare.tune={}", "compare.seeds=1"]
    for _ in range(2):  # made, and read again
        assert compare([*line, "--script", "mine.py"]) == 0
        out = capsys.readouterr().out
        assert "no script: --script needs a winner that dsgd.torch.distribute can train, got algo=gossip" in out
        assert not Path("mine.py").exists()
    shutil.rmtree("comparison")


def test_summaries_have_the_gap_where_it_takes_no_longer_than_the_run() -> None:
    for nodes, config in ((MOST_DENSE // 16, Chain()), (4 * MOST_DENSE, Ring())):
        topology = config.build(nodes, seed=0)
        assert topology.summarised_gap == topology.spectral_gap > 0
    assert Chain().build(MOST_DENSE + 1, seed=0).summarised_gap is None
