from __future__ import annotations

from pathlib import Path

from dsgd.host.resources import are_own, visible_gpus
from tests.support.each_row import each_row


def counted(environment: dict[str, str], folder: Path, nvml: str = "no such library") -> int:
    """Return the GPUs of a machine whose driver, library and device files are in this folder."""
    (folder / "dev").mkdir(exist_ok=True)
    return visible_gpus(environment, folder / "driver", nvml, folder / "dev")


@each_row(
    ("visible", "count"),
    [
        (None, 4),
        ("", 0),
        ("NoDevFiles", 0),  # SLURM's word for none
        ("3, 1", 2),
        ("0,9,1", 1),  # CUDA reads up to the first it does not have
        ("1,1", 0),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,MIG-1", 2),
    ],
)
def test_gpus_are_those_that_cuda_would_offer(visible: str | None, count: int, tmp_path: Path) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert counted(environment, tmp_path) == 0
    for bus in range(4):
        (tmp_path / "driver" / f"0000:{bus:02x}:00.0").mkdir(parents=True)
    assert counted(environment, tmp_path) == count


def test_where_the_driver_shows_no_folder_its_device_files_count(tmp_path: Path) -> None:
    """As in some containers."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia11", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / "dev" / name).touch()
    assert counted({}, tmp_path) == 3
    assert counted({"CUDA_VISIBLE_DEVICES": "2,0"}, tmp_path) == 2


@each_row(
    ("environment", "own"),
    [
        ({}, False),
        ({"SLURM_GPUS_PER_TASK": "1"}, True),
        ({"SLURM_TRES_PER_TASK": "cpu=4,gres/gpu=1"}, True),  # since SLURM 23.11
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_GPU_BIND": "none"}, False),
        ({"SLURM_GPU_BIND": "single:1"}, True),
        ({"SLURM_GPU_BIND": "single:2"}, False),  # two tasks a GPU
        ({"SLURM_GPU_BIND": "per_task:1"}, True),
    ],
)
def test_slurm_s_gpus_are_a_task_s_own_where_it_binds_them(environment: dict[str, str], own: bool) -> None:
    assert are_own(environment) is own
