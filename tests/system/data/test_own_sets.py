"""Data sets that hold what two processes cannot share, in processes that are forked after they were loaded."""

# ruff: noqa: SIM115, what is opened stays open

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsgd.data import DataLost
from dsgd.data.imported import ImportedData
from dsgd.data.items import Items
from dsgd.data.own_sets import sharing
from dsgd.host.fork import run_in_child

HERE = "tests.system.data.test_own_sets."
COUNT = 40
OPENED: list[Any] = []  # to be closed when a test has ended


def kept(opened: Any) -> Any:
    OPENED.append(opened)
    return opened


class Numbers:
    """Sample i is i, label i modulo 2. read: gives it."""

    def __init__(self, read: Callable[[int], int]) -> None:
        self.read = read

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        value = self.read(index)
        return torch.tensor([float(value)]), value % 2


def twice(read: Callable[[int], int]) -> tuple[Numbers, Numbers]:
    return Numbers(read), Numbers(read)


def from_file(path: str) -> tuple[Numbers, Numbers]:
    return twice(reader_of(kept(open(path, "rb"))))


def reader_of(file: Any) -> Callable[[int], int]:
    """Reads by one handle with one position."""
    return lambda index: [file.seek(index), file.read(1)[0]][1]


def opened_late(path: str) -> tuple[Numbers, Numbers]:
    """The handle is opened when the first sample is read, as people are told to do it."""
    opened = cache(lambda: reader_of(kept(open(path, "rb"))))
    return twice(lambda index: opened()(index))


def of_a_temporary_file(path: str) -> tuple[Numbers, Numbers]:
    file = kept(tempfile.TemporaryFile())
    file.write(Path(path).read_bytes())
    return twice(reader_of(file))


def asked_for(path: str) -> tuple[Numbers, Numbers]:
    """By a thread at the other end of a socket."""
    here, there = map(kept, socket.socketpair())

    def serve() -> None:
        with suppress(OSError):  # closed
            while question := there.recv(1):
                there.send(question)

    threading.Thread(target=serve, daemon=True).start()
    return twice(lambda index: [here.send(bytes([index])), here.recv(1)[0]][1])


def by_threads(path: str) -> tuple[Numbers, Numbers]:
    pool = ThreadPoolExecutor(2)
    OPENED.append(SimpleNamespace(close=pool.shutdown))
    return twice(lambda index: pool.submit(int, index).result())


OF_FILES = ["from_file", "opened_late", "of_a_temporary_file", "opened_once"]


def in_memory(path: str) -> tuple[Numbers, Numbers]:
    calls = Path(path).with_suffix(".calls")
    calls.write_text(f"{calls.read_text() if calls.exists() else ''}.")
    return twice(int)


OPENED_ONCE: list[Any] = []


def opened_once(path: str) -> tuple[Numbers, Numbers]:
    """As by a module's own handle."""
    if not OPENED_ONCE:
        OPENED_ONCE.append(kept(open(path, "rb")))
    file = OPENED_ONCE[0]
    return twice(reader_of(file))


def connected_once(path: str) -> tuple[Numbers, Numbers]:
    """As by a module's own connection."""
    if not OPENED_ONCE:
        OPENED_ONCE.extend(map(kept, socket.socketpair()))
    return in_memory(path)


def growing(path: str) -> tuple[Numbers, Sequence[tuple[torch.Tensor, int]]]:
    """Other sets at every call, with a connection."""
    ends = [kept(end) for end in socket.socketpair()]
    with open(path, "ab") as file:
        file.write(b"x")
        size = file.tell() - COUNT
    return Numbers(lambda index: index * len(ends) // 2), [(torch.zeros(1), 0)] * size


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "set").write_bytes(bytes(range(COUNT)))
    yield str(tmp_path / "set")
    for opened in [*OPENED]:
        opened.close()
    OPENED.clear()
    OPENED_ONCE.clear()


def loaded(target: str, path: str) -> Items:
    data = ImportedData(f"{HERE}{target}", 2, {"path": path}, decode="each_read").load(1, 20, 0, torch.float32)
    assert isinstance(data, Items)
    return data


def first_samples(data: Items) -> str:
    inputs, labels = data.batch(0, 0)
    expected = data.partition.indices(0, 0)
    assert np.array_equal(inputs[:, 0].numpy(), expected)
    assert np.array_equal(labels.numpy(), expected % 2)
    return "as they should be"


@pytest.mark.parametrize("target", OF_FILES)
def test_a_forked_process_opens_files_for_itself(target: str, path: str) -> None:
    """Whatever it reads, nothing moves here."""
    data = loaded(target, path)
    here = [(opened, os.lseek(opened.fileno(), 0, os.SEEK_CUR)) for opened in OPENED if hasattr(opened, "fileno")]
    for _ in range(2):
        assert run_in_child(lambda: first_samples(data)).text == "as they should be"
    assert [(opened, os.lseek(opened.fileno(), 0, os.SEEK_CUR)) for opened, _ in here] == here
    assert first_samples(data) == "as they should be"
    assert data.source is not None
    assert data.source.why is not None
    assert data.source.why.startswith(
        f"data.target={HERE}{target} holds open files, which every process opens for itself: "
    )
    assert ("(deleted)" if "temporary" in target else path) in data.source.why


@pytest.mark.parametrize(("target", "held"), [("asked_for", "socket:["), ("by_threads", "a thread")])
def test_a_forked_process_loads_for_itself_what_it_cannot_share(target: str, held: str, path: str) -> None:
    data = loaded(target, path)
    assert data.source is not None
    inherited = data.source.sets
    assert first_samples(data) == "as they should be"

    def forked() -> str:
        assert data.source is not None
        assert data.source.sets is not inherited
        return first_samples(data)

    assert run_in_child(forked).text == "as they should be"
    assert data.source.sets is inherited
    assert data.source.why is not None
    assert held in data.source.why
    assert data.source.why.startswith(f"data.target={HERE}{target} is loaded in every process by itself, as it holds ")


def test_what_holds_nothing_is_shared(path: str) -> None:
    data = loaded("in_memory", path)
    assert data.source is not None
    assert data.source.why is None
    assert run_in_child(lambda: first_samples(data)).text == "as they should be"
    assert Path(f"{path}.calls").read_text() == "."


def test_configurations_of_one_process_load_once(path: str) -> None:
    """As the jobs of a sweep, which are all checked before the first one starts."""
    configs = [ImportedData(f"{HERE}in_memory", 2, {"path": path}) for _ in range(3)]
    with sharing({}):
        for config in configs:
            config.check(1, 5)
    assert Path(f"{path}.calls").read_text() == "."
    ImportedData(f"{HERE}in_memory", 2, {"path": path}).check(1, 5)
    assert Path(f"{path}.calls").read_text() == ".."


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        (
            "connected_once",
            "must open what it reads from whenever it is called, as processes cannot share it, got socket:[",
        ),
        ("growing", "must give the same sets in every process, 40 and 1 samples, got 40 and 2"),
    ],
)
def test_what_cannot_be_loaded_again_is_a_line_that_names_it(target: str, rule: str, path: str) -> None:
    data = loaded(target, path)

    def forked() -> str:
        with pytest.raises(DataLost) as raised:
            data.batch(0, 0)
        return str(raised.value)

    told = run_in_child(forked).text
    assert told.startswith(f"data.target={HERE}{target} {rule}")
