"""Work beside the gradients of a device: in order, and on a GPU between the right events, shown with a CUDA that only
takes notes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from dsgd.engines.dist.worker.device_thread import DeviceThread

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Stream:
    def __init__(self, name: object, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def record_event(self) -> str:
        self.notes.append(f"event on {self.name}")
        return f"event on {self.name}"

    def wait_event(self, event: str) -> None:
        self.notes.append(f"{self.name} waits for the {event}")

    def synchronize(self) -> None:
        self.notes.append(f"{self.name} is done")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What CUDA is told, in this order."""
    notes: list[str] = []

    @contextmanager
    def stream(of: Stream) -> Iterator[None]:
        notes.append(f"on {of.name}:")
        yield
        notes.append("")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("own", notes))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("caller", notes))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, of: notes.append(f"memory used on {of.name}"))
    return notes


def test_on_a_gpu_work_begins_after_the_caller_s_and_ends_before_the_future(notes: list[str]) -> None:
    thread = DeviceThread(CUDA, "copies")

    def work(v: Tensor) -> Tensor:
        notes.append("work")
        return v + 1

    future = thread.submit(work, torch.zeros(1))
    assert future.result().tolist() == [1.0]
    thread.close()
    assert notes == [
        "event on caller",
        "on own:",
        "own waits for the event on caller",
        "work",
        "own is done",
        "",
        "memory used on caller",
    ]


def test_on_a_gpu_the_memory_of_every_tensor_of_a_mapping_is_known_to_be_in_use(notes: list[str]) -> None:
    thread = DeviceThread(CUDA, "copies")
    thread.submit(lambda: {3: torch.zeros(1), 5: torch.zeros(1)}).result()
    thread.submit(lambda: 7).result()
    thread.close()
    assert notes.count("memory used on caller") == 2


def test_calls_come_in_order_in_one_other_thread(notes: list[str]) -> None:
    thread, order, threads = DeviceThread(CPU, "copies"), list[int](), set[int]()

    def call(number: int) -> None:
        order.append(number)
        threads.add(threading.get_ident())

    futures = [thread.submit(call, number) for number in range(20)]
    for future in futures:
        future.result()
    thread.close()
    assert order == list(range(20))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_an_error_is_the_future_s(notes: list[str]) -> None:
    thread = DeviceThread(CUDA, "copies")

    def fail() -> None:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match=r"^gone$"):
        thread.submit(fail).result()
    thread.close()
