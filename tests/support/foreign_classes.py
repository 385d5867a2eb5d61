"""Implementations of others, as `dsgd-certify` takes them: right ones, and with one planted defect each."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def mean(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor)
    return tensor.div_(dist.get_world_size())


class Averaging:
    """Local SGD."""

    interface, algo, options = "wrapper", "localsgd", {"tau": 4}

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int) -> None:
        self.module, self.optimizer, self.tau, self.made = model, optimizer, tau, 0

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        self.made += 1
        if self.made % self.tau == 0:
            self.average()

    def average(self) -> None:
        for parameter in self.module.parameters():
            mean(parameter)


class DividesTwice(Averaging):
    def average(self) -> None:
        for parameter in self.module.parameters():
            mean(parameter).div_(dist.get_world_size())


class Sums(Averaging):
    def average(self) -> None:
        for parameter in self.module.parameters():
            dist.all_reduce(parameter)


class LateAverage(Averaging):
    """Takes the average of the round before, in the first round its own parameters."""

    before: list[Tensor] | None = None

    def average(self) -> None:
        averages = [mean(parameter.detach().clone()) for parameter in self.module.parameters()]
        for parameter, value in zip(self.module.parameters(), self.before or self.module.parameters(), strict=True):
            parameter.copy_(value)
        self.before = averages


class ForgetsMomentum(Averaging):
    def average(self) -> None:
        super().average()
        self.optimizer.state.clear()


class AveragesBuffers(Averaging):
    def average(self) -> None:
        super().average()
        for buffer in self.module.buffers():
            if buffer.is_floating_point():
                mean(buffer)


class AveragesMomentum(Averaging):
    def average(self) -> None:
        super().average()
        for state in self.optimizer.state.values():
            for name in ("momentum_buffer", "exp_avg", "exp_avg_sq"):
                if isinstance(state.get(name), Tensor):
                    mean(state[name])


class DataParallelBuffers(Averaging):
    """Within DistributedDataParallel as it is by default."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int) -> None:
        super().__init__(model, optimizer, tau)
        self.model = DistributedDataParallel(model)
        self.model.register_comm_hook(None, self.own)

    @staticmethod
    def own(state, bucket):  # without annotations, of which torch takes no strings
        future = torch.futures.Future[Tensor]()
        future.set_result(bucket.buffer())
        return future


class FirstRoundOfOne(Averaging):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int) -> None:
        super().__init__(model, optimizer, tau)
        self.made = tau - 1


class FirstRoundShort(Averaging):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int) -> None:
        super().__init__(model, optimizer, tau)
        self.made = 1


