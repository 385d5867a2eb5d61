"""Which device each worker computes on, however it was launched: a table of environments, on a machine of 4 GPUs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dsgd.cli.compose import composed
from dsgd.host import resources
from dsgd.host.devices import Accelerators
from dsgd.runner import placement
from dsgd.runner.configuration import EngineOptions, configure
from dsgd.runner.placement import check_process_group, worker_devices
from dsgd.runner.values import ConfigError
from tests.support.each_row import each_row

TORCHRUN = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "7", "LOCAL_WORLD_SIZE": "4"}
STEP = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NODEID": "1"}
STEP |= {"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}


def torchrun(local_rank: int, **more: str) -> dict[str, str]:
    """Return what torchrun gives to a process of the second of two machines."""
    return {**TORCHRUN, "RANK": str(4 + local_rank), "WORLD_SIZE": "8", "LOCAL_RANK": str(local_rank), **more}


def srun(local_rank: int, **more: str) -> dict[str, str]:
    """Return what srun gives to a task of the second of two machines."""
    return {**STEP, "SLURM_PROCID": str(4 + local_rank), "SLURM_LOCALID": str(local_rank), **more}


@pytest.fixture(autouse=True)
def _four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have four GPUs, of which a process sees those that its environment names."""
    monkeypatch.setattr(resources, "_folders", lambda driver: 4)


ALONE = {"CUDA_VISIBLE_DEVICES": "2"}


DEVICES: list[tuple[Mapping[str, str], int, int | None, dict[int, list[str]]]] = [
    # by hand
    ({}, 4, None, {0: ["cuda:0"], 1: ["cuda:1"], 2: ["cuda:2"], 3: ["cuda:3"]}),
    ({}, 2, 2, {0: ["cuda:0", "cuda:1"], 1: ["cuda:2", "cuda:3"]}),
    ({}, 5, None, {rank: ["cpu"] for rank in range(5)}),
    ({}, 4, 0, {rank: ["cpu"] for rank in range(4)}),
    ({"CUDA_VISIBLE_DEVICES": "1,3"}, 2, None, {0: ["cuda:0"], 1: ["cuda:1"]}),
    # torchrun: all processes see all GPUs
    (torchrun(2), 8, None, {6: ["cuda:2"]}),
    (torchrun(1, CUDA_VISIBLE_DEVICES="1,3"), 8, None, {5: ["cpu"]}),
    (torchrun(1, SLURM_GPUS_PER_TASK="4"), 8, None, {5: ["cuda:1"]}),  # one task of srun a machine is torchrun
    # srun --gpus-per-node=4: likewise
    (srun(3, SLURM_GPUS_ON_NODE="4"), 8, None, {7: ["cuda:3"]}),
    # srun --gpus-per-task=1: each task sees its own, and calls it 0
    (srun(2, SLURM_GPUS_PER_TASK="1", **ALONE), 8, None, {6: ["cuda:0"]}),
    (srun(2, SLURM_TRES_PER_TASK="gres/gpu=1", **ALONE), 8, None, {6: ["cuda:0"]}),
    (srun(2, SLURM_TRES_PER_TASK="gres/gpu=1", **ALONE), 8, 1, {6: ["cuda:0"]}),
    (srun(2, SLURM_GPUS_PER_TASK="1", **ALONE), 8, 0, {6: ["cpu"]}),
    (srun(1, SLURM_GPUS_PER_TASK="2", CUDA_VISIBLE_DEVICES="2,3"), 8, None, {5: ["cuda:0", "cuda:1"]}),
    (srun(1, SLURM_GPUS_PER_TASK="2", CUDA_VISIBLE_DEVICES="2,3"), 8, 1, {5: ["cuda:0"]}),
    (srun(2, SLURM_GPU_BIND="map_gpu:3,2,1,0", CUDA_VISIBLE_DEVICES="1"), 8, None, {6: ["cuda:0"]}),
    # srun --gpus-per-task=1 --gpu-bind=none: all see all again
    (srun(2, SLURM_GPUS_PER_TASK="1", SLURM_GPU_BIND="none"), 8, None, {6: ["cuda:2"]}),
    (srun(2, CUDA_VISIBLE_DEVICES="NoDevFiles"), 8, None, {6: ["cpu"]}),
]


