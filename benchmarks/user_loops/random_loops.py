"""Random training loops around `dsgd.torch.distribute`, each drawn from its number, and what they must equal.

`sync` must equal DistributedDataParallel bit for bit, every other method a reference in one process, or one
line refuses the loop. benchmarks/random_loops.py tries many of them.
"""

from __future__ import annotations

import gc
import io
import json
import math
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dsgd.torch
from benchmarks.user_loops.one_process import PlainRank, in_threads
from benchmarks.user_loops.random_modules import BLOCKS, WIDTH, RandomModule
from dsgd.runner.configuration import named_algorithm

STEPS, ROWS = 8, 5
OUTCOMES = EQUAL, REFUSED, DIFFERENT, BROKEN = "equal", "refused", "different", "broken"
# options, topology, whether a rounding error may decide what is sent (then two ranks, and no parameter out of order)
METHODS: dict[str, tuple[str, dict[str, Any], str | None, bool]] = {
    "sync, no overlap": ("sync", {"overlap": False}, None, False),
    "powersgd": ("compressed", {}, None, True),
    "topk": ("compressed", {"code": "topk"}, None, True),
    "qsgd": ("compressed", {"code": "qsgd"}, None, True),
    "localsgd": ("localsgd", {"tau": 4, "switch": 3}, None, False),
    "localsgd, average": ("localsgd", {"tau": 2, "momentum": "average"}, None, False),
    "localsgd, zero": ("localsgd", {"tau": 3, "momentum": "zero"}, None, False),
    "diloco": ("diloco", {"tau": 2}, None, False),
    "diloco, slowmo": ("diloco", {"tau": 2, "outer": "slowmo"}, None, False),
    "diloco, eager": ("diloco", {"tau": 4, "overlap": "eager", "olr": 0.3}, None, False),
    "diloco, delayed": ("diloco", {"tau": 4, "overlap": "delayed", "olr": 0.2}, None, False),
    "diloco, sparse": ("diloco", {"tau": 2, "code": "sparse", "olr": 1.0, "beta": 0.0}, None, True),
    "streaming": ("streaming", {"tau": 4, "fragments": 2}, None, False),
    "streaming, 8 bits": ("streaming", {"tau": 4, "fragments": 2, "bits": 8}, None, True),
    "sparta": ("sparta", {"share": 0.1, "tau": 2}, None, True),
    "delayfree": ("delayfree", {"tau": 4}, None, False),
    "dpsgd": ("dpsgd", {}, None, False),
    "dpsgd, after": ("dpsgd", {"gradient": "after"}, "complete", False),
    "sgp": ("sgp", {}, None, False),
    "sgp, overlap": ("sgp", {"overlap": 2}, None, False),
    "d2": ("corrected", {"method": "d2"}, None, False),
    "tracking": ("corrected", {"method": "tracking"}, None, False),
    "qg": ("corrected", {"method": "qg"}, None, False),
    "choco": ("choco", {}, None, True),
    "relay": ("relay", {}, None, False),
    "noloco": ("noloco", {"tau": 2}, None, False),
}
OUT_OF_ORDER = {"transposed", "channels last"}  # in memory
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "foreach": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
}
HABITS = ("accumulates", "clips norms", "clips values", "schedules", "clamps weights", "zeroes", "evaluates", "resumes")
HABITS += ("skips", "loads", "checkpoints", "re-entrant checkpoints")
HABITS_OF_SYNC = ("freezes", "unfreezes", "scales", "overflows")


@dataclass(frozen=True)
class Loop:
    """A loop to try. method: None: sync, beside DistributedDataParallel."""

    number: int
    nodes: int
    method: str | None
    blocks: tuple[str, ...]
    dtype: torch.dtype
    optimizer: str
    habits: frozenset[str]

    def described(self) -> dict[str, Any]:
        values = {"number": self.number, "nodes": self.nodes, "method": self.method or "sync", "blocks": self.blocks}
        return values | {"dtype": str(self.dtype), "optimizer": self.optimizer, "habits": sorted(self.habits)}

    @property
    def checkpoints(self) -> bool | None:
        return True if "re-entrant checkpoints" in self.habits else False if "checkpoints" in self.habits else None

    def loaded(self) -> Mapping[str, Tensor] | None:
        """Return the weights that the loop loads, if it does."""
        return self.module(7).state_dict() if "loads" in self.habits else None

    def module(self, rank: int, reference: bool = False) -> RandomModule:
        """Return the module of a rank. reference: with checkpoints that DistributedDataParallel can see into."""
        checkpoints = self.checkpoints and not reference
        return RandomModule(self.blocks, self.number + 1000 * rank, self.dtype, checkpoints)


