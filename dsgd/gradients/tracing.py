"""Trace of a module's forward pass, with the shape of every value; attention as the operations in it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dsgd.problem.problem import Problem
from dsgd.problem.slots import ModelFailed, Slot, short_message
from dsgd.problem.state import WORD, word_count

BATCHES = (3, 5)  # the shapes for two batch sizes distinguish the batch axis from all others

_COUNTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Untranslatable(ValueError):
    """Raised for a module that has no translation; the text names the layer."""


def source(node: fx.Node) -> fx.Node:
    """Return the first argument of a layer. Raises Untranslatable if it is given by its name."""
    if not node.args:
        raise Untranslatable(f"{node.name}, whose first argument is given by its name")
    return node.args[0]  # pyright: ignore[reportReturnType]


class ModuleTrace:
    """Trace the forward pass of a problem's module, with its shapes and constants. Raises Untranslatable."""

    def __init__(self, problem: Problem, training: bool) -> None:
        try:
            problem = problem.twin()  # the user's code may change its module whenever it runs, here too
        except ModelFailed as error:
            raise Untranslatable(str(error)) from error
        self.problem = problem
        problem.state.train(training)
        module = problem.module
        with torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            try:
                self.graph = _Tracer().trace(module)
            except Exception as error:  # a proxy in the user's code may raise anything
                name = type(module).__name__
                raise Untranslatable(f"{name}.forward, which cannot be traced ({short_message(error)})") from error
            if not torch.equal(before, torch.get_rng_state()):  # they would be the same in every pass
                raise Untranslatable(f"random numbers that {type(module).__name__}.forward draws")
        _, *others = [node for node in self.graph.nodes if node.op == "placeholder"]
        for node in others:
            if not node.args:
                raise Untranslatable(f"the second argument {node.target} of {type(module).__name__}.forward")
        self.modules: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
        self._results = _example_results(self.graph, module, training, problem)  # of each node, for both batch sizes
        for node in self.graph.nodes:
            if node.op.startswith("call") and not self.is_tensor(node) and not _is_plain(node):
                raise Untranslatable(self.name(node))

    def shape(self, node: fx.Node) -> torch.Size:
        """Return the shape of one sample's value. Raises Untranslatable if the value has no batch axis."""
        small, large = (result.shape for result in self._results[node])
        if len(small) == 0 or (small[0], large[0]) != BATCHES or small[1:] != large[1:]:
            raise Untranslatable(f"{self.name(node)}, whose result is not one of each sample's")
        return small[1:]

    def constant(self, argument: Any) -> Any:
        """Return the value of an argument except tensors. Raises Untranslatable if it depends on the batch size."""
        if isinstance(argument, fx.Node):
            small, large = self._results[argument]
            if isinstance(small, Tensor) or small != large:
                raise Untranslatable(f"{self.name(argument)} as an option of a layer")
            return small
        if isinstance(argument, (tuple, list)):
            return type(argument)(self.constant(item) for item in argument)
        if isinstance(argument, slice):
            return slice(*(self.constant(item) for item in (argument.start, argument.stop, argument.step)))
        return argument

    def is_tensor(self, argument: Any) -> bool:
        return isinstance(argument, fx.Node) and isinstance(self._results[argument][0], Tensor)

    def name(self, node: fx.Node) -> str:
        """Return the name of a layer for an error message."""
        if node.op == "call_module":
            return f"{node.target} ({type(self.modules[str(node.target)]).__name__})"
        if node.op == "get_attr":
            return f"{node.target} (a parameter or constant)"
        kind = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return f"{node.name} ({kind})"


class _Tracer(fx.Tracer):
    """Trace reads of buffers like reads of parameters: their values change."""

    proxy_buffer_attributes = True

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if type(m) is nn.MultiheadAttention:
            output = self_attention(m, self.root, *args, **kwargs)
            if output is not None:
                return output, None  # code that also reads the attention weights cannot be traced
        return super().call_module(m, forward, args, kwargs)


