"""The devices that torch can compute on here, counted without initialising an accelerator in this process: its forked
processes could not use the accelerator then.

NVIDIA's GPUs are counted by their driver. If there may be others, a child process imports torch and asks it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version

from dsgd.host.fork import run_in_child
from dsgd.host.resources import visible_gpus
from dsgd.host.signals import Interrupted

AUTO, CPU, ACCELERATOR = "auto", "cpu", "accelerator"  # choices of engine.device, in addition to types of torch
NVIDIA, NVIDIA_GROUP = "cuda", "nccl"
EXTENSIONS = "torch.backends"  # entry points of packages that bring torch an accelerator
DEVICE_FILES = ("/dev/kfd", "/dev/dri", "/dev/accel")  # of AMD, of Intel, of others
PATIENCE_S = 60  # limit for an accelerator to start; later errors come from the workers


@dataclass(frozen=True)
class Accelerators:
    """The devices of torch's accelerator that this process may use.

    type: torch's name, such as cuda or xpu; "" without an accelerator. group: the backend of torch.distributed for its
    tensors; "" if it has none. why: reason why its devices cannot be counted, in one line; "" if they can."""

    type: str = ""
    count: int = 0
    group: str = ""
    why: str = ""

    @property
    def described(self) -> str:
        """Return their number and kind, such as `4 GPUs`."""
        kind = "GPU" if self.type in ("", NVIDIA) else f"{self.type} device"
        number = f"1 {kind}" if self.count == 1 else f"{self.count} {kind}s"
        return f"{number}, which cannot be counted ({self.why})," if self.why else number


def accelerators(environment: Mapping[str, str]) -> Accelerators:
    """Return the devices of torch's accelerator. Raises Interrupted after a signal."""
    gpus = visible_gpus(environment)
    present = torch_accelerators() if _may_have_others(bool(gpus)) else Accelerators()
    if present.type not in ("", NVIDIA) or not gpus:
        return present
    return Accelerators(NVIDIA, gpus, NVIDIA_GROUP)


def refusal(name: str, present: Accelerators) -> str:
    """Return the error for an `engine.device` that this machine lacks; "" if it has the device.

    name: the value of engine.device. present: the devices of this machine."""
    if name in (AUTO, CPU) or (present.count and name in (ACCELERATOR, present.type)):
        return ""
    if present.why:
        return f"engine.device must be cpu or auto where devices cannot be counted ({present.why}), got {name}"
    if not present.count:
        return f"engine.device must be cpu or auto where torch has no accelerator, got {name}"
    return f"engine.device must be auto, cpu, accelerator or {present.type}, which torch has here, got {name}"


@functools.cache
def torch_accelerators() -> Accelerators:
    """Return the devices that torch counts in a child process. Raises Interrupted after a signal."""
    child = run_in_child(_counted_by_torch, PATIENCE_S)
    if child.signals:
        raise Interrupted
    if child.status:
        return Accelerators(why=f"torch's accelerator did not begin: exit status {child.status}")
    return Accelerators(**json.loads(child.text))


def _counted_by_torch() -> str:
    """Return `Accelerators` as JSON."""
    import torch
    import torch.distributed as dist

    device = torch.accelerator.current_accelerator()
    if device is None:
        return json.dumps({})
    try:
        count, why = torch.accelerator.device_count(), ""
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        count, why = 0, " ".join(f"{device.type}: {error}".split())
    group = dist.Backend.default_device_backend_map.get(device.type, "") if dist.is_available() else ""
    group = group if group and dist.is_backend_available(group) else ""
    return json.dumps(asdict(Accelerators(device.type, count, group, why)))


@functools.cache
def _may_have_others(nvidia: bool) -> bool:
    """Return whether torch may have another accelerator than NVIDIA's GPUs, without importing it. nvidia: it may have
    these."""
    if entry_points(group=EXTENSIONS):
        return True
    if nvidia:  # torch's packages are built for one kind of accelerator
        return False
    try:
        built_for_cpu = version("torch").endswith("+cpu")
    except PackageNotFoundError:  # built from source, without its metadata
        built_for_cpu = False
    return not built_for_cpu and (sys.platform == "darwin" or any(map(os.path.exists, DEVICE_FILES)))