def draw(number: int) -> Loop:
    """Return the loop of a number."""
    source = random.Random(number)
    method = None if source.random() < 0.5 else source.choice(list(METHODS))
    nodes = source.choice((2, 3))
    is_exact = method is not None and METHODS[method][3]
    needs_order = is_exact or (method or "").startswith("streaming")
    kinds = [name for name in BLOCKS if not (needs_order and name in OUT_OF_ORDER)]
    blocks = (*(source.choice(kinds) for _ in range(source.randint(1, 4))), "linear")
    dtype = source.choice((torch.float32, torch.float64))
    if is_exact:
        nodes = 2
    elif method is not None and nodes == 3:
        dtype, blocks = torch.float64, tuple(name for name in blocks if name not in ("bfloat16", "complex"))
    optimizer = source.choice(list(OPTIMIZERS))
    if method == "qg":  # which takes the momentum out of the optimizer
        optimizer = "sgd"
    possible = HABITS + (HABITS_OF_SYNC if method is None else ())
    habits = {habit for habit in possible if source.random() < 0.25}
    if "re-entrant checkpoints" in habits or {"checkpoints", "skips"} <= habits:  # and count calls
        blocks = tuple(name for name in blocks if name not in ("buffers", "batch norm"))
    if "partly used" in blocks or not set(blocks[:-1]) - {"frozen", "buffers", "complex"}:
        habits -= {"freezes", "unfreezes"}  # a rank may be left with nothing to train
    if optimizer == "nadam":  # which torch resumes with a factor of another dtype
        habits -= {"resumes"}
    if "partly used" in blocks:
        habits -= {"skips"}  # a rank that skips may be the only one with a gradient
    if "overflows" in habits:
        habits = habits - {"clips norms"} | {"scales"}
    return Loop(number, nodes, method, blocks, dtype, optimizer, frozenset(habits))


@dataclass
class Driver:
    """Who makes the steps of a loop: the module as it is called, what makes a step, and what stands around it."""

    module: RandomModule
    optimizer: torch.optim.Optimizer
    rank: int
    called: Any
    step: Callable[[torch.amp.GradScaler | None], None]
    no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext
    skips_backward: bool = True
    evaluate: Callable[[], None] = lambda: None
    after_backward: Callable[[], None] = lambda: None
    retrain: Callable[[], None] = lambda: None  # what is trained has changed
    resume: Callable[[], None] = lambda: None
    scaler: torch.amp.GradScaler | None = None
    loaded: Mapping[str, Tensor] | None = None  # weights that the loop loads at its start
    losses: list[float] = field(default_factory=list)


def run(loop: Loop, driver: Driver) -> None:
    """Make the steps of a loop."""
    habits, rank = loop.habits, driver.rank
    if "scales" in habits:
        driver.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    if driver.loaded is not None:
        driver.module.load_state_dict(driver.loaded)
    if "unfreezes" in habits:
        driver.module.blocks[0].requires_grad_(False)
    schedule = torch.optim.lr_scheduler.StepLR(driver.optimizer, 2, 0.5)
    for step in range(STEPS):
        if step == STEPS // 2:
            if "freezes" in habits:
                driver.module.blocks[-1].requires_grad_(False)
            if "unfreezes" in habits:
                driver.module.blocks[0].requires_grad_(True)
                if [*driver.module.blocks[0].parameters()]:
                    driver.retrain()
            if "resumes" in habits:
                stored = schedule.state_dict()
                driver.resume()
                schedule = torch.optim.lr_scheduler.StepLR(driver.optimizer, 2, 0.5)
                schedule.load_state_dict(stored)
        driver.module.take_turn(step % loop.nodes == rank or step % 3 == 0)
        if "zeroes" in habits:
            driver.optimizer.zero_grad()
        parts = 2 if "accumulates" in habits else 1
        is_skipped = "skips" in habits and step % 3 == 1 and rank == step % loop.nodes
        for part in range(parts):
            with driver.no_sync() if part + 1 < parts else nullcontext():
                backward(loop, driver, step, part, is_skipped)
        driver.after_backward()
        given = [parameter for parameter in driver.module.parameters() if parameter.grad is not None]
        if driver.scaler is not None and "clips norms" in habits and given:
            driver.scaler.unscale_(driver.optimizer)
        if "clips norms" in habits:
            nn.utils.clip_grad_norm_(given, 0.1)
        if "clips values" in habits and given:
            nn.utils.clip_grad_value_(given, 0.05)
        driver.step(driver.scaler)
        if "schedules" in habits:
            schedule.step()
        if "clamps weights" in habits:
            for parameter in driver.module.parameters():
                if parameter.dtype.is_floating_point:
                    parameter.data.clamp_(-0.5, 0.5)
        if "evaluates" in habits and step % 3 == 2:
            driver.evaluate()


