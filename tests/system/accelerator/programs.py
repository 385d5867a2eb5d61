"""Small programs on emulated devices: correct ones, and such with one defect. Run as a script this tells, as JSON, of
each program what was found wrong: "" or the first line."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import queue
import sys
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

DEVICE = "emu:1"  # torch in the tests' own process does not know it
CORRECT: dict[str, Callable[[], None]] = {}
DEFECTS: dict[str, Callable[[], None]] = {}
CRASHES: dict[str, Callable[[], None]] = {}


def correct(program: Callable[[], None]) -> Callable[[], None]:
    CORRECT[program.__name__] = program
    return program


def defect(program: Callable[[], None]) -> Callable[[], None]:
    DEFECTS[program.__name__] = program
    return program


def crash(program: Callable[[], None]) -> Callable[[], None]:
    CRASHES[program.__name__] = program
    return program


def current() -> torch.Stream:
    return torch.accelerator.current_stream(DEVICE)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device=DEVICE)


def pinned(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, pin_memory=True)


@correct
def an_event_orders_two_streams() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    written = current().record_event()
    side.wait_event(written)
    with side:
        y = x + 1
        done = side.record_event()
    current().wait_event(done)
    assert (y + x).tolist() == [3.0] * 4


@correct
def a_synchronisation_orders_two_streams() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    torch.accelerator.synchronize(DEVICE)
    with side:
        x += 1
    side.synchronize()
    assert x.sum().item() == 8


@correct
def an_item_of_one_stream_orders_the_next() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    assert x.sum().item() == 4
    with side:
        x += 1
        assert x.sum().item() == 8
    x += 1


@correct
def memory_recorded_on_a_stream_may_be_freed() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        y = x * 2
    x.record_stream(side)
    del x
    ones(4)
    current().wait_stream(side)
    y.tolist()


@correct
def memory_is_freed_once_its_user_was_waited_for() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        y = x * 2
    current().wait_stream(side)
    del x
    ones(4)
    y.tolist()


@correct
def a_pinned_buffer_is_filled_again_after_its_copy() -> None:
    host, side = pinned(64), torch.Stream(DEVICE)
    for step in range(3):
        host.fill_(step)
        with side:
            x = host.to(DEVICE, non_blocking=True)
        arrives = side.record_event()
        current().wait_event(arrives)
        x.record_stream(current())
        assert x.sum().item() == 64 * step  # of the current stream, which has waited for the copy
        host.fill_(-1)


@correct
def a_copy_to_pinned_memory_is_read_after_its_event() -> None:
    x, host = ones(64), pinned(64)
    host.copy_(x * 5, non_blocking=True)
    current().record_event().synchronize()
    assert host.tolist() == [5.0] * 64


@correct
def a_part_of_pinned_memory_is_used_beside_a_copy() -> None:
    host = pinned(2, 8)
    host[0].copy_(ones(8) * 3, non_blocking=True)
    host[1].fill_(7)
    assert host[0].isnan().all()  # it has not come, and what is there is wrong
    current().synchronize()
    assert host.tolist() == [[3.0] * 8, [7.0] * 8]


@correct
def parts_of_a_vector_are_of_different_streams() -> None:
    vector, host = ones(8), pinned(2, 4)
    sides = [torch.Stream(DEVICE), torch.Stream(DEVICE)]
    for part, slot, side in zip(vector.split(4), host, sides, strict=True):
        side.wait_stream(current())
        with side:
            part.mul_(3)
            slot.copy_(part, non_blocking=True)
    for side in sides:
        current().wait_stream(side)
    vector += 1
    torch.accelerator.synchronize(DEVICE)
    assert vector.tolist() == [4.0] * 8
    assert host.tolist() == [[3.0] * 4] * 2


@correct
def a_copy_between_devices_is_ordered_on_both() -> None:
    x = ones(4)
    y = x.to("emu:2")
    x += 1
    y += 1
    assert y.tolist() == x.tolist()


@correct
def a_thread_goes_on_with_what_another_has_queued() -> None:
    tasks: queue.SimpleQueue[tuple[torch.Tensor, torch.Event]] = queue.SimpleQueue()
    sums: queue.SimpleQueue[float] = queue.SimpleQueue()

    def consume() -> None:
        side = torch.Stream(DEVICE)
        x, written = tasks.get()
        side.wait_event(written)
        with side:
            sums.put(x.sum().item())

    thread = threading.Thread(target=consume)
    thread.start()
    x = ones(4)
    tasks.put((x, current().record_event()))
    thread.join()
    assert sums.get() == 4


@correct
def a_backward_pass_runs_on_the_stream_of_its_forward_pass() -> None:
    net, side = torch.nn.Linear(8, 8).to(DEVICE), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        net(ones(4, 8)).sum().backward()
    current().wait_stream(side)
    assert net.weight.grad is not None
    net.weight.grad.mul_(2)
    torch.accelerator.synchronize()


@correct
def a_collective_is_waited_for() -> None:
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    assert x.tolist() == [1.0] * 4
    dist.all_reduce(x, async_op=True)
    torch.accelerator.synchronize(DEVICE)
    assert x.tolist() == [1.0] * 4


@correct
def generators_and_seeds_are_of_a_device() -> None:
    torch.manual_seed(5)
    a = torch.rand(4, device=DEVICE)
    state = torch.get_device_module(DEVICE).get_rng_state(DEVICE)
    b = torch.rand(4, device=DEVICE)
    torch.get_device_module(DEVICE).set_rng_state(state, DEVICE)
    assert torch.equal(torch.rand(4, device=DEVICE), b)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(4), a.cpu())


def captured(work: Callable[[], None]) -> torch.accelerator.Graph:
    torch.accelerator.set_device_index(DEVICE)
    graph, side = torch.accelerator.Graph(), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side, graph:
        work()
    return graph


def doubled(x: torch.Tensor) -> None:
    x.mul_(2)


@correct
def a_graph_does_its_work_when_it_is_replayed() -> None:
    net, x, draws = torch.nn.Conv2d(3, 2, 3).to(DEVICE), ones(1, 3, 4, 4), ones(3)
    y = ones(1, 2, 2, 2)

    def work() -> None:
        y.copy_(net(x.mul_(2)).detach())
        draws.uniform_()

    graph = captured(work)
    assert x.sum().item() == 48
    for _ in range(2):
        torch.manual_seed(5)
        graph.replay()
    assert torch.equal(x.cpu(), torch.full((1, 3, 4, 4), 4.0))
    assert torch.equal(y.cpu(), net.cpu()(x.cpu()).detach())
    assert torch.equal(draws.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(5)))


@correct
def a_graph_has_the_work_of_streams_that_wait_for_its_own() -> None:
    x = ones(4)

    def work() -> None:
        side, main = torch.Stream(DEVICE), current()
        side.wait_stream(main)
        with side:
            x.mul_(3)
        main.wait_stream(side)

    graph = captured(work)
    graph.replay()
    graph.replay()
    assert x.tolist() == [9.0] * 4


@defect
def host_waits_in_a_capture() -> None:
    x = ones(4)
    captured(lambda: print(x.sum().item()))


@defect
def default_stream_waits_in_a_capture() -> None:
    default = current()
    captured(lambda: default.wait_stream(current()))


@defect
def replay_on_a_stream_that_does_not_wait() -> None:
    x = ones(4)
    graph = captured(lambda: doubled(x))
    x.add_(1)
    with torch.Stream(DEVICE):
        graph.replay()


@defect
def read_without_event() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    with side:
        x.add(1)


@defect
def written_while_read() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        x.add(1)
    x += 1


@defect
def part_of_a_vector_that_overlaps() -> None:
    vector, side = ones(8), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        vector[:5].mul_(3)
    vector[4:].mul_(3)


@defect
def one_of_two_copies_is_not_waited_for() -> None:
    host, side = pinned(64), torch.Stream(DEVICE)
    with side:
        x = host.to(DEVICE, non_blocking=True)
    host.to(DEVICE, non_blocking=True)
    current().synchronize()
    host.fill_(2)
    side.synchronize()
    x.tolist()


@defect
def event_recorded_too_early() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    early = current().record_event()
    x += 1
    side.wait_event(early)
    with side:
        x.add(1)


@defect
def event_of_the_wrong_stream() -> None:
    x, side, other = ones(4), torch.Stream(DEVICE), torch.Stream(DEVICE)
    side.wait_event(other.record_event())
    with side:
        x.add(1)


@defect
def default_stream_in_place_of_the_workers() -> None:
    side = torch.Stream(DEVICE)
    with side:
        gradient = ones(4)
    gradient.mul_(2)


@defect
def memory_made_on_another_stream() -> None:
    side = torch.Stream(DEVICE)
    ones(4)  # queued on the default stream, and then freed: the next may have its memory
    x = torch.empty(4, device=DEVICE)
    with side:
        x.fill_(1)


@defect
def freed_without_record_stream() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        x.add(1)
    del x
    gc.collect()
    ones(4)


@defect
def host_buffer_changed_under_a_copy() -> None:
    host = pinned(64)
    x = host.to(DEVICE, non_blocking=True)
    host.fill_(2)
    x.sum().item()


@defect
def host_buffer_written_while_a_copy_fills_it() -> None:
    host = pinned(2, 8)
    host[0].copy_(ones(8), non_blocking=True)
    host[0].fill_(2)
    current().synchronize()


@defect
def copy_of_pageable_memory_is_not_asynchronous() -> None:
    torch.ones(64).to(DEVICE, non_blocking=True)


@defect
def two_devices_in_one_operator() -> None:
    ones(4).add(torch.ones(4, device="emu:2"))


@defect
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


@defect
def collective_without_wait() -> None:
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    try:
        x.add(1)
    finally:
        work.wait()


@defect
def changed_under_a_collective() -> None:
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    try:
        x.zero_()
    finally:
        work.wait()


@defect
def device_that_is_not_there() -> None:
    torch.ones(4, device="emu:4")


@defect
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


@crash
def host_reads_device_memory() -> None:
    x = ones(1024)
    ctypes.string_at(x.data_ptr(), 4)


@crash
def host_writes_device_memory() -> None:
    x = ones(1024)
    ctypes.memset(x.data_ptr(), 0, 4)


@crash
def host_reads_a_copy_too_early() -> None:
    host = pinned(1024)
    host.copy_(ones(1024), non_blocking=True)
    host.sum()


def told(program: Callable[[], None]) -> str:
    """Run a program. Returns what was found wrong, or the error."""
    text = ""
    try:
        program()
    except (RuntimeError, AssertionError) as error:
        text = f"{error}" or type(error).__name__
    torch.accelerator.synchronize(DEVICE)
    kept = torch.get_device_module(DEVICE).findings(clear=True)
    return (text or "".join(kept[:1])).partition("\n")[0]


def main() -> None:
    if len(sys.argv) > 1:
        CRASHES[sys.argv[1]]()
        return
    store = HashStore()
    dist.init_process_group(dist.get_default_backend_for_device(DEVICE), store=store, rank=0, world_size=1)
    print(json.dumps({name: told(program) for name, program in (CORRECT | DEFECTS).items()}))


if __name__ == "__main__":
    main()
