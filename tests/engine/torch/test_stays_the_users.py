"""A distributed module stays the user's: its memory, what is trained of it, its state. The mistakes of who changes a
loop of torch end in one line. In two gloo processes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import dsgd.torch
from dsgd.torch import own_loop
from dsgd.worker import Algorithm, Worker
from tests.support.own_loops import in_processes

LATE = {"localsgd": {"tau": 4}, "diloco": {"tau": 4}, "slowmo": {"tau": 4, "outer": "slowmo"}, "dpsgd": {}}
LATE |= {"streaming": {"tau": 4, "fragments": 2}, "noloco": {"tau": 4}, "sync": {}}


def network(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The batch of this rank."""
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + dist.get_rank()))
    return inputs, inputs[:, :4].argmax(1)


def loss_of(model: Callable[[Tensor], Tensor], step: int) -> Tensor:
    inputs, labels = batch(step)
    return cross_entropy(model(inputs), labels)


def sgd(module: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr, momentum=0.9)


def distributed(module: nn.Module, algo: str = "sync", options: Any = None) -> dsgd.torch.DistributedModel:
    return dsgd.torch.distribute(module, sgd(module), algo, options)


def train(model: dsgd.torch.DistributedModel, steps: range) -> None:
    for step in steps:
        loss_of(model, step).backward()
        model.step()


def ranks_of(tensor: Tensor) -> list[Tensor]:
    """Return the values of all ranks."""
    mine = tensor.detach().contiguous()
    values = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(values, mine)
    return values


def are_equal(*tensors: Tensor) -> bool:
    return all(torch.equal(*ranks_of(tensor)) for tensor in tensors)


@contextmanager
def refused(message: str) -> Iterator[None]:
    with pytest.raises((ValueError, RuntimeError, TypeError), match=message) as error:
        yield
    assert "\n" not in str(error.value)


def all_checks(folder: Path, _: None) -> None:
    for check in (
        every_parameter_keeps_its_memory,
        gaps_and_layouts_are_right_or_refused,
        buffers_of_any_kind_are_the_first_ranks,
        memory_that_is_shared_stays_shared,
        frozen_later_it_rests_and_unfrozen_it_is_averaged,
        a_parameter_without_a_gradient_rests,
        a_rank_without_a_backward_pass_counts_as_zero,
        re_entrant_checkpoints_of_blocks_are_those_of_data_parallel,
        weights_loaded_later_count,
        a_module_distributed_again_is_trained_by_the_new_model_alone,
        the_output_model_is_never_stored_as_the_state,
        a_state_of_some_ranks_momentum_is_refused,
        mistakes_of_migration_end_in_one_line,
        what_an_algorithm_changes_unseen_counts,
        a_rank_that_averages_twice_in_a_step_is_heard_everywhere,
    ):
        check()


def every_parameter_keeps_its_memory() -> None:
    """Also where the algorithm changes x: the saved file of a head has its own numbers alone."""
    for algo in ("sync", "diloco"):
        module = network()
        before = [(each.data_ptr(), each.stride()) for each in module.parameters()]
        model = distributed(module, algo, {"tau": 2} if algo == "diloco" else {})
        train(model, range(4))
        with model.output() as shown:
            assert [(each.data_ptr(), each.stride()) for each in shown.parameters()] == before
        assert len({each.untyped_storage().data_ptr() for each in module.parameters()}) == 4
        sizes = []
        for each in (module, network()):
            torch.save(each[0].state_dict(), file := io.BytesIO())
            sizes.append(file.tell())
        assert sizes[0] == sizes[1]


def gaps_and_layouts_are_right_or_refused() -> None:
    """What lies between the numbers of a buffer or frozen parameter is not touched; only trained parameters must have
    the same strides everywhere."""
    rank = dist.get_rank()
    views: list[Callable[[Tensor], Tensor]] = [
        lambda x: x[:, ::2],
        lambda x: x[::2].t(),
        lambda x: x[0],
        lambda x: x[1, 1],
    ]
    for frozen in (False, True):
        for view in views:
            memory = torch.arange(24.0).reshape(4, 6) + 100 * rank
            apart, first = memory.clone(), torch.arange(24.0).reshape(4, 6)
            module = network()
            if frozen:
                module.tensor = nn.Parameter(view(memory), requires_grad=False)
            else:
                module.register_buffer("tensor", view(memory))
            distributed(module)
            assert torch.equal(view(memory), view(first))
            view(apart).copy_(view(first))
            assert torch.equal(memory, apart)
    for kind in ("trained", "frozen", "buffer"):
        module: Any = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2))
        value = torch.arange(24.0).reshape(3, 2, 2, 2) + rank
        value = value.to(memory_format=torch.channels_last) if rank else value
        if kind == "trained":
            module[0].weight = nn.Parameter(value)
            with refused("the same strides"):
                distributed(module)
            continue
        module.tensor = nn.Parameter(value, requires_grad=False) if kind == "frozen" else nn.Buffer(value)
        distributed(module)
        assert torch.equal(module.tensor, torch.arange(24.0).reshape(3, 2, 2, 2))