def backward(loop: Loop, driver: Driver, step: int, part: int, is_skipped: bool) -> None:
    source = torch.Generator().manual_seed(loop.number + 10_000 * step + 1000 * part + driver.rank)
    inputs, targets = (torch.randn(ROWS, WIDTH, dtype=loop.dtype, generator=source) for _ in range(2))
    loss = (driver.called(inputs) - targets).square().mean()
    driver.losses.append(loss.item())
    if "overflows" in loop.habits and step == 3 and driver.rank == 1:
        loss = loss * math.inf
    if is_skipped and driver.skips_backward:
        return
    loss = loss * 0 if is_skipped else loss
    (loss if driver.scaler is None else driver.scaler.scale(loss)).backward()


def distributed(loop: Loop) -> Driver:
    """Return the loop's driver by `dsgd.torch`."""
    algo, options, topology, _ = ("sync", {}, None, False) if loop.method is None else METHODS[loop.method]

    def fresh(seed: int) -> tuple[RandomModule, torch.optim.Optimizer, dsgd.torch.DistributedModel]:
        module = loop.module(seed)
        if "unfreezes" in loop.habits and seed < 50:
            module.blocks[0].requires_grad_(False)
        optimizer = OPTIMIZERS[loop.optimizer](module.parameters())
        return module, optimizer, dsgd.torch.distribute(module, optimizer, algo, options, topology=topology)

    module, optimizer, model = fresh(dist.get_rank())
    driver = Driver(module, optimizer, dist.get_rank(), model, model.step, model.no_sync)

    def evaluate() -> None:
        with driver.called.output() as shown:
            assert shown is driver.module

    def resume() -> None:
        states = {"model": driver.called.state_dict(), "trained": [p.requires_grad for p in driver.module.parameters()]}
        torch.save(states, file := io.BytesIO())
        file.seek(0)
        states = torch.load(file, weights_only=False)
        module = loop.module(90 + dist.get_rank())
        for parameter, is_trained in zip(module.parameters(), states["trained"], strict=True):
            parameter.requires_grad_(is_trained)
        optimizer = OPTIMIZERS[loop.optimizer](module.parameters())
        model = dsgd.torch.distribute(module, optimizer, algo, options, topology=topology)
        model.load_state_dict(states["model"])
        driver.module, driver.optimizer, driver.called = module, optimizer, model
        driver.step, driver.no_sync = model.step, model.no_sync

    driver.evaluate, driver.resume, driver.loaded = evaluate, resume, loop.loaded()
    return driver


def data_parallel(loop: Loop) -> Driver:
    """Return the loop's driver by DistributedDataParallel."""
    module = loop.module(0, reference=True)
    if "unfreezes" in loop.habits:
        module.blocks[0].requires_grad_(False)
    optimizer = OPTIMIZERS[loop.optimizer](module.parameters())
    driver = Driver(module, optimizer, dist.get_rank(), module, lambda _: None, skips_backward=False)

    def wrap() -> None:
        driver.called, driver.no_sync = module, nullcontext
        gc.collect()  # the former one's hooks
        wrapped = DistributedDataParallel(module, broadcast_buffers=False, find_unused_parameters=True, init_sync=False)
        driver.called, driver.no_sync = wrapped, wrapped.no_sync

    def step(scaler: torch.amp.GradScaler | None) -> None:
        if scaler is None:
            optimizer.step()
        elif any(parameter.grad is not None for parameter in module.parameters()):
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()

    wrap()
    driver.step, driver.retrain, driver.resume, driver.loaded = step, wrap, wrap, loop.loaded()
    return driver


