"""Which parameters `optimizer.decay_norm_and_bias=false` leaves out of the weight decay."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dsgd.problem.slots import Slot

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def is_norm_or_bias(slot: Slot) -> bool:
    """Tell whether a parameter is a scale or a shift and no matrix: it has one axis or none, or is named bias, or is a
    norm's. A class of the user's is a norm if it is named so, and a parameter of it if no two axes are longer than 1.

    The name is what the parameter is called in the module that owns it; of a list, the name of the list; of a
    parametrization, that of the tensor which it gives."""
    if len(slot.shape) <= 1 or "bias" in _name(slot.path) or isinstance(slot.owner, NORMS):
        return True
    kinds = (kind.__name__.lower() for kind in type(slot.owner).__mro__)
    return any("norm" in kind for kind in kinds) and sum(axis > 1 for axis in slot.shape) <= 1


def _name(path: str) -> str:
    parts = [part for part in path.split(".") if not part.isdigit()]
    if "parametrizations" in parts[:-1]:
        return parts[parts.index("parametrizations") + 1]
    return parts[-1] if parts else ""
