from __future__ import annotations

from pathlib import Path

import pytest

from dsgd.host.resources import gpus


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),  # SLURM's word for none
        ("0", 1),
        ("3, 1", 2),
        ("0,1,2,3", 4),
        ("0,9,1", 1),  # CUDA reads up to the first it does not have
        ("1,-1,2", 1),
        ("1,1", 0),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,MIG-1", 2),
    ],
)
def test_gpus_are_those_that_cuda_would_offer(visible: str | None, count: int, tmp_path: Path) -> None:
    for bus in range(4):
        (tmp_path / f"0000:{bus:02x}:00.0").mkdir()
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpus(environment, tmp_path) == count
    assert gpus(environment, tmp_path / "no driver") == 0
