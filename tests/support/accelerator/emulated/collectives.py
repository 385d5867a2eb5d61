"""A process group over tensors of the emulated devices: gloo moves copies on the host. Like NCCL's it is asynchronous:
a collective is queued on a stream of the group's own, after the caller's, and Work.wait() lets the caller's wait."""

# torch calls these methods by position
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from . import native  # pyright: ignore[reportMissingModuleSource] (compiled)

BACKEND = "emu_gloo"
_unfinished: set[torch.futures.Future[Any]] = set()


def register() -> None:
    """Make `emu_gloo` a backend of torch.distributed, the one for the emulated devices."""
    dist.Backend.register_backend(BACKEND, EmulatedGroup, devices=["emu"])
    native.before_synchronizing(_finish_all)


def _finish_all() -> None:
    for future in tuple(_unfinished):
        while not future.done():
            threading.Event().wait(1e-4)


def _tensors(arguments: Any) -> Iterable[torch.Tensor]:
    if isinstance(arguments, torch.Tensor):
        yield arguments
    elif isinstance(arguments, list | tuple):
        for each in arguments:
            yield from _tensors(each)


def _on_host(arguments: Any, hosts: dict[int, torch.Tensor]) -> Any:
    if isinstance(arguments, torch.Tensor):
        return hosts[id(arguments)]
    if isinstance(arguments, list | tuple):
        return [_on_host(each, hosts) for each in arguments]
    return arguments


class EmulatedGroup(dist.ProcessGroup):
    """Collectives on one device's tensors, or on the host's."""

    def __init__(self, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        self._gloo = c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
        for device in ("cpu", "emu"):  # for objects, and for what asks a group for its backends
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, self._gloo)
        self._streams: dict[torch.device, torch.Stream] = {}
        self._pending: dict[int, torch.futures.Future[Any]] = {}  # by a storage's address

    def getBackendName(self) -> str:
        return BACKEND

    def _call(self, name: str, reads: Any, writes: Any, *arguments: Any) -> dist.Work:
        begin = getattr(self._gloo, name)
        read, written = list(_tensors(reads)), list(_tensors(writes))
        touched = [*read, *written]
        if all(tensor.device.type == "cpu" for tensor in touched):
            return begin(*arguments)
        device = touched[0].device
        caller = torch.accelerator.current_stream(device)
        if device not in self._streams:
            self._streams[device] = torch.Stream(device)
        stream = self._streams[device]
        storages = {tensor.untyped_storage().data_ptr() for tensor in touched}
        for storage in storages & self._pending.keys():  # in the order of the group's stream
            self._pending.pop(storage).wait()
        stream.wait_stream(caller)
        native.queue(name, read, written, stream.stream_id)
        hosts = {id(tensor): native.bytes_of(tensor) for tensor in touched}
        for tensor in touched:
            tensor.record_stream(stream)
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[device])
        _unfinished.add(future)
        self._pending.update(dict.fromkeys(storages, future))
        work = begin(*_on_host(list(arguments), hosts))

        def finish() -> None:
            try:
                work.wait()
                torch.accelerator.set_stream(stream)  # this thread's
                for tensor in written:
                    native.write(name, tensor, hosts[id(tensor)])
                future.set_result(touched)
            except Exception as error:  # the caller's, in Work.wait()
                future.set_exception(error)
            _unfinished.discard(future)

        threading.Thread(target=finish, name=f"emu-{name}", daemon=True).start()
        return c10d._create_work_from_future(future)  # pyright: ignore[reportAttributeAccessIssue]

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        return self._call("allreduce", tensors, tensors, tensors, opts or c10d.AllreduceOptions())

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        return self._call("allreduce_coalesced", tensors, tensors, tensors, opts or c10d.AllreduceCoalescedOptions())

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        is_source = opts.rootRank == self.rank()
        return self._call("broadcast", tensors if is_source else [], [] if is_source else tensors, tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        return self._call("reduce", tensors, tensors if opts.rootRank == self.rank() else [], tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self._call("allgather", inputs, outputs, outputs, inputs, opts or c10d.AllgatherOptions())

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        return self._call("_allgather_base", input, output, output, input, opts or c10d.AllgatherOptions())

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        return self._call("gather", inputs, outputs, outputs, inputs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        return self._call("scatter", inputs, outputs, outputs, inputs, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        return self._call("reduce_scatter", inputs, outputs, outputs, inputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> dist.Work:
        return self._call("_reduce_scatter_base", input, output, output, input, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self._call("alltoall", inputs, outputs, outputs, inputs, opts or c10d.AllToAllOptions())

    def all_to_all_single(self, output: Any, input: Any, to: Any, of: Any, opts: Any = None) -> dist.Work:
        return self._call("alltoall_base", input, output, output, input, to, of, opts or c10d.AllToAllOptions())

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> dist.Work:
        return self._call("send", tensors, [], tensors, to, tag)

    def recv(self, tensors: list[torch.Tensor], of: int, tag: int) -> dist.Work:
        return self._call("recv", [], tensors, tensors, of, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> dist.Work:
        return self._call("recv_anysource", [], tensors, tensors, tag)

    def barrier(self, opts: Any = None) -> dist.Work:
        for stream in self._streams.values():
            stream.wait_stream(torch.accelerator.current_stream(stream.device))
            stream.synchronize()
        return self._gloo.barrier(opts or c10d.BarrierOptions())  # pyright: ignore[reportAttributeAccessIssue]

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
