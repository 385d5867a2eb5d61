"""The page of dsgd-replay shows what its command prints for the cluster that it describes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dsgd.replay.replay_command import main

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "replay.md"


def test_the_page_has_what_its_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.read_text()
    (cluster,) = re.findall(r"^```yaml\n(.+?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (tables,) = re.findall(r"^```text\n(.+?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^    dsgd-replay (--config-dir .+)$", page.replace("\\\n", " "), flags=re.MULTILINE)
    (tmp_path / "my" / "cluster").mkdir(parents=True)
    (tmp_path / "my" / "cluster" / "mine.yaml").write_text(cluster)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    assert tables in printed
    sentence, _, _ = printed.partition("\n")
    assert sentence in page.replace("\n> ", " ")
    assert (tmp_path / "night.png").read_bytes().startswith(b"\x89PNG")