class DecaysLate(Averaging):
    """Decays after the step that should contain the decay."""

    @torch.no_grad()
    def step(self) -> None:
        decays = [group["weight_decay"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.0
        self.decaying_step(decays)
        for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        self.made += 1
        if self.made % self.tau == 0:
            self.average()

    def decaying_step(self, decays: list[float]) -> None:
        self.optimizer.step()
        self.decay(decays)

    def decay(self, decays: list[float]) -> None:
        for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * decay * parameter)


class DecaysEarly(DecaysLate):
    def decaying_step(self, decays: list[float]) -> None:
        self.decay(decays)
        self.optimizer.step()


class DecaysInGradient(DecaysLate):
    """Right for SGD, and wrong for AdamW."""

    def decaying_step(self, decays: list[float]) -> None:
        for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
            for parameter in group["params"]:
                parameter.grad.add_(decay * parameter)
        self.optimizer.step()


class StaleSnapshot(Averaging):
    """Averages a copy of the parameters that was made before the step."""

    @torch.no_grad()
    def step(self) -> None:
        copies = [parameter.clone() for parameter in self.module.parameters()]
        self.optimizer.step()
        self.made += 1
        if self.made % self.tau == 0:
            for parameter, copy in zip(self.module.parameters(), copies, strict=True):
                parameter.copy_(mean(copy))


class CountsFromOne(Averaging):
    """Its first round is one step longer."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int) -> None:
        super().__init__(model, optimizer, tau)
        self.made = -1

    def average(self) -> None:
        if self.made:
            super().average()


class KeepsItsOwn(Averaging):
    """Rank 1 does not take the average."""

    def average(self) -> None:
        for parameter in self.module.parameters():
            average = mean(parameter.clone())
            if dist.get_rank() != 1:
                parameter.copy_(average)


class WithoutCounterpart(Averaging):
    algo = None


class Raises(Averaging):
    def average(self) -> None:
        if dist.get_rank() == 1:
            raise RuntimeError("no route to the moon")
        super().average()


class AllReduce:
    """The plain communication hook."""

    interface, algo, options = "hook", "sync", {}

    def __init__(self, **options: Any) -> None:
        self.before: Tensor | None = None

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        future = torch.futures.Future[Tensor]()
        future.set_result(self.result(bucket.buffer()))
        return future

    def result(self, g: Tensor) -> Tensor:
        return mean(g)


class DividesGradientTwice(AllReduce):
    def result(self, g: Tensor) -> Tensor:
        return mean(g) / dist.get_world_size()


class StaleGradient(AllReduce):
    def result(self, g: Tensor) -> Tensor:
        answer = torch.zeros_like(g) if self.before is None else self.before
        self.before = mean(g.clone())
        return answer


class TopK(AllReduce):
    """The largest tenth of the entries, with the memory of an error."""

    algo, options = "compressed", {"code": "topk", "share": 0.1}

    def __init__(self, code: str, share: float) -> None:
        super().__init__()
        self.share = share

    def result(self, g: Tensor) -> Tensor:
        g = g if self.before is None else self.before + g
        places = g.abs().topk(max(1, round(self.share * g.numel()))).indices
        sent = torch.zeros_like(g).index_copy_(0, places, g[places])
        self.before = self.error(g - sent)
        return mean(sent)

    def error(self, left: Tensor) -> Tensor | None:
        return left


class ForgetsError(TopK):
    def error(self, left: Tensor) -> Tensor | None:
        return None


class Nesterov(torch.optim.SGD):
    """The outer optimizer of DiLoCo."""

    interface, algo, options = "outer", "diloco", {"tau": 3, "olr": 0.7, "beta": 0.9}

    def __init__(self, parameters: list[nn.Parameter], tau: int, olr: float, beta: float) -> None:
        super().__init__(parameters, lr=olr, momentum=beta, nesterov=beta > 0)


class ForgetsOuterMomentum(Nesterov):
    def step(self, closure: Any = None) -> Any:
        self.state.clear()
        return super().step()


class DividesChangeTwice(Nesterov):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(dist.get_world_size())
        return super().step()


class WithoutOuterMomentum(Nesterov):
    def __init__(self, parameters: list[nn.Parameter], tau: int, olr: float, beta: float) -> None:
        super().__init__(parameters, tau, olr, 0.0)


class TakesMean(Nesterov):
    """Is no optimizer: it takes the mean of the workers."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.detach().sub_(parameter.grad)


class NeverRefreshed:
    """DiLoCo whose copy of theta remains the first one."""

    interface, algo, options = "wrapper", "diloco", {"tau": 3, "olr": 0.7, "beta": 0.9}

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int, olr: float, beta: float) -> None:
        self.parameters, self.optimizer, self.tau, self.made = list(model.parameters()), optimizer, tau, 0
        self.outer = Nesterov(self.parameters, tau, olr, beta)
        self.theta = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        self.made += 1
        if self.made % self.tau == 0:
            for parameter, theta in zip(self.parameters, self.theta, strict=True):
                parameter.grad = mean(theta - parameter)
                parameter.copy_(theta)
            self.outer.step()


class OldTheta(NeverRefreshed):
    """DiLoCo that measures the change of a round from the theta of the round before."""

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        self.made += 1
        if self.made % self.tau == 0:
            before = self.before or self.theta
            for parameter, theta, old in zip(self.parameters, self.theta, before, strict=True):
                parameter.grad = mean(old - parameter)
                parameter.copy_(theta)
            self.before = self.theta
            self.outer.step()
            self.theta = [parameter.clone() for parameter in self.parameters]

    before: list[Tensor] | None = None


class NoInterface:
    pass


class NoStep:
    interface = "wrapper"


class NoTau(Nesterov):
    options: ClassVar[Any] = {"olr": 0.7}


class WrongOption(Averaging):
    options: ClassVar[Any] = {"tau": 0}


class OtherArguments(Averaging):
    options: ClassVar[Any] = {"tau": 4, "switch": 2}


class NoProcessGroup(Averaging):
    algo = "gossip"


class NoMethod(Averaging):
    algo = "localsdg"


a_function = mean
