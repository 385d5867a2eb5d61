"""GPUs where the driver's library is asked, which a C compiler makes here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dsgd.host.resources import driver_version
from tests.unit.host.test_gpus import counted


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(("status", "count"), [(0, 5), (9, 0)])
def test_where_the_driver_shows_no_folder_its_library_is_asked(status: int, count: int, tmp_path: Path) -> None:
    """As under WSL2: a library with NVML's functions, which counts five GPUs or says that there is no driver."""
    source, library = tmp_path / "nvml.c", tmp_path / "nvml.so"
    source.write_text(
        "#include <stdio.h>\n"
        f"int nvmlInit_v2(void) {{ return {status}; }}\n"
        "int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 5; return 0; }\n"
        "int nvmlSystemGetDriverVersion(char *text, unsigned int size)"
        ' { return snprintf(text, size, "570.86.15") < 0; }\n'
        "int nvmlShutdown(void) { return 0; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert counted({}, tmp_path, str(library)) == count
    assert counted({"CUDA_VISIBLE_DEVICES": "4"}, tmp_path, str(library)) == min(count, 1)
    assert driver_version(str(library)) == ("570.86.15" if count else None)