def buffers_of_any_kind_are_the_first_ranks() -> None:
    """Also of numbers that gloo cannot send; a sparse or an expanded one is refused by its name."""
    kinds = (torch.int16, torch.uint16, torch.bool, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64)
    module = network()
    for kind in kinds:
        module.register_buffer(str(kind).replace(".", "_"), (torch.arange(4.0) + dist.get_rank()).to(kind))
    module.register_buffer("empty", torch.zeros(0))
    model = distributed(module)
    with model.output() as shown:
        for kind in kinds:
            buffer = shown.get_buffer(str(kind).replace(".", "_"))
            assert torch.equal(buffer.to(torch.complex64), torch.arange(4.0).to(kind).to(torch.complex64))
    for buffer, why in ((torch.eye(3).to_sparse(), "dense"), (torch.ones(1).expand(6), "expanded")):
        module = network()
        module.register_buffer("strange", buffer)
        with refused(f"^strange must .*{why}"):
            distributed(module)


def memory_that_is_shared_stays_shared() -> None:
    """By two parameters, under sync; other methods would change the copies apart."""
    for algo in ("sync", "diloco"):
        torch.manual_seed(0)
        module: Any = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 4))
        module[2].weight.data = module[0].weight.data
        model = distributed(module, algo)
        if algo == "diloco":
            with refused(r"must not share memory but with algo='sync', got 0.weight and 2.weight$"):
                train(model, range(1))
            continue
        train(model, range(3))
        assert module[2].weight.data_ptr() == module[0].weight.data_ptr()


def frozen_later_it_rests_and_unfrozen_it_is_averaged() -> None:
    """Under sync, as in torch: neither momentum nor decay moves what is frozen. Other methods say no."""
    module = network()
    model = dsgd.torch.distribute(module, torch.optim.AdamW(module.parameters(), 0.01, weight_decay=0.1))
    train(model, range(3))
    module[0].requires_grad_(False)
    before = module[0].weight.detach().clone()
    train(model, range(3, 6))
    assert torch.equal(module[0].weight, before)
    module[0].requires_grad_(True)
    train(model, range(6, 9))
    assert not torch.equal(module[0].weight, before)
    assert are_equal(*module.parameters())

    module = network()
    module[0].requires_grad_(False)
    model = distributed(module)
    train(model, range(3))
    module[0].requires_grad_(True)
    with pytest.raises(ValueError, match="before the forward pass"), patch.object(model, "forward", module.forward):
        train(model, range(3, 4))
    module.zero_grad()
    model._mean.done = False
    train(model, range(3, 9))
    assert are_equal(*module.parameters())
    for freezes in (True, False):
        module = network()
        module[0].requires_grad_(freezes)
        model = distributed(module, "diloco")
        train(model, range(3))
        module[0].requires_grad_(not freezes)
        with refused("must stay the same with DiLoCo.*got 0.weight, 0.bias: distribute again"):
            train(model, range(3, 4))


def a_parameter_without_a_gradient_rests() -> None:
    """If no rank has one, as in torch: no decay. If one rank has, the others count as zero."""
    module = network()
    module.unused, module.sometimes = nn.Linear(2, 2), nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(module.parameters(), 0.1, weight_decay=0.5)
    before = module.unused.weight.detach().clone(), module.sometimes.weight.detach().clone()
    model = dsgd.torch.distribute(module, optimizer)
    layers = nn.Sequential(*list(module)[:3])
    inputs, labels = batch(0)
    out = layers(inputs) + (module.sometimes(inputs) if dist.get_rank() else 0)
    cross_entropy(out, labels).backward()
    if dist.get_rank():
        assert module.sometimes.weight.grad is not None
    model.step()
    assert torch.equal(module.unused.weight, before[0])
    assert not torch.equal(module.sometimes.weight, before[1])
    assert are_equal(*module.parameters())


