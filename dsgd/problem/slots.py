"""The parts of a module: its parameters and buffers, and code other than torch's layers.

Parameters and buffers have ranges in flat vectors; some are norms or biases, some matrices. Hooks, patched methods and
user's classes may do anything. So a module that has any is called itself. Faster evaluators are for modules without
such code, or with code that was examined and makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as hooks_of_all
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from dsgd.optim.optimizer import Matrix

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
KNOWN = ("torch.nn.modules.", "torchvision.models.", "torchvision.ops.", "dsgd.models.")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL = tuple(f"_global{kind}" for kind in _HOOKS)


class ModelFailed(ValueError):
    """Raised for a module that cannot be trained here: one line that says why."""


def short_message(error: BaseException) -> str:
    """Return the message of an error in at most 120 characters."""
    return " ".join(str(error).split())[:120] or type(error).__name__


@dataclass(frozen=True)
class Slot:
    """Locate a parameter or buffer in its flat vector. shape: shape in real numbers; complex numbers are pairs in the
    last axis. channels_last: its four axes o, c, h, w are stored in the order o, h, w, c."""

    owner: nn.Module
    name: str  # within the owner
    path: str  # within the whole module
    start: int
    shape: torch.Size
    channels_last: bool = False

    @property
    def layout(self) -> tuple[int, ...]:
        """Return the shape in the order of the flat vector."""
        if not self.channels_last:
            return tuple(self.shape)
        o, c, h, w = self.shape
        return o, h, w, c

    def view(self, flat: Tensor, begin: int = 0) -> Tensor:
        """Return its view of a flat vector, or of a range of one that starts at `begin`."""
        start = self.start - begin
        part = flat[start : start + self.shape.numel()]
        if not self.channels_last:
            return part.view(self.shape)
        o, c, h, w = self.shape
        return part.view(o, h, w, c).permute(0, 3, 1, 2)


def real(tensor: Tensor) -> Tensor:
    """Return a view of a tensor as real numbers: complex numbers become pairs in the last axis."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def make_slots(
    module: nn.Module, kind: str, included: Callable[[Tensor], bool], channels_last: bool = False
) -> list[Slot]:
    """Return the slots of the module's `_parameters` or `_buffers`, each tensor once, in order. Raises ModelFailed."""
    slots, start = list[Slot](), 0
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for name, tensor in getattr(owner, kind).items():
            path = f"{prefix}.{name}" if prefix else name
            if tensor is not None and (is_lazy(tensor) or tensor.is_meta):
                what = "that no forward pass has given a shape" if is_lazy(tensor) else "on the meta device"
                raise ModelFailed(f"the model's {path} must have values, got a tensor {what}")
            if tensor is None or id(tensor) in seen or not included(tensor):
                continue
            seen.add(id(tensor))
            shape = real(tensor.detach()).shape
            slots.append(Slot(owner, name, path, start, shape, channels_last and tensor.dim() == 4))
            start += shape.numel()
    return slots


def is_norm_or_bias(slot: Slot) -> bool:
    """Return whether a parameter is a scale or a shift, not a matrix: it has at most one axis, is named bias, or
    belongs to a norm. A user's class is a norm if its name says so and no two axes of its parameters are longer than 1.

    The name is the parameter's name in its module; for a parameter in a list, the list's name; for a parametrization,
    the name of the resulting tensor."""
    parts = [part for part in slot.path.split(".") if not part.isdigit()] or [""]
    name = parts[parts.index("parametrizations") + 1] if "parametrizations" in parts[:-1] else parts[-1]
    shape = slot.shape[:-1] if getattr(slot.owner, slot.name).is_complex() else slot.shape  # without the pairs
    if len(shape) <= 1 or "bias" in name or isinstance(slot.owner, NORMS):
        return True
    kinds = (kind.__name__.lower() for kind in type(slot.owner).__mro__)
    return any("norm" in kind for kind in kinds) and sum(axis > 1 for axis in shape) <= 1


def matrices_of(module: nn.Module, slots: Sequence[Slot]) -> list[Matrix]:
    """Return the parameters with two axes or more, in order: a kernel [o, c, h, w] of a convolution is [o, c h w].
    Scales, shifts and embeddings do not count, nor do weights that an output layer shares with an embedding."""
    embedded = {
        id(weight) for owner in module.modules() if isinstance(owner, EMBEDDINGS) for weight in owner.parameters()
    }
    return [
        Matrix(slot.start, rows, slot.shape.numel() // rows)
        for slot in slots
        if not is_norm_or_bias(slot) and id(getattr(slot.owner, slot.name)) not in embedded and (rows := slot.shape[0])
    ]


def has_own_code(module: nn.Module) -> bool:
    """Return whether a module runs code that is neither torch's, nor torchvision's, nor of this package."""
    return hook_of(module) is not None or not all(
        f"{type(part).__module__}.".startswith(KNOWN) for part in module.modules()
    )


def hook_of(module: nn.Module) -> str | None:
    """Return the code of a module that runs in a forward or backward pass outside of its own `forward`: a hook, a
    patched method, a parametrization, a tensor of another type. None: it has none."""
    if any(getattr(hooks_of_all, name, None) for name in _HOOKS_OF_ALL):
        return "hooks of all modules"
    for path, part in module.named_modules():
        name = f"{path} ({type(part).__name__})" if path else type(part).__name__
        if any(getattr(part, kind, None) for kind in _HOOKS):
            return f"a hook of {name}"
        if isinstance(part, (torch.jit.ScriptModule, fx.GraphModule)):
            return f"{name}, which torch has made of other code"
        if parametrize.is_parametrized(part):
            return f"a parametrization of {name}"
        if patched := [key for key, value in vars(part).items() if callable(value) and hasattr(type(part), key)]:
            return f"{name}, whose {patched[0]} is another one than that of its class"
        if type(part).__call__ is not nn.Module.__call__:
            return f"{name}, whose class has a __call__ of its own"
        defined = f"{type(part).__module__}.", f"{type(part).forward.__module__}."
        if defined[0].startswith(KNOWN) and not defined[1].startswith(KNOWN):
            return f"{name}, whose class was given another forward"
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for path, tensor in tensors:
            if getattr(tensor, "_backward_hooks", None) or getattr(tensor, "_post_accumulate_grad_hooks", None):
                return f"a hook of the {kind} {path}"
            if type(tensor) not in (Tensor, nn.Parameter):
                return f"the {kind} {path}, a {type(tensor).__name__}"
            if tensor.is_complex():
                return f"the {kind} {path} of complex numbers"
    return None


def own_function(loss: Tensor) -> str | None:
    """Return the name of a function in the graph of a loss whose gradient is computed in Python, or None.

    Only such a function can run a backward pass within the backward pass, as a re-entrant checkpoint does: then the
    gradient of a parameter that is used more than once is added up in several passes."""
    waiting, seen = [loss.grad_fn], set[object]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return type(node).__name__
        waiting += [following for following, _ in node.next_functions]
    return None
