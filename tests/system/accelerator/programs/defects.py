"""Programs on emulated devices with one defect each: in DEFECTS what raises, in CRASHES what ends the process."""

from __future__ import annotations

import ctypes
import gc
import os
import threading

import torch
import torch.distributed as dist

from tests.system.accelerator.programs.on_device import (
    DEVICE,
    Programs,
    captured,
    current,
    doubled,
    ones,
    pinned,
    registers,
)

DEFECTS: Programs = {}
CRASHES: Programs = {}


@registers(DEFECTS)
def host_waits_in_a_capture() -> None:
    x = ones(4)
    captured(lambda: print(x.sum().item()))


@registers(DEFECTS)
def default_stream_waits_in_a_capture() -> None:
    default = current()
    captured(lambda: default.wait_stream(current()))


@registers(DEFECTS)
def replay_on_a_stream_that_does_not_wait() -> None:
    x = ones(4)
    graph = captured(lambda: doubled(x))
    x.add_(1)
    with torch.Stream(DEVICE):
        graph.replay()


@registers(DEFECTS)
def read_without_event() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    with side:
        x.add(1)


@registers(DEFECTS)
def written_while_read() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        x.add(1)
    x += 1


@registers(DEFECTS)
def part_of_a_vector_that_overlaps() -> None:
    vector, side = ones(8), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        vector[:5].mul_(3)
    vector[4:].mul_(3)


@registers(DEFECTS)
def one_of_two_copies_is_not_waited_for() -> None:
    host, side = pinned(64), torch.Stream(DEVICE)
    with side:
        x = host.to(DEVICE, non_blocking=True)
    host.to(DEVICE, non_blocking=True)
    current().synchronize()
    host.fill_(2)
    side.synchronize()
    x.tolist()


@registers(DEFECTS)
def event_recorded_too_early() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    early = current().record_event()
    x += 1
    side.wait_event(early)
    with side:
        x.add(1)


@registers(DEFECTS)
def event_of_the_wrong_stream() -> None:
    x, side, other = ones(4), torch.Stream(DEVICE), torch.Stream(DEVICE)
    side.wait_event(other.record_event())
    with side:
        x.add(1)


@registers(DEFECTS)
def default_stream_in_place_of_the_workers() -> None:
    side = torch.Stream(DEVICE)
    with side:
        gradient = ones(4)
    gradient.mul_(2)


@registers(DEFECTS)
def memory_made_on_another_stream() -> None:
    side = torch.Stream(DEVICE)
    ones(4)  # queued on the default stream, and then freed: the next may have its memory
    x = torch.empty(4, device=DEVICE)
    with side:
        x.fill_(1)


@registers(DEFECTS)
def freed_without_record_stream() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        x.add(1)
    del x
    gc.collect()
    ones(4)


@registers(DEFECTS)
def host_buffer_changed_under_a_copy() -> None:
    host = pinned(64)
    x = host.to(DEVICE, non_blocking=True)
    host.fill_(2)
    x.sum().item()


@registers(DEFECTS)
def host_buffer_written_while_a_copy_fills_it() -> None:
    host = pinned(2, 8)
    host[0].copy_(ones(8), non_blocking=True)
    host[0].fill_(2)
    current().synchronize()


@registers(DEFECTS)
def copy_of_pageable_memory_is_not_asynchronous() -> None:
    torch.ones(64).to(DEVICE, non_blocking=True)


@registers(DEFECTS)
def two_devices_in_one_operator() -> None:
    ones(4).add(torch.ones(4, device="emu:2"))


@registers(DEFECTS)
def wrong_device_in_a_thread() -> None:
    torch.accelerator.set_device_index(DEVICE)
    errors: list[RuntimeError] = []

    def work() -> None:
        try:
            ones(4).add(torch.ones(4, device="emu"))  # a new thread is on device 0
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for error in errors:
        raise error


@registers(DEFECTS)
def collective_without_wait() -> None:
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    try:
        x.add(1)
    finally:
        work.wait()


@registers(DEFECTS)
def changed_under_a_collective() -> None:
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    try:
        x.zero_()
    finally:
        work.wait()


@registers(DEFECTS)
def device_that_is_not_there() -> None:
    torch.ones(4, device="emu:4")


@registers(DEFECTS)
def used_in_a_forked_process() -> None:
    ones(4)
    ends, begins = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ones(4)
        except RuntimeError as error:
            os.write(begins, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(begins)
    with os.fdopen(ends) as told:
        if error := told.read():
            raise RuntimeError(error)


@registers(CRASHES)
def host_reads_device_memory() -> None:
    x = ones(1024)
    ctypes.string_at(x.data_ptr(), 4)


@registers(CRASHES)
def host_writes_device_memory() -> None:
    x = ones(1024)
    ctypes.memset(x.data_ptr(), 0, 4)


@registers(CRASHES)
def host_reads_a_copy_too_early() -> None:
    host = pinned(1024)
    host.copy_(ones(1024), non_blocking=True)
    host.sum()
