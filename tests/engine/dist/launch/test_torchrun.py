"""Processes that somebody else has started: torchrun for real, and its environment by hand."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import DistStoreError, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.control import CONTROL_MAGIC, encode
from tests.support.command import SCRIPTS, environment
from tests.support.long import long_but
from tests.support.prefork import Prefork, Run
from tests.support.watched_run import BUDGET, STEPS

PATIENCE_S = 100  # after which a test gives up; nothing is measured with it
QUADRATIC = ("experiment=quadratic", "nodes=2", "budget.steps=30", "eval.every_steps=10")
OTHER_LAUNCH = "data._target_=tests.support.other_launch.Quadratic"


def torchrun(folder: Path, mark: str, *arguments: str) -> subprocess.Popen[str]:
    """torchrun on this machine with two processes, its record in `folder`. mark: in the environment of all that it
    starts."""
    launcher = ("-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d")
    meeting = ("--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={mark}", "--no-python")
    command = [sys.executable, *launcher, *meeting, str(SCRIPTS / "dsgd-run"), *arguments, f"hydra.run.dir={folder}"]
    pipe = subprocess.PIPE
    variables = environment(OMP_NUM_THREADS="1", PYTHONPATH=str(Path(__file__).parents[4]))
    return subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True)


def marked(mark: str) -> dict[int, str]:
    """Processes that are alive and have the mark in their environment: their names."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found[int(path.parent.name)] = path.with_name("comm").read_text().strip()
        except (OSError, ProcessLookupError):  # it has ended, or is somebody else's
            continue
    return found


@contextlib.contextmanager
def launched(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """torchrun, and the mark of its processes; at the end nothing of it is left, whatever the test found."""
    mark = uuid.uuid4().hex
    process = torchrun(folder, mark, *arguments)
    try:
        yield process, mark
    finally:
        left = marked(mark)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()
    assert not left


@pytest.mark.parametrize("algo", long_but(["sync"], ["sync", "gossip"]))
def test_torchrun_makes_one_run_of_its_processes(tmp_path: Path, algo: str) -> None:
    """engine=auto chooses real processes and says so once; one record, one table."""
    folder = tmp_path / "run"
    with launched(folder, *QUADRATIC, f"algo={algo}") as (process, _):
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert err.count("engine: dist, torchrun has started 2 processes; time is the wall's") == 1
    assert out.count("record: ") == 1
    assert out.count(f"{algo} ") == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["engine"], summary["algo"]) == ("completed", "dist", algo)
    assert summary["nodes"] == 2
    if algo == "sync":
        assert summary["samples"] == 60
    marks = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert marks[0]["samples"] == 0
    assert marks[-1]["samples"] == summary["samples"] >= 60


@pytest.mark.long
def test_a_worker_of_gossip_that_dies_under_torchrun_leaves_the_other_to_go_on(tmp_path: Path) -> None:
    folder, skip_file = tmp_path / "run", tmp_path / "skip_pauses"
    options = (
        "algo=gossip",
        BUDGET,
        "data._target_=tests.support.slow_gradients.SlowGradients",
        f"+data.skip_file='{skip_file}'",
    )
    with launched(folder, *QUADRATIC, *options) as (process, mark):
        deadline = time.monotonic() + PATIENCE_S
        while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").read_text().count("\n") < 4:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (victim,) = (pid for pid, name in marked(mark).items() if name == "worker 1")
        os.kill(victim, signal.SIGKILL)
        skip_file.touch()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "worker 1 has died after" in err
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["workers_lost"]) == ("completed", 1)
    assert summary["samples"] >= 2 * STEPS