def test_a_worker_s_devices() -> None:
    for environment, nodes, wanted, devices in DEVICES:
        found = worker_devices(EngineOptions(gpus_per_node=wanted), nodes, environment)
        assert found == devices, (environment, nodes, wanted)


def test_more_gpus_than_there_are() -> None:
    for environment, nodes, wanted, rule in (
        ({}, 3, 2, "engine.gpus_per_node must be <= 1 (4 GPUs, 3 workers here), got 2"),
        (torchrun(2), 8, 2, "engine.gpus_per_node must be <= 1 (4 GPUs, 4 workers here), got 2"),
        (
            srun(2, SLURM_GPUS_PER_TASK="1", **ALONE),
            8,
            2,
            "engine.gpus_per_node must be <= 1 (1 GPUs, for this task alone), got 2",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            worker_devices(EngineOptions(gpus_per_node=wanted), nodes, environment)
        assert str(caught.value) == rule


@pytest.mark.parametrize("kind", ["accelerator", "cuda"])
def test_a_device_that_is_asked_for_is_there_for_every_worker(kind: str) -> None:
    assert worker_devices(EngineOptions(device=kind), 4, {}) == {rank: [f"cuda:{rank}"] for rank in range(4)}
    rule = "engine.device must be auto or cpu for 5 workers on 4 GPUs (engine.workers_per_gpu=2 lets workers share one)"
    with pytest.raises(ConfigError) as caught:
        worker_devices(EngineOptions(device=kind), 5, {})
    assert str(caught.value) == f"{rule}, got {kind}"


def test_the_cpu_can_be_chosen_beside_gpus() -> None:
    assert worker_devices(EngineOptions(device="cpu"), 2, {}) == {0: ["cpu"], 1: ["cpu"]}


def test_a_type_that_is_not_torch_s_accelerator_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        worker_devices(EngineOptions(device="xpu"), 2, {})
    assert str(caught.value) == "engine.device must be auto, cpu, accelerator or cuda, which torch has here, got xpu"


@each_row(
    ("line", "refused"),
    [
        (["algo=sync", "nodes=2"], True),
        (["algo=gossip", "nodes=2"], False),
        (["algo=sync", "nodes=1"], False),
        (["algo=sync", "nodes=2", "engine.device=cpu"], False),
        (["algo=sync", "nodes=4", "engine.workers_per_gpu=2"], False),
        (["algo=sync", "nodes=4"], False),  # on the CPU: the two devices are too few
    ],
)
def test_averages_over_all_need_a_process_group(
    line: list[str], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "accelerators", lambda environment: Accelerators("warp", 2))
    config = configure(composed(["engine=dist", *line]))
    if not refused:
        check_process_group(config)
        return
    with pytest.raises(ConfigError) as caught:
        check_process_group(config)
    rule = "engine.device must be cpu where torch.distributed has no process group for warp devices"
    assert str(caught.value) == f"{rule} (with engine.workers_per_gpu=2 or more, sums go through the CPU), got auto"


def test_workers_that_share_a_gpu() -> None:
    for environment, nodes, sharers, shared in (
        ({}, 6, 2, [0, 0, 1, 1, 2, 2]),
        ({}, 3, 2, [0, 0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "3"}, 4, 4, [0, 0, 0, 0]),
        (torchrun(3), 8, 4, [0]),
        (torchrun(3), 8, 2, [1]),
        (srun(3, SLURM_GPUS_PER_TASK="1", **ALONE), 8, 4, [0]),
    ):
        for wanted in (None, 1):
            options = EngineOptions(gpus_per_node=wanted, workers_per_gpu=sharers)
            assert list(worker_devices(options, nodes, environment).values()) == [[f"cuda:{gpu}"] for gpu in shared]


def test_too_many_workers_to_share_the_gpus() -> None:
    assert worker_devices(EngineOptions(workers_per_gpu=2), 9, {}) == {rank: ["cpu"] for rank in range(9)}
    with pytest.raises(ConfigError, match=r"^engine\.gpus_per_node must be <= 0 \(4 GPUs, 9 workers here\), got 1$"):
        worker_devices(EngineOptions(gpus_per_node=1, workers_per_gpu=2), 9, {})