def in_one_process(loop: Loop) -> list[Driver]:
    """Make all ranks' loops in one process, without dsgd.torch. Returns their drivers."""
    assert loop.method is not None
    name, options, topology, _ = METHODS[loop.method]

    modules = [loop.module(0, reference=True) for _ in range(loop.nodes)]
    loaded = [loop.loaded() for _ in range(loop.nodes)]
    algo = named_algorithm(name, options, topology, loop.nodes, 0)

    def work(channel: Any) -> Driver:
        module = modules[channel.rank]
        optimizer = OPTIMIZERS[loop.optimizer](module.parameters())
        plain = PlainRank(module, optimizer, algo, channel)
        driver = Driver(module, optimizer, channel.rank, module, lambda _: plain.make_step())
        driver.after_backward, driver.loaded = plain.begin_step, loaded[channel.rank]
        run(loop, driver)
        return driver

    return in_threads(loop.nodes, work)


def outcome(loop: Loop) -> tuple[str, str]:
    """Try a loop in all ranks. Returns this rank's verdict, and a line about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ours = distributed(loop)
            run(loop, ours)
        except dsgd.torch.CommunicationFailed as error:
            return BROKEN, str(error)
        except (ValueError, RuntimeError, TypeError) as error:
            raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
            is_line = "\n" not in str(error) and Path(raised_in).is_relative_to(Path(dsgd.torch.__file__).parents[1])
            return (REFUSED if is_line else BROKEN), str(error).partition("\n")[0]
        try:
            if loop.method is None:
                theirs = data_parallel(loop)
                run(loop, theirs)
            else:
                theirs = in_one_process(loop)[dist.get_rank()]
        except Exception as error:
            traceback.print_exc()
            return BROKEN, f"the reference has failed: {type(error).__name__}: {error}".partition("\n")[0]
    is_exact = loop.method is None or loop.nodes == 2
    differing = [name for name, mine, other in pairs(ours, theirs) if not is_same(mine, other, is_exact)]
    return (DIFFERENT, "differing: " + ", ".join(differing)) if differing else (EQUAL, "")


def pairs(ours: Driver, theirs: Driver) -> Iterator[tuple[str, Tensor, Tensor]]:
    yield "losses", torch.tensor(ours.losses, dtype=torch.double), torch.tensor(theirs.losses, dtype=torch.double)
    state = theirs.module.state_dict()
    for name, value in ours.module.state_dict().items():
        yield name, value, state[name]
    for group, (mine, other) in enumerate(zip(states(ours), states(theirs), strict=True)):
        for name in mine.keys() | other.keys():
            values = [torch.as_tensor(each.get(name, math.nan)) for each in (mine, other)]
            yield f"state {group} {name}", values[0], values[1]


def states(driver: Driver) -> list[dict[str, Any]]:
    return [driver.optimizer.state.get(parameter, {}) for parameter in driver.module.parameters()]


def is_same(mine: Tensor, other: Tensor, is_exact: bool) -> bool:
    if mine.dtype != other.dtype or mine.shape != other.shape:
        return False
    if is_exact or not mine.dtype.is_floating_point:
        wide = (lambda x: x.to(torch.complex128)) if mine.is_complex() else (lambda x: x.to(torch.double))
        return torch.equal(wide(mine), wide(other))
    return torch.allclose(mine.double(), other.double(), rtol=1e-8, atol=1e-10)


def verdict(loop: Loop) -> dict[str, Any]:
    """Try a loop in all ranks. Returns its description and the verdict of all."""
    outcomes: list[Any] = [None] * loop.nodes
    mine = outcome(loop)
    print(loop.number, dist.get_rank(), mine, file=sys.stderr, flush=True)
    dist.all_gather_object(outcomes, mine)
    kinds = {kind for kind, _ in outcomes}
    kind = kinds.pop() if len(kinds) == 1 else DIFFERENT if DIFFERENT in kinds else BROKEN
    lines = sorted({line for _, line in outcomes if line})
    return loop.described() | {"outcome": kind, "line": " | ".join(lines)}


def try_all(folder: Path, numbers: list[int]) -> None:
    """Try loops of as many ranks as there are processes, and write a line about each. Runs on every rank."""
    for number in numbers:
        case = verdict(draw(number))
        if dist.get_rank() == 0:
            with (folder / "cases.jsonl").open("a") as file:
                file.write(json.dumps(case) + "\n")
