"""Correct programs on emulated devices: nothing may be said of them."""

from __future__ import annotations

import queue
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

CORRECT: Programs = {}


@registers(CORRECT)
def an_event_orders_two_streams() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    written = current().record_event()
    side.wait_event(written)
    with side:
        y = x + 1
        done = side.record_event()
    current().wait_event(done)
    assert (y + x).tolist() == [3.0] * 4


@registers(CORRECT)
def a_synchronisation_orders_two_streams() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    torch.accelerator.synchronize(DEVICE)
    with side:
        x += 1
    side.synchronize()
    assert x.sum().item() == 8


@registers(CORRECT)
def an_item_of_one_stream_orders_the_next() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    assert x.sum().item() == 4
    with side:
        x += 1
        assert x.sum().item() == 8
    x += 1


@registers(CORRECT)
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


@registers(CORRECT)
def memory_is_freed_once_its_user_was_waited_for() -> None:
    x, side = ones(4), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        y = x * 2
    current().wait_stream(side)
    del x
    ones(4)
    y.tolist()


@registers(CORRECT)
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


@registers(CORRECT)
def a_copy_to_pinned_memory_is_read_after_its_event() -> None:
    x, host = ones(64), pinned(64)
    host.copy_(x * 5, non_blocking=True)
    current().record_event().synchronize()
    assert host.tolist() == [5.0] * 64


@registers(CORRECT)
def a_part_of_pinned_memory_is_used_beside_a_copy() -> None:
    host = pinned(2, 8)
    host[0].copy_(ones(8) * 3, non_blocking=True)
    host[1].fill_(7)
    assert host[0].isnan().all()  # it has not come, and what is there is wrong
    current().synchronize()
    assert host.tolist() == [[3.0] * 8, [7.0] * 8]


@registers(CORRECT)
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


@registers(CORRECT)
def a_copy_between_devices_is_ordered_on_both() -> None:
    x = ones(4)
    y = x.to("emu:2")
    x += 1
    y += 1
    assert y.tolist() == x.tolist()


@registers(CORRECT)
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


@registers(CORRECT)
def a_backward_pass_runs_on_the_stream_of_its_forward_pass() -> None:
    net, side = torch.nn.Linear(8, 8).to(DEVICE), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side:
        net(ones(4, 8)).sum().backward()
    current().wait_stream(side)
    assert net.weight.grad is not None
    net.weight.grad.mul_(2)
    torch.accelerator.synchronize()


@registers(CORRECT)
def a_collective_is_waited_for() -> None:
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    assert x.tolist() == [1.0] * 4
    dist.all_reduce(x, async_op=True)
    torch.accelerator.synchronize(DEVICE)
    assert x.tolist() == [1.0] * 4


@registers(CORRECT)
def generators_and_seeds_are_of_a_device() -> None:
    torch.manual_seed(5)
    a = torch.rand(4, device=DEVICE)
    state = torch.get_device_module(DEVICE).get_rng_state(DEVICE)
    b = torch.rand(4, device=DEVICE)
    torch.get_device_module(DEVICE).set_rng_state(state, DEVICE)
    assert torch.equal(torch.rand(4, device=DEVICE), b)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(4), a.cpu())


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


@registers(CORRECT)
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


@registers(CORRECT)
def a_graph_keeps_the_memory_of_a_tensor_that_gets_other_data() -> None:
    x, y, parameter = ones(4), ones(4), ones(4)
    parameter.data = x
    graph = captured(lambda: doubled(parameter))
    parameter.data = y
    graph.replay()
    assert (x + y).tolist() == [3.0] * 4
