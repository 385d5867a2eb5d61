"""Examine, before a run, whether a module with its own code may be evaluated in another way than by itself.

Two consecutive steps with a copy of the module show side effects of its code. Two more steps, by the chosen evaluator,
must give the same gradients, losses and buffers. The
compiled kernels are verified with the module in double precision.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dsgd.gradients.evaluators import GradientEvaluator, PendingGradient
from dsgd.problem.problem import Problem
from dsgd.problem.slots import ModelFailed, has_own_code, hook_of, own_function, short_message
from dsgd.streams import stream_states

STEPS = 2
RATE = 0.1  # of these steps
# Of the norm: what another order of operations never makes.
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.5}
DEPTH = 4  # of attributes of attributes that are looked at

EXACT = 1e-9  # of float64, relative to the largest entry
ParameterPoint = tuple[Tensor, Tensor]  # a vector [d], and buffers [nb]


def reason_for_the_loop(problem: Problem, device: torch.device) -> str | None:
    """Return why only the module itself can compute its gradients; None if other ways are possible. device: device of
    the trial. Raises ModelFailed for a module that cannot be trained."""
    if (reason := hook_of(problem.module)) is not None:
        return reason
    if problem.state.shared:
        return f"{problem.state.shared}, which share memory"
    if not problem.state.in_place:
        return None
    try:
        twin = problem.twin()
    except ModelFailed as error:
        return str(error)
    twin.to(device)
    return _reason_by_steps(twin)


def _reason_by_steps(twin: Problem) -> str | None:
    """Make some steps with a module. Returns the behaviour, if any, that a faster evaluator would miss."""
    name = type(twin.module).__name__
    x, buffers = twin.start.to(twin.device, copy=True), twin.start_buffers.to(twin.device, copy=True)
    before = _attributes(twin.module)
    for step in range(STEPS):
        inputs, targets = (part.to(twin.device) for part in twin.data.batch(0, step))
        at = x.clone()
        with twin.drawing(0, step):
            drawn = stream_states()
            try:
                with _noted_hooks() as hooks:
                    g, _, function = twin.examined_gradient(x, buffers, inputs, targets, own_function)
            except ModelFailed:
                raise
            except Exception as error:  # a user's module may raise anything
                raise ModelFailed(
                    f"the model fails in training: {type(error).__name__}: {short_message(error)}"
                ) from error
            if any(stream_states()[name] != drawn[name] for name in ("NumPy", "Python")):
                return f"random numbers of Python or NumPy that {name} draws"
        if hooks:
            return f"a hook that {name} registers in its forward pass"
        if function is not None:
            return f"the function {function.removesuffix('Backward')} of {name}, whose gradient is its own"
        if not torch.equal(x, at):
            return f"parameters that {name} changes in its forward pass"
        x = x - RATE * g
    after = _attributes(twin.module)
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return f"{changed[0]}, which {name} changes in training and which is no buffer" if changed else None


def serves_side_by_side(problem: Problem) -> bool:
    """Return whether copies of a module can  compute gradients in several threads: whether they change no shared state,
    global random streams included. Raises ModelFailed for a module that cannot be trained."""
    if problem.compiled or reason_for_the_loop(problem, problem.device) is not None:
        return False
    try:
        twin = problem.twin()
    except ModelFailed:
        return False
    twin.gradient(twin.start.clone(), twin.start_buffers.clone(), 0, 0)
    return not twin.draws


def deviation(problem: Problem, evaluator: GradientEvaluator) -> str | None:
    """Compare consecutive steps by an evaluator with steps by a copy of the module. Returns the difference, if any."""
    plain = problem.twin()
    x, buffers = plain.start.clone(), plain.start_buffers.clone()
    for step in range(STEPS):
        item = PendingGradient(0, step, x.clone(), buffers.clone())
        evaluator.evaluate([item])
        with plain.drawing(0, step):
            inputs, targets = plain.data.batch(0, step)
            g, loss = plain.gradient_of_batch(x, buffers, inputs, targets)
        assert item.value is not None
        assert item.loss is not None
        compared = (("gradient", item.value, g), ("loss", item.loss, loss), ("buffers", item.buffers, buffers))
        for what, value, right in compared:
            if not _is_close(value.to(right.device), right, CLOSE[problem.autocast or right.dtype]):
                return f"{type(problem.module).__name__}, whose {what} at step {step} it gives otherwise"
        x = x - RATE * g
    return None


def _is_close(value: Tensor, right: Tensor, share: float) -> bool:
    off, size = float((value - right).norm()), float(right.norm())
    return off <= share * size or not (np.isfinite(off) or np.isfinite(size))


@contextmanager
def _noted_hooks() -> Iterator[list[Tensor]]:
    """Note the tensors that are given a hook inside of the block."""
    hooked, register = list[Tensor](), Tensor.register_hook

    def noted(tensor: Tensor, hook: Any) -> Any:
        hooked.append(tensor)
        return register(tensor, hook)

    Tensor.register_hook = noted  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield hooked
    finally:
        Tensor.register_hook = register


def _attributes(module: nn.Module) -> dict[str, object]:
    """Return the state that a module's code can keep between passes, apart from parameters and buffers, as comparable
    values: attributes of the instance and its class, and plain values outside of its `forward`."""
    attributes: dict[str, object] = {}
    for path, part in module.named_modules():
        name = f"{path}." if path else ""
        attributes |= {f"{name}{key}": _frozen(value, DEPTH) for key, value in _kept(vars(part))}
        if has_own_code(part):
            kind = type(part)
            attributes |= {
                f"{kind.__name__}.{key}": _frozen(value, 1) for key, value in _kept(vars(kind)) if not callable(value)
            }
            attributes |= {key: _frozen(value, 1) for key, value in _outside(kind.forward)}
    return attributes


def _kept(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    hidden = ("_parameters", "_buffers", "_modules", "training")
    return ((key, value) for key, value in attributes.items() if key not in hidden and not key.startswith("__"))


def _outside(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the plain values among the global and enclosed variables of a function."""
    code, plain = getattr(function, "__code__", None), (bool, int, float, str, list, dict, set, deque, Tensor)
    if code is None:
        return
    named = {name: function.__globals__.get(name) for name in code.co_names}
    named |= dict(zip(code.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True))
    yield from ((name, value) for name, value in named.items() if isinstance(value, plain))


