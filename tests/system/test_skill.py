"""SKILL.md: its commands run as they are typed, in their order, from the folder of the repository."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.support.command import environment, shell

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SKILL.md").read_text()
PROGRAMS = {"dsgd-compare", "dsgd-run", "dsgd-calibrate", "dsgd-certify", "cat"}


def test_its_commands_run(tmp_path: Path) -> None:
    """In a folder with links to what they read, so that outputs/ is the test's."""
    for name in ("examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    lines = re.findall(r"^    (\S.*)$", TEXT.replace("\\\n", " "), flags=re.MULTILINE)
    assert {next(word for word in line.split() if "=" not in word) for line in lines} == PROGRAMS
    printed = ""
    for line in lines:
        variables = dict(word.split("=") for word in shlex.split(line) if word.startswith("PYTHONPATH="))
        variables = {name: str(tmp_path / value) for name, value in variables.items()}
        command = re.sub(r"^PYTHONPATH=\S+ ", "", line)
        if command.startswith("cat "):
            ended = subprocess.run(
                shlex.split(command), cwd=tmp_path, capture_output=True, text=True, env=environment()
            )
        else:
            ended = shell(command, tmp_path, **variables)
        assert ended.returncode == 0, (line, ended.stdout, ended.stderr)
        printed = ended.stdout if command.startswith("cat ") else printed
    assert "diloco reaches a test accuracy of 0.8 first" in printed
    assert (tmp_path / "outputs" / "skill" / "contest.csv").is_file()
    shutil.rmtree(tmp_path / "outputs")


def test_what_it_says_of_the_verdict_is_what_dsgd_prints() -> None:
    """The words that an agent looks for."""
    texts = "".join(path.read_text() for path in (ROOT / "dsgd" / "comparison").glob("*.py"))
    for words in ("cannot be told apart", "still at the edge"):
        assert words in texts
        assert words in TEXT.lower()
