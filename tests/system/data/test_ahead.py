"""Batches of a user's samples that processes read ahead: no bit depends on it, and the processes end with the run."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dsgd.data import DataLost
from dsgd.data.imported import ImportedData
from dsgd.data.items import Items
from dsgd.host.fork import run_in_child
from tests.support.proc import is_alive

HERE = "tests.system.data.test_ahead."
COUNT, BATCH = 300, 4
SLOW_S = 0.001  # of a sample: more than enough for batches to be read ahead
OWN = np.random.default_rng(5)


class Drawn:
    """Samples that draw random numbers when they are read. how: from where. log: a file that takes the processes that
    read. bad: a sample that cannot be read, and how it shows."""

    def __init__(self, how: str, log: str, slow_s: float, bad: str) -> None:
        self.how, self.log, self.slow_s, self.bad = how, log, slow_s, bad

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Any, int]:
        time.sleep(self.slow_s)
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{os.getpid()}\n")
        if self.bad and index == 7:
            if self.bad == "dies":
                os._exit(3)
            return {"length": torch.zeros(4), "raises": None}[self.bad], 0
        number = {
            "torch": lambda: float(torch.rand(())),
            "numpy": np.random.rand,
            "python": random.random,
            "own": OWN.random,
        }[self.how]()
        return torch.tensor([index / COUNT, number, 1.0]), index % 2


def drawn(how: str = "torch", log: str = "", slow_s: float = SLOW_S, bad: str = "") -> list[Drawn]:
    return [Drawn(how, log, slow_s, bad), Drawn(how, log, slow_s, "")]


def items(**arguments: Any) -> Items:
    config = ImportedData(f"{HERE}drawn", 2, arguments, decode="each_read")
    data = config.load(3, BATCH, 7, torch.float32)
    assert isinstance(data, Items)
    return data


@contextmanager
def reading_ahead(data: Items, count: int = 2) -> Iterator[None]:
    data.read_ahead(count)
    try:
        yield
    finally:
        data.close()


def ask_for(data: Items) -> list[Tensor]:
    """Batches in order, one before, one after a gap, and evaluations, one of which is given up."""
    batches = [data.batch(rank, step) for step in range(4) for rank in range(3)]
    batches += [data.batch(0, 1), data.batch(2, 9), data.batch(2, 10)]
    batches += [*data.evaluation(True), *data.evaluation(False, 100)]
    next(data.evaluation(False))
    return [part for batch in [*batches, data.batch(1, 4)] for part in batch]


@pytest.mark.parametrize("how", ["torch", "numpy", "python"])
def test_every_bit_is_that_of_batches_read_in_the_process_that_trains(
    how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = ask_for(items(how=how, slow_s=0))
    data = items(how=how, log=str(tmp_path / "log"))
    (tmp_path / "log").unlink()  # of what was read before the start
    states = random.getstate(), torch.get_rng_state()
    with reading_ahead(data):
        found = ask_for(data)
        for step in range(20):
            data.batch(0, step)
    assert all(map(torch.equal, found, expected))
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    readers = set((tmp_path / "log").read_text().split())
    assert len(readers) == 2
    assert str(os.getpid()) not in readers
    assert not any(is_alive(int(pid)) for pid in readers)
    line = rf"data.target={HERE}drawn: reading a batch takes [\d.]+ ms, ahead in 2 processes; training waits for"
    assert len(re.findall(line, capfd.readouterr().err)) == 1


def test_samples_that_depend_on_more_than_the_seeds_are_read_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    """Not one number of theirs is drawn elsewhere."""
    state = OWN.bit_generator.state
    expected = ask_for(items(how="own"))
    OWN.bit_generator.state = state
    data = items(how="own")
    with reading_ahead(data):
        assert all(map(torch.equal, ask_for(data), expected))
        for step in range(20):
            data.batch(0, step)
    assert "in the process that trains, as its samples depend on more than the global" in capfd.readouterr().err


def test_a_process_that_was_forked_reads_for_itself() -> None:
    data = items()
    expected = data.batch(0, 3)[0]
    with reading_ahead(data):
        data.batch(0, 0)
        told = run_in_child(lambda: str(torch.equal(data.batch(0, 3)[0], expected)))
        assert told.text == "True"
        assert torch.equal(data.batch(0, 3)[0], expected)


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        ("length", rf"^data.target={HERE}drawn: sample 7 must be 3 as the first one, got 4$"),
        ("raises", rf"^data.target={HERE}drawn: sample 7 must be a tensor or array, and a label; \w+Error: .*$"),
        ("dies", r"^data: reading process \d+ ended by status 3$"),
    ],
)
def test_a_sample_that_cannot_be_read_is_named_as_where_it_is_needed(bad: str, rule: str) -> None:
    data = items(bad=bad)
    batches = (data.batch(rank, step) for step in range(COUNT // 3 // BATCH) for rank in range(3))
    with reading_ahead(data, 1), pytest.raises(DataLost, match=rule):
        list(batches)
