"""Code that a module runs beside torch's own layers: hooks, patched methods, classes of the user's.

What such code does is unlimited. So a module that has any is used in the plain way, and faster ways are for modules
that have none, or for which it was established that the code makes no difference."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as hooks_of_all
from torch.nn.utils import parametrize

KNOWN = ("torch.nn.modules.", "torchvision.models.", "torchvision.ops.", "dsgd.models.")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL = tuple(f"_global{kind}" for kind in _HOOKS)


def has_own_code(module: nn.Module) -> bool:
    """Tell whether a module runs code that is neither torch's, nor torchvision's, nor of this package."""
    return watched(module) is not None or any(not _is_known(type(part)) for part in module.modules())


def watched(module: nn.Module) -> str | None:
    """Return what a module has that acts when its layers are called or its gradients are computed, and that its own
    `forward` does not show: a hook, a patched method, a parametrization, a tensor of another type. None: nothing."""
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
        if _is_known(type(part)) and not type(part).forward.__module__.startswith(KNOWN):
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


def _is_known(kind: type[nn.Module]) -> bool:
    return f"{kind.__module__}.".startswith(KNOWN)


def own_function(loss: Tensor) -> str | None:
    """Return the name of a function in the graph of a loss whose gradient is computed in Python; None if there is none.

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
