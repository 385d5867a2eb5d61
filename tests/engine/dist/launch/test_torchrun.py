"""Processes that somebody else has started: torchrun's environment by hand."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from tests.support.prefork import Prefork, Run

QUADRATIC = ("experiment=quadratic", "nodes=2", "budget.steps=30", "eval.every_steps=10")
JOIN_S = 3  # users have 25
OTHER_LAUNCH = "data._target_=tests.support.other_launch.Quadratic"


def test_the_wrong_number_of_processes_is_one_line(prefork: Prefork, tmp_path: Path) -> None:
    runs = [by_hand(prefork, tmp_path, rank, free_port(), "nodes=3") for rank in (0, 1)]
    for run in runs:
        assert run.wait() == 2
        assert run.err == "nodes must be WORLD_SIZE=2, the processes started, got 3\n"
        assert not run.folder.exists()


def free_port() -> int:
    """Not one of those that the system gives to whoever connects, which it could be given to at any moment."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def static(rank: int, port: int) -> dict[str, str]:
    variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in variables.items()}


def by_hand(prefork: Prefork, folder: Path, rank: int, port: int, *arguments: str, **variables: str) -> Run:
    return prefork.start(folder / f"rank {rank} at {port}", *QUADRATIC, *arguments, **static(rank, port), **variables)


def test_a_static_environment_needs_no_torchrun(prefork: Prefork, tmp_path: Path) -> None:
    """The record is where rank 0 was told to put it, and nowhere else."""
    port = free_port()
    runs = [by_hand(prefork, tmp_path, rank, port) for rank in (1, 0)]
    assert [run.wait() for run in runs] == [0, 0], [run.err for run in runs]
    other, first = runs
    assert first.summary["status"] == "completed"
    assert first.summary["samples"] == 60
    assert not other.folder.exists()
    assert (other.out, other.err) == ("", "")
    assert (first.folder / "logs" / "worker_1.log").exists()


def test_different_configurations_are_one_line_that_names_the_key(prefork: Prefork, tmp_path: Path) -> None:
    """On both sides, before anything is written."""
    port, other = free_port(), "cluster.slow_nodes={1: 2.0}"
    for run in [by_hand(prefork, tmp_path, 0, port), by_hand(prefork, tmp_path, 1, port, other)]:
        assert run.wait() == 2
        assert run.err == "rank 1: cluster.slow_nodes must be None, as on rank 0, got {1: 2.0}\n"
        assert run.out == ""
        assert not run.folder.exists()


def test_different_code_is_one_line_with_both_versions(prefork: Prefork, tmp_path: Path) -> None:
    port = free_port()
    first = by_hand(prefork, tmp_path, 0, port, OTHER_LAUNCH)
    second = by_hand(prefork, tmp_path, 1, port, OTHER_LAUNCH, OTHER_CODE="dsgd 9.9, torch 8.8")
    assert (first.wait(), second.wait()) == (2, 2)
    assert first.err == second.err
    assert first.err.startswith("rank 1: the code must be dsgd ")
    assert first.err.endswith(", as on rank 0, got dsgd 9.9, torch 8.8\n")
    assert not first.folder.exists()
    assert not second.folder.exists()


def test_who_is_not_there_in_time_is_told_in_one_line(prefork: Prefork, tmp_path: Path) -> None:
    """No master; no rank 1; a port that belongs to something else. All at once: each waits for others."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken, free = stranger.getsockname()[1], [free_port(), free_port()]
        runs = {
            f"rank 1: cannot be reached: MASTER_ADDR=127.0.0.1 MASTER_PORT={free[0]}\n": (1, free[0]),
            f"rank 1 did not come within {JOIN_S} s to MASTER_ADDR=127.0.0.1 MASTER_PORT={free[1]}\n": (0, free[1]),
            f"rank 0: port in use: MASTER_ADDR=127.0.0.1 MASTER_PORT={taken}\n": (0, taken),
            f"rank 1: something else listens at MASTER_ADDR=127.0.0.1 MASTER_PORT={taken}\n": (1, taken),
        }
        started = {
            line: by_hand(prefork, tmp_path, rank, port, OTHER_LAUNCH, JOIN_S=str(JOIN_S))
            for line, (rank, port) in runs.items()
        }
        for line, run in started.items():
            assert run.wait() == 2
            assert run.err == line
            assert not run.folder.exists()
