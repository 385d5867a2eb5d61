"""What the page about SLURM says can be typed: every command is valid, and the site's file is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dsgd.cli.sweep import main, parser

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "howto" / "slurm.md").read_text()
TEXTS = {"docs/howto/slurm.md": PAGE, "README.md": (ROOT / "README.md").read_text()}
COMMANDS = [
    shlex.split(line, comments=True)
    for text in TEXTS.values()
    for line in re.findall(r"^    dsgd-sweep (.+)$", text, flags=re.MULTILINE)
]


def test_every_command_of_dsgd_sweep_is_documented() -> None:
    assert {command[0] for command in COMMANDS} == {"submit", "status", "logs", "cancel", "retry", "collect"}


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_documented_command_is_valid(
    arguments: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"`default\.yaml`\]\(.*\):\n\n((?:    .*\n)+)", PAGE)
    (here / "mine" / "slurm").mkdir(parents=True)
    (here / "mine" / "slurm" / "site.yaml").write_text(re.sub(r"^    ", "", block, flags=re.MULTILINE))
    parser().parse_args(arguments)
    if arguments[0] == "submit":
        assert main([*arguments, "--dry-run"]) == 0, capsys.readouterr().err
        assert ("module load cuda/12.4" in capsys.readouterr().out) == ("slurm=site" in arguments)


def test_the_batch_files_are_those_of_the_page() -> None:
    assert set(re.findall(r"scripts/slurm/(\w+)\.sbatch", PAGE)) == {
        path.stem for path in (ROOT / "scripts" / "slurm").iterdir()
    }