def _frozen(value: Any, depth: int) -> object:
    """Return a copy of a value for later comparison, when the value may have changed."""
    if isinstance(value, (type(None), bool, int, float, complex, str, bytes)):
        return type(value).__name__, value if value == value else "nan"
    if isinstance(value, Tensor):
        return id(value), value._version, tuple(value.shape)
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return tuple((str(key), _frozen(each, depth)) for key, each in value.items()) if depth else len(value)
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        ordered = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return tuple(_frozen(each, depth) for each in ordered) if depth else len(value)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if hasattr(value, "__dict__") and not callable(value) and depth:
        return id(value), tuple((key, _frozen(each, depth - 1)) for key, each in _kept(vars(value)))
    return id(value), repr(value) if type(value).__module__ == "itertools" else ""


def random_points(
    problem: Problem, count: int, seed: int = 0, dtype: torch.dtype | None = None
) -> list[ParameterPoint]:
    """Draw different points around the initial vector and buffers."""
    noise = torch.Generator().manual_seed(seed)
    dtype = dtype or problem.dtype
    points: list[ParameterPoint] = []
    numbers = problem.state.numbers
    for _ in range(count):
        x = problem.start + 0.05 * torch.randn(problem.dimension, generator=noise)
        buffers = problem.start_buffers.clone()
        buffers[:numbers] += torch.rand(numbers, generator=noise)
        points.append((x.to(dtype), buffers.to(dtype)))
    return points


def plain_outputs(
    problem: Problem, parameters: Sequence[Tensor], buffers: Sequence[Tensor], inputs: Tensor, training: bool
) -> Tensor:
    """Return the module's own outputs with these parameters and buffers, which change in training."""
    state = {slot.path: value for slot, value in zip(problem.parameters, parameters, strict=True)}
    state |= {slot.path: value for slot, value in zip(problem.buffers, buffers, strict=True)}
    for path, value in (*problem.module.named_parameters(), *problem.module.named_buffers()):
        if path not in state:  # counters, which change; parameters that are not trained
            state[path] = value.detach().to(torch.float64 if value.is_floating_point() else value.dtype, copy=True)
    problem.state.train(training)
    return functional_call(problem.module, state, (inputs,))


def plain_gradient(
    problem: Problem, x: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient [d] without weight decay at x [d], the buffers [nb] after the forward pass, and the loss."""
    x, buffers = x.clone().requires_grad_(), buffers.clone()
    parameters = [slot.view(x) for slot in problem.parameters]
    statistics = [slot.view(buffers) for slot in problem.buffers]
    loss = problem.data.loss(plain_outputs(problem, parameters, statistics, inputs, True), targets)
    (g,) = torch.autograd.grad(loss, x)
    return g, buffers, loss.detach()


def is_exact(value: Tensor, right: Tensor, scale: float) -> bool:
    """Return whether values are right to rounding. scale: magnitude of the largest entry."""
    return value.shape == right.shape and torch.allclose(value, right, rtol=0, atol=EXACT * max(scale, 1.0))
