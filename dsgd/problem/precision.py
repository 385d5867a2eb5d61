"""In what arithmetic gradients are computed, and by what code.

Parameters, averages of them and the optimiser are fp32, or fp64, always; so is evaluation.

fp32: IEEE's single precision, on a GPU too, where torch by itself takes TF32 for convolutions. tf32: products with 10
bits instead of 23, on GPUs. bf16, fp16: forward and backward pass under torch's autocast.

fp16 reaches down to 6e-8 only, so the loss is multiplied before the backward pass and the gradient divided after it. If
an overflow shows, the pass is repeated with less; nothing is remembered from one gradient to the next. So a gradient is
a function of the parameters and the batch alone, in whatever order gradients are computed, and no algorithm has to know
what to do with one that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

STORED = {"fp64": torch.float64}  # of vectors; of all others: float32
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# tried one after the other until the gradient is finite; powers of two change no bit but where a number is out of range
LOSS_SCALES = (4096.0, 64.0, 1.0)  # the last is 1


class Unsuitable(ValueError):
    """What was asked for cannot be computed here: one line that names the key."""


def stored(precision: str) -> torch.dtype:
    """Of parameters and of every vector [d]."""
    return STORED.get(precision, torch.float32)


def loss_scales(autocast: torch.dtype | None) -> tuple[float, ...]:
    return LOSS_SCALES if autocast == torch.float16 else (1.0,)


def prepare(precision: str, device: torch.device) -> None:
    """Let this process compute so on a device. Raises Unsuitable where the device cannot."""
    if device.type != "cuda":
        if precision == "tf32":
            raise Unsuitable("precision must be fp32, fp64, bf16 or fp16 on a CPU, got tf32, which only GPUs have")
        return
    major, _ = torch.cuda.get_device_capability(device)
    if precision in ("tf32", "bf16") and major < 8:
        name = torch.cuda.get_device_name(device)
        raise Unsuitable(f"precision must be fp32, fp64 or fp16 on {name}, got {precision}, which newer GPUs have")
    products = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = products
    torch.backends.cudnn.conv.fp32_precision = products  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.rnn.fp32_precision = products  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def compiling(module: str) -> Iterator[None]:
    """Around the first passes of a compiled module: turns what the compiler says into Unsuitable."""
    from torch._dynamo.exc import TorchDynamoException  # seconds: only where something is compiled

    try:
        yield
    except TorchDynamoException as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise Unsuitable(f"compile must be false, torch.compile fails for {module}: {reason}") from error