class _Examples(fx.Interpreter):
    """Run a graph on a batch, and keep of every result its shape, as a tensor without content, or the plain value."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.extra_traceback = False  # the error message is the layer's own
        self.results: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        try:
            result = super().run_node(n)
        except Exception as error:  # a user's layer may raise anything
            raise Untranslatable(f"{n.name} ({n.target}), which fails on zeros ({short_message(error)})") from error
        self.results[n] = torch.empty(result.shape, device="meta") if isinstance(result, Tensor) else result
        return result


@torch.no_grad()
def _example_results(
    graph: fx.Graph, module: nn.Module, training: bool, problem: Problem
) -> dict[fx.Node, tuple[Any, Any]]:
    """Return the results of every node for both batch sizes: tensors without content, and plain values.

    Computed for real: torch's own arithmetic on tensors without content imports its compiler, which takes a second."""
    module = copy.deepcopy(module).train(training)
    kind = problem.data.batch(0, 0)[0].dtype  # tokens are integers
    runs: list[dict[fx.Node, Any]] = []
    with torch.random.fork_rng(devices=[]):
        for batch in BATCHES:
            examples = _Examples(module, graph)
            examples.run(torch.zeros((batch, *problem.data.input_shape), dtype=kind))
            runs.append(examples.results)
    small, large = runs
    return {node: (small[node], large[node]) for node in graph.nodes if node.op != "output"}


def _is_plain(node: fx.Node) -> bool:
    """Return whether a node only computes with sizes and options, so that omitting it changes nothing else."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "ndimension", "numel", "nelement")
    return getattr(node.target, "__module__", "") in ("_operator", "builtins", "math")


def self_attention(
    module: nn.MultiheadAttention,
    root: nn.Module,
    query: fx.Proxy,
    key: fx.Proxy,
    value: fx.Proxy,
    key_padding_mask: fx.Proxy | None = None,
    need_weights: bool = True,
    attn_mask: fx.Proxy | Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> fx.Proxy | None:
    """Return the output of self-attention over sequences with the batch axis first, causal or without a mask; None for
    other attention. root: the traced module. The other arguments are the same as of the module's `forward`."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    plain = module.batch_first and not module.dropout and module.bias_k is None and not module.add_zero_attn
    if hooks or not plain or not query is key is value or key_padding_mask is not None:
        return None
    causal = is_causal and not need_weights  # the mask then is only said to be this
    if attn_mask is not None and not causal:
        mask = _read(root, attn_mask)
        if mask is None or not _is_causal(mask):
            return None
        causal = True
    width = module.embed_dim
    together = F.linear(query, module.in_proj_weight, module.in_proj_bias)  # pyright: ignore[reportArgumentType]
    q, k, v = (
        together[..., part * width : (part + 1) * width]
        .unflatten(-1, (module.num_heads, module.head_dim))
        .transpose(1, 2)
        for part in range(3)
    )
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
    return F.linear(mixed, module.out_proj.weight, module.out_proj.bias)  # pyright: ignore[reportReturnType]


def _read(root: nn.Module, mask: fx.Proxy | Tensor) -> Tensor | None:
    """Return a mask that is a constant of the module; None for a computed or trained one."""
    if isinstance(mask, Tensor):
        return mask
    return dict(root.named_buffers()).get(str(mask.node.target)) if mask.node.op == "get_attr" else None


def _is_causal(mask: Tensor) -> bool:
    later = torch.ones(mask.shape, dtype=torch.bool).triu(1)
    if mask.dtype == torch.bool:
        return torch.equal(mask, later)
    return torch.equal(mask, torch.zeros_like(mask).masked_fill(later, -torch.inf))


class BatchCounters:
    """Count batches in the buffers of several models.

    more: increment by a training pass of each 8-byte word of the buffers that are stored as bytes."""

    def __init__(self, trace: ModuleTrace) -> None:
        """trace: trace of a forward pass, whose norms count batches."""
        calls = Counter(id(trace.modules[str(node.target)]) for node in trace.graph.nodes if node.op == "call_module")
        state = trace.problem.state
        self._numbers = state.numbers
        self._more = torch.zeros(sum(map(word_count, state.others)), dtype=torch.int64)
        for slot in state.others:
            if _counts(slot):
                self._more[slot.start // WORD] = calls[id(slot.owner)]

    def count(self, buffers: Tensor) -> None:
        """Count one more batch in the buffers [n, nb] of n models, in place."""
        if self._more.any():
            stored = buffers[:, self._numbers :]
            counted = stored.to(torch.uint8).flatten().view(torch.int64).view(len(buffers), -1)
            stored.copy_((counted + self._more.to(buffers.device)).view(torch.uint8))


def _counts(slot: Slot) -> bool:
    """Return whether a buffer is the counter of a batch norm that does not read it."""
    owner = slot.owner
    return slot.name == "num_batches_tracked" and type(owner) in _COUNTING and owner.momentum is not None