def variables_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; nothing if it is gone."""
    try:
        text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.split("\0"))
    return {name: value for name, _, value in pairs}


def strings(value: object) -> Iterator[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for part in pair for text in strings(part))
    elif isinstance(value, list):
        yield from (text for part in value for text in strings(part))


def tokens_in(values: set[bytes]) -> set[bytes]:
    """Everything in these values that could be a token: 32 bytes of them, or of what their digits say."""
    found = set()
    for value in values:
        texts = list(strings(json.loads(value)))
        digits = [bytes.fromhex(text) for text in texts if len(text) % 2 == 0 and set(text) <= set("0123456789abcdef")]
        whole = [value, *(text.encode() for text in texts), *digits]
        found |= {part[i : i + 32] for part in whole for i in range(0, max(1, len(part) - 31), 32)}
        found |= {part[-32:] for part in whole}
    return {token.ljust(32, b"\0")[:32] for token in found}


def is_let_in(address: tuple[str, int], token: bytes) -> bool:
    """Show a token to a coordinator. Who is let in hears from it; who is not is hung up on."""
    with socket.create_connection(address, PATIENCE_S) as sock:
        try:
            sock.sendall(CONTROL_MAGIC + token)
            sock.sendall(b"".join(map(bytes, encode({"kind": "hello", "role": "agent"}, {}))))
            return sock.recv(1) != b""  # a heartbeat
        except (ConnectionResetError, BrokenPipeError):
            return False


@pytest.mark.long  # test_agreement.py has its properties with a store like torchrun's
def test_who_reads_all_of_torchruns_store_is_not_let_in(tmp_path: Path) -> None:
    """One rank is held back until the other has made its offer, so that there is time to read it. After the meeting
    nothing of the run is left in the store."""
    folder, skip_file = tmp_path / "run", tmp_path / "skip_pauses"
    slow = ("data._target_=tests.support.slow_gradients.SlowGradients", f"+data.skip_file='{skip_file}'")
    seen: dict[str, set[bytes]] = {}
    over = threading.Event()
    with launched(folder, *QUADRATIC, "algo=gossip", BUDGET, *slow) as (process, mark):

        def until(condition: Callable[[], Any]) -> Any:
            deadline = time.monotonic() + PATIENCE_S
            while not (found := condition()):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.005)
            return found

        def second() -> int | None:
            return next((pid for pid in marked(mark) if variables_of(pid).get("RANK") == "1"), None)

        held = until(second)
        os.kill(held, signal.SIGSTOP)
        variables = variables_of(held)
        place = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
        limit = timedelta(seconds=1)
        store = TCPStore(*place, is_master=False, wait_for_workers=False, timeout=limit)

        def read() -> None:
            while not over.is_set():
                for key in store.list_keys():
                    with contextlib.suppress(DistStoreError):  # it has been deleted meanwhile
                        if "dsgd" in key and (value := store.get(key)):  # empty if deleted at this very moment
                            seen.setdefault(key, set()).add(value)

        reading = threading.Thread(target=read)
        reading.start()
        try:
            until(lambda: seen)
            os.kill(held, signal.SIGCONT)
            until(
                lambda: (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").read_text().count("\n") > 3
            )
            assert not [key for key in store.list_keys() if "dsgd" in key]
        finally:
            over.set()
            reading.join(PATIENCE_S)
        (offer,) = (json.loads(value) for values in seen.values() for value in values if b'"config"' in value)
        assert "token" not in offer
        for token in tokens_in({value for values in seen.values() for value in values}):
            assert not is_let_in((offer["host"], offer["port"]), token)
        skip_file.touch()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"


def test_the_wrong_number_of_processes_is_one_line(prefork: Prefork, tmp_path: Path) -> None:
    runs = [by_hand(prefork, tmp_path, rank, free_port(), "nodes=3") for rank in (0, 1)]
    for run in runs:
        assert run.wait() == 2
        assert run.err == "nodes must be WORLD_SIZE=2, the processes started, got 3\n"
        assert not run.folder.exists()


# Without torchrun: its variables, set by hand


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


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("optimizer.lr=0.2",), "rank 1: optimizer.lr must be 0.1, as on rank 0, got 0.2\n"),
        (("algo=gossip",), "rank 1: algo must be 'sync', as on rank 0, got 'gossip'\n"),
        (("cluster.slow_nodes={1: 2.0}",), "rank 1: cluster.slow_nodes must be None, as on rank 0, got {1: 2.0}\n"),
    ],
)
def test_different_configurations_are_one_line_that_names_the_key(
    prefork: Prefork, tmp_path: Path, arguments: tuple[str, ...], line: str
) -> None:
    """On both sides, before anything is written."""
    port = free_port()
    runs = [by_hand(prefork, tmp_path, 0, port), by_hand(prefork, tmp_path, 1, port, *arguments)]
    for run in runs:
        assert run.wait() == 2
        assert run.err == line
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


@pytest.mark.parametrize("join_s", long_but([3], [3, 25]))  # the latter is what users have
def test_who_is_not_there_in_time_is_told_in_one_line(prefork: Prefork, tmp_path: Path, join_s: int) -> None:
    """No master; no rank 1; a port that belongs to something else, which says nothing, for both ranks. All at once:
    each of them waits for others that may come late."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken, free = stranger.getsockname()[1], [free_port(), free_port()]
        runs = {
            f"rank 1: cannot be reached: MASTER_ADDR=127.0.0.1 MASTER_PORT={free[0]}\n": (1, free[0]),
            f"rank 1 did not come within {join_s} s to MASTER_ADDR=127.0.0.1 MASTER_PORT={free[1]}\n": (0, free[1]),
            f"rank 0: port in use: MASTER_ADDR=127.0.0.1 MASTER_PORT={taken}\n": (0, taken),
            f"rank 1: something else listens at MASTER_ADDR=127.0.0.1 MASTER_PORT={taken}\n": (1, taken),
        }
        patience = {} if join_s == 25 else {"JOIN_S": str(join_s)}
        started = {
            line: by_hand(prefork, tmp_path, rank, port, OTHER_LAUNCH, **patience)
            for line, (rank, port) in runs.items()
        }
        for line, run in started.items():
            assert run.wait() == 2
            assert run.err == line
            assert not run.folder.exists()