def a_rank_without_a_backward_pass_counts_as_zero() -> None:
    """With any number of buckets, with a scaler, too."""
    for size in (64, 1 << 20):
        with patch.object(own_loop, "BUCKET_BYTES", size):
            module = network()
            theirs, scaler = network(), torch.amp.GradScaler("cpu", init_scale=4.0)
            model = distributed(module)
        optimizer = sgd(theirs)
        for step in range(4):
            ranks = ranks_of(batch(step)[0])
            if step != 2 or dist.get_rank() == 0:
                scaler.scale(loss_of(model, step)).backward()
            for each in ranks[: 1 if step == 2 else 2]:
                (cross_entropy(theirs(each), each[:, :4].argmax(1)) / 2).backward()
            model.step(scaler)
            optimizer.step()
            optimizer.zero_grad()
        for mine, other in zip(module.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other)
        assert are_equal(*module.parameters())


class Blocks(nn.Module):
    """Blocks under checkpoints, without or with layers before and after them."""

    def __init__(self, bare: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Identity() if bare else nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Identity() if bare else nn.Linear(8, 4)
        self.unused = nn.Linear(2, 2)
        self.re_enters = True

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.first(inputs.requires_grad_())
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.re_enters)
        return self.last(x)


def re_entrant_checkpoints_of_blocks_are_those_of_data_parallel() -> None:
    """With clipping between backward and step, and a layer that is not used."""
    for bare in (False, True):
        module = Blocks(bare)
        theirs = DistributedDataParallel(deepcopy(module), find_unused_parameters=True)
        theirs.module.re_enters = False  # which would hide the blocks from it, where a layer is not used
        optimizers = [sgd(each) for each in (module, theirs)]
        model = dsgd.torch.distribute(module, optimizers[0])
        for step in range(3):
            for each in (model, theirs):
                loss_of(each, step).backward()
                nn.utils.clip_grad_norm_(each.parameters(), 0.1)
            model.step()
            optimizers[1].step()
            optimizers[1].zero_grad()
        for mine, other in zip(module.parameters(), theirs.module.parameters(), strict=True):
            assert torch.equal(mine, other)


def weights_loaded_later_count() -> None:
    """At a rate of zero they stay what was loaded, whatever the method keeps."""
    loaded = network(7).state_dict()
    for name, options in LATE.items():
        module = network()
        algo = "diloco" if name == "slowmo" else name
        model = dsgd.torch.distribute(module, sgd(module, lr=0.0), algo, options)
        model.module.load_state_dict(loaded)
        train(model, range(6))
        for key, value in module.state_dict().items():
            torch.testing.assert_close(value, loaded[key], msg=name)
        with model.output() as shown:
            for key, value in shown.state_dict().items():
                torch.testing.assert_close(value, loaded[key], msg=name)


def a_module_distributed_again_is_trained_by_the_new_model_alone() -> None:
    """As the lines about frozen parameters advise; the former model is still there."""
    module, alone = network(), network()
    former = distributed(module)
    train(former, range(2))
    alone.load_state_dict(module.state_dict())
    models = distributed(module), distributed(alone)
    for model in models:
        train(model, range(2, 4))
    assert all(map(torch.equal, module.state_dict().values(), alone.state_dict().values()))


def the_output_model_is_never_stored_as_the_state() -> None:
    module = network()
    model = distributed(module, "diloco", {"tau": 4})
    train(model, range(5))
    with model.output(), refused("outside of"):
        model.state_dict()
    for copied in (deepcopy, AveragedModel, partial(torch.save, f=io.BytesIO())):
        with refused("take model.module"):
            copied(model)
    deepcopy(model.module)


def a_state_of_some_ranks_momentum_is_refused() -> None:
    """A layer with a gradient on one rank has a momentum there: means of it would go to others' vectors."""
    module = network()
    module.sometimes = nn.Linear(8, 4)
    model = distributed(module, "localsgd", {"tau": 2, "momentum": "average"})
    layers = nn.Sequential(*list(module)[:3])
    with refused("must have had a gradient for the same parameters.*got others on rank 1"):
        for step in range(3):
            inputs, labels = batch(step)
            out = layers(inputs) + (module.sometimes(inputs) if dist.get_rank() else 0)
            cross_entropy(out, labels).backward()
            model.step()


