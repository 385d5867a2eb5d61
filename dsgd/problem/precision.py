"""Arithmetic of gradients: precision, autocast, loss scaling, compilation.

Parameters, averages of them and the optimiser are fp32, or fp64, always; so is evaluation.

fp32: IEEE's single precision, on a GPU too, where torch's default is TF32 for convolutions. tf32: products with 10
bits instead of 23, on GPUs. bf16, fp16: forward and backward pass under torch's autocast; bf16 in the simulator, on a
processor with AMX, by the package's own kernels.

The smallest number of fp16 is 6e-8, so the loss is scaled before the backward pass and the gradient divided after it.
After an overflow the pass is repeated with a smaller scale; no scale is kept from one gradient to the next. So a
gradient depends on the parameters and the batch alone, in any order of evaluation, and none is ever skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dsgd.host import cuda
from dsgd.host.gpu_facts import device_name, missing_device

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# tried in turn until the gradient is finite; powers of two change no bit within the range of fp16
LOSS_SCALES = (4096.0, 64.0, 1.0)  # the last is 1


class Unsuitable(ValueError):
    """Raised for an option that this machine cannot compute with; one line that names the key."""


def prepare(precision: str, device: torch.device) -> None:
    """Set torch's precision in this process for a device. Raises Unsuitable if the device lacks it.

    After `compute_deterministically` torch only warns of operations that have no deterministic form on a GPU, like
    adaptive pooling to more than one number in VGG and AlexNet."""
    if device.type == "cpu":
        if precision == "tf32":
            raise Unsuitable("precision must be fp32, fp64, bf16 or fp16 on a CPU, got tf32, which only GPUs have")
        return
    if missing := missing_device(device):
        raise Unsuitable(missing)
    if device.type == cuda.TYPE:
        if precision in ("tf32", "bf16") and not cuda.has_tensor_cores_of_bf16(device):
            rule = f"precision must be fp32, fp64 or fp16 on {device_name(device)}"
            raise Unsuitable(f"{rule}, got {precision}, which newer GPUs have")
        cuda.allow_tf32(precision == "tf32")
    # the older of two sets of settings: the newer one is not told to it, and the compiler, which asks it, raises
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if torch.are_deterministic_algorithms_enabled():
        torch.set_deterministic_debug_mode("warn")


def compute_deterministically() -> None:
    """Set torch to one thread in this process, and to deterministic operations; an operation without a deterministic
    form raises."""
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler: 2 s
    # that mode would fill every new tensor: a twentieth of a run's time
    settings: Any = torch.utils.deterministic
    settings.fill_uninitialized_memory = False


@contextmanager
def compiling(module: str) -> Iterator[None]:
    """Turn errors of the compiler into Unsuitable, around the first passes of a compiled module."""
    from torch._dynamo.exc import TorchDynamoException  # takes seconds: only if something is compiled

    try:
        yield
    except TorchDynamoException as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise Unsuitable(f"compile must be false, torch.compile fails for {module}: {reason}") from error
