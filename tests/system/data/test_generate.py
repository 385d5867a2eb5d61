"""Several processes make one folder of images."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.image_files import IMAGES


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.JPEG"))}


def test_several_processes_may_make_one_folder_at_once(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from dsgd.data.imagenet import Generated
{IMAGES!r}.make(Path({str(tmp_path / "images")!r}))
"""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
    assert len(contents(tmp_path / "images")) == 33