def mistakes_of_migration_end_in_one_line() -> None:
    for algo in ("sync", "diloco"):
        module = network()
        optimizer = sgd(module)
        model = dsgd.torch.distribute(module, optimizer, algo)
        loss_of(model, 0).backward()
        with refused(r"^optimizer.step\(\) must not be called after distribute: model.step\(\) makes"):
            optimizer.step()
        model.step()
        with refused(r"^optimizer.step\(\) must not"):
            optimizer.step()
        with pytest.warns(UserWarning, match=r"^step\(\) without a gradient on .*: call backward\(\) before it$"):
            model.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.step()  # once is enough

    module = network()
    model, scaler = distributed(module), torch.amp.GradScaler("cpu")
    for step in range(2):
        scaler.scale(loss_of(model, step)).backward()
        model.step(scaler)
        with refused(r"^scaler.update\(\) must not be called after model.step\(scaler\)"):
            scaler.update()

    module = network()
    extra = nn.Parameter(torch.zeros(4))
    lines: list[tuple[str, Callable[[], Any]]] = [
        ("got 'DiLoCo'; did you mean diloco", lambda: distributed(module, "DiLoCo")),
        ("did you mean localsgd", lambda: distributed(module, "local_sgd")),
        ("^algo.overlap must not be backward", lambda: distributed(module, "diloco", {"overlap": "backward"})),
        ("^algo.elastic needs engine=sim or engine=dist", lambda: distributed(module, "sync", {"elastic": True})),
        ("^topology must be an argument of distribute", lambda: distributed(module, "dpsgd", {"topology": "ring"})),
        (
            r"^algo.delay must .*= 1\) \(tau=4, fragments=4\), got 1$",
            lambda: distributed(module, "streaming", {"tau": 4}),
        ),
        ("without a closure.*got LBFGS", lambda: dsgd.torch.distribute(module, torch.optim.LBFGS(module.parameters()))),
        ("got SparseAdam", lambda: dsgd.torch.distribute(module, torch.optim.SparseAdam(module.parameters()))),
        ("got 1 others", lambda: dsgd.torch.distribute(module, torch.optim.SGD([*module.parameters(), extra], 0.1))),
        ("got none", lambda: distributed(network().requires_grad_(False))),
    ]
    for message, call in lines:
        with refused(message):
            call()
    model = distributed(module)
    train(model, range(1))
    model.optimizer.add_param_group({"params": [extra]})
    with refused("got 1 others"):
        train(model, range(1, 2))


@dataclass(frozen=True)
class Shrinking(Algorithm):
    """A user's algorithm, which changes x in its way before and after each step."""

    way: str
    lockstep: ClassVar[bool] = True

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            g = await worker.gradient()
            for is_after in (False, True):
                if is_after:
                    worker.step(g)
                if self.way == "in place":
                    worker.x.mul_(0.5)
                elif self.way == "data":
                    worker.x.data.mul_(0.5)
                else:
                    worker.x.numpy()[:] *= 0.5


def what_an_algorithm_changes_unseen_counts() -> None:
    """torch does not count changes by NumPy, nor those of `.data`."""
    ended: dict[str, list[Tensor]] = {}
    for way in ("in place", "data", "numpy"):
        module = network()
        train(dsgd.torch.distribute(module, sgd(module), Shrinking(way)), range(3))
        ended[way] = [each.detach().clone() for each in module.parameters()]
    for way, parameters in ended.items():
        for each, expected in zip(parameters, ended["in place"], strict=True):
            assert torch.equal(each, expected), way


def a_rank_that_averages_twice_in_a_step_is_heard_everywhere() -> None:
    """Its gradients would be averaged with those of the others' next step. As they all are in step, a second pass of
    all ranks is not."""
    for algo, options in (("sync", {}), ("localsgd", {"switch": 9})):
        module = network()
        model = distributed(module, algo, options)
        train(model, range(2))
        loss_of(model, 2).backward()
        model.optimizer.zero_grad()
        train(model, range(2, 4))
        with refused(r"^every rank must average one backward pass for each step.*got ranks at the steps 4, 5$"):
            if dist.get_rank() == 0:
                loss_of(model, 4).backward()
                model.optimizer.zero_grad()
            train(model, range(4, 6))


def test_the_module_stays_the_users_and_mistakes_of_migration_end_in_one_line(tmp_path: Path) -> None:
    in_processes(tmp_path, "tests.engine.torch.test_stays_the_users:all_checks")
