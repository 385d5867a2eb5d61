"""The simulated machine: it interprets the requests of all workers, adding virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import torch
from torch import Tensor

from dsgd.engine.shard import Shard
from dsgd.engine.task import Task
from dsgd.experiment import Experiment
from dsgd.gradients.pending import Evaluator, Wanted
from dsgd.gradients.rows import copies
from dsgd.problem.evaluation import mean
from dsgd.problem.problem import Problem
from dsgd.sim.collectives import all_reduce_s, bytes_of_node
from dsgd.sim.compute import Processor
from dsgd.sim.hollow import hollow
from dsgd.sim.loop import Loop
from dsgd.sim.network import Network
from dsgd.sim.node import Gathering, Incoming, Letter, Node
from dsgd.streams import stream
from dsgd.worker import AllReduceMean, Call, Exchange, Gradient, MeanGradient, Pull, Push, Request, Worker

T = TypeVar("T")

FORWARD = 1 / 3  # of a gradient's time is the forward pass; communication can hide behind the other two thirds


class Machine:
    """Workers, servers and the network between them. Implements `dsgd.worker.Engine`."""

    def __init__(self, experiment: Experiment, problem: Problem, evaluator: Evaluator) -> None:
        self.experiment = experiment
        self.problem = problem
        self.evaluator = evaluator
        self.loop = Loop()
        self.samples = 0
        self.staleness_sum, self.staleness_count, self.staleness_max = 0.0, 0, 0
        self.compute_spans: list[tuple[int, float, float]] | None = [] if experiment.trace else None

        p, k, cluster = experiment.nodes, experiment.algo.servers, experiment.cluster
        self.total_samples = experiment.total_samples
        self.lockstep = experiment.algo.lockstep
        self._rate = (0, experiment.learning_rate(0))  # the latest: after so many samples
        self.training = p  # workers whose algorithm has not ended
        self.message_bytes = cluster.message_bytes or problem.dimension * problem.start.element_size()
        ports = p if cluster.servers_colocated else p + k
        rates = [cluster.bytes_per_s(node, p) for node in range(ports)]
        self.server_ports = [s % p if cluster.servers_colocated else p + s for s in range(k)]
        self.network = Network(self.loop, rates, cluster.latency_s, cluster.chunks_per_message)
        self.network.spans = [] if experiment.trace else None
        self.all_reduce = all_reduce_s(cluster.collective, p, self.message_bytes, cluster.latency_s, min(rates[:p]))
        self._all_reduce_bytes = [bytes_of_node(self.all_reduce[1], p, rank, self.message_bytes) for rank in range(p)]
        self._all_reduce_free_s = 0.0

        self.timing_only = experiment.gradients == "none"
        start = hollow(problem.start) if self.timing_only else problem.start
        self.nodes: list[Node] = []
        xs = [start] * p if self.timing_only else copies(start, p)
        for rank, x in enumerate(xs):
            worker = Worker(rank, p, x, stream("algorithm", experiment.seed, rank), self)
            processor = Processor(cluster, rank, experiment.seed)
            buffers = start if self.timing_only else problem.start_buffers.clone()
            self.nodes.append(Node(worker, processor, start, buffers))
        self.shards = [Shard(experiment.algo.server(part.clone()), p) for part in start.tensor_split(k)] if k else []
        self.tasks: list[Task[None]] = []
        self._wanted: list[Wanted] = []
        self.has_buffers = problem.start_buffers.numel() > 0 and not self.timing_only
        self._gatherings: dict[int, Gathering] = {}
        self._perform = {
            Gradient: self._gradient,
            MeanGradient: self._mean_gradient,
            AllReduceMean: self._all_reduce_mean,
            Exchange: self._exchange,
            Pull: self._pull,
            Push: self._push,
            Call: self._call,
        }

    def launch(self) -> None:
        """Start the algorithm on every worker."""
        for node in self.nodes:
            task = Task(self._train(node.worker), node, self.perform)
            self.tasks.append(task)
            task.resume()

    async def _train(self, worker: Worker) -> None:
        await self.experiment.algo.train(worker)
        self.training -= 1

    @property
    def over(self) -> bool:
        """All workers have ended; or free-running ones have used up the budget, which drops gradients under way."""
        if self.training == 0:
            return True
        return self.total_samples is not None and self.samples >= self.total_samples and not self.lockstep

    def perform(self, task: Task[Any], request: Request) -> None:
        self._perform[type(request)](task, request)

    def centre(self) -> Tensor | None:
        """The servers' vector [d], None without servers."""
        return torch.cat([shard.server.x for shard in self.shards]) if self.shards else None

    # What a worker asks without waiting

    def start(self, worker: Worker, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        task = Task(coroutine, self.nodes[worker.rank], self.perform)
        task.resume()
        return task

    def publish(self, worker: Worker) -> None:
        self.nodes[worker.rank].published = (worker.x.clone(), worker.steps)

    def inbox(self, worker: Worker) -> list[Tensor]:
        node = self.nodes[worker.rank]
        taken, node.inbox = node.inbox, []
        node.received += len(taken)
        for _, sender, steps in taken:
            self._count_staleness(self.nodes[sender].worker.steps - steps)
        return [vector for vector, _, _ in taken]

    def done(self, worker: Worker) -> bool:
        if self.total_samples is None:
            return False
        if self.lockstep:
            return worker.steps * self.experiment.unit >= self.total_samples
        return self.samples >= self.total_samples

    def learning_rate(self, worker: Worker) -> float:
        # in lock-step every worker must use the same rate for the same step, whenever it makes it
        samples = worker.steps * self.experiment.unit if self.lockstep else self.samples
        if samples != self._rate[0]:  # equal workers come one after the other
            self._rate = (samples, self.experiment.learning_rate(samples))
        return self._rate[1]

    def step(self, worker: Worker, g: Tensor) -> None:
        node = self.nodes[worker.rank]
        rate = self.learning_rate(worker)
        node.velocity = self.experiment.optimizer.step(worker.x, g, node.velocity, rate)
        worker.steps += 1
        self.samples += self.experiment.batch_size

    # Gradients

    def _want(self, node: Node, at: Tensor) -> tuple[Wanted, float]:
        buffers = node.buffers.clone() if self.has_buffers else node.buffers
        wanted = Wanted(node.worker.rank, node.batches, at, buffers)
        node.batches += 1
        if self.timing_only:
            wanted.fulfil(at, buffers)
        else:
            self._wanted.append(wanted)
        end = node.begin_gradient(self.loop.now)
        if self.compute_spans is not None:
            self.compute_spans.append((node.worker.rank, self.loop.now, end))
        return wanted, end

    def _value(self, node: Node, wanted: Wanted) -> Tensor:
        if wanted.value is None:
            self.evaluator.evaluate(self._wanted)
            self._wanted = []
        assert wanted.value is not None
        node.buffers = wanted.buffers
        return wanted.value

    def _gradient(self, task: Task[Any], request: Gradient) -> None:
        wanted, end = self._want(task.owner, request.at)
        self.loop.at(end, self._gradient_done, task, wanted)

    def _gradient_done(self, task: Task[Any], wanted: Wanted) -> None:
        task.resume(self._value(task.owner, wanted))

    # Collectives

    def _gathering(self, node: Node) -> Gathering:
        index = node.collectives
        node.collectives += 1
        gathering = self._gatherings.get(index)
        if gathering is None:
            gathering = self._gatherings[index] = Gathering(len(self.nodes))
        return gathering

    def _mean_gradient(self, task: Task[Any], request: MeanGradient) -> None:
        node, now = task.owner, self.loop.now
        wanted, end = self._want(node, request.at)
        backward = now + FORWARD * (end - now)
        gathering = self._gathering(node)
        if gathering.enter(task, node.worker, wanted, backward, end):
            self._reduce(gathering)

    def _all_reduce_mean(self, task: Task[Any], request: AllReduceMean) -> None:
        gathering = self._gathering(task.owner)
        if gathering.enter(task, task.owner.worker, request.vector, self.loop.now, self.loop.now):
            self._reduce(gathering)

    def _reduce(self, gathering: Gathering) -> None:
        """Everybody has entered: the collective runs, after the one before it."""
        duration, _ = self.all_reduce
        begin = max(gathering.begin_s, self._all_reduce_free_s)
        self._all_reduce_free_s = begin + duration
        for rank, size in enumerate(self._all_reduce_bytes):
            self.network.count(rank, size, begin, begin + duration)
        self.loop.at(max(gathering.end_s, begin + duration), self._reduced, gathering)

    def _reduced(self, gathering: Gathering) -> None:
        del self._gatherings[min(self._gatherings)]  # they end in the order in which they began
        vectors = [
            self._value(node, brought) if isinstance(brought, Wanted) else brought
            for node, brought in zip(self.nodes, gathering.brought, strict=True)
        ]
        result = mean(vectors)
        if not isinstance(gathering.brought[0], Wanted):
            for node in self.nodes:
                node.received += 1
        for node, steps in zip(self.nodes, gathering.steps, strict=True):
            self._count_staleness(node.worker.steps - steps)
        for task in gathering.tasks:
            assert task is not None
            task.resume(result)

    # Pairs

    def _exchange(self, task: Task[Any], request: Exchange) -> None:
        node, worker, size = task.owner, task.owner.worker, self.message_bytes
        rank, letter = worker.rank, (request.vector, worker.steps)
        self.network.send(
            rank, [(target, size, self._arrived, (self.nodes[target], rank, letter)) for target in request.targets]
        )
        exchange = Incoming(task, request.sources)
        node.expect(exchange)
        if not exchange.missing:  # faster neighbours' vectors have come already, or none is due
            self.loop.at(self.loop.now, self._complete_exchanges, node)

    def _arrived(self, node: Node, source: int, letter: Letter) -> None:
        if node.receive(source, letter):
            self._complete_exchanges(node)

    def _complete_exchanges(self, node: Node) -> None:
        """Answer the exchanges of which nothing is missing."""
        while (exchange := node.completed()) is not None:
            received: dict[int, Tensor] = {}
            for source, letter in exchange.arrived.items():
                assert letter is not None
                received[source], steps = letter
                self._count_staleness(self.nodes[source].worker.steps - steps)
            node.received += len(received)
            exchange.task.resume(received)

    def _pull(self, task: Task[Any], request: Pull) -> None:
        self.network.after_latency(self._serve_pull, task, request.peer)

    def _serve_pull(self, task: Task[Any], peer: int) -> None:
        vector, steps = self.nodes[peer].published
        rank = task.owner.worker.rank
        self.network.send(peer, [(rank, self.message_bytes, self._pulled, (task, peer, vector, steps))])

    def _pulled(self, task: Task[Any], peer: int, vector: Tensor, steps: int) -> None:
        self._count_staleness(self.nodes[peer].worker.steps - steps)
        task.owner.received += 1
        task.resume(vector)

    def _push(self, task: Task[Any], request: Push) -> None:
        worker = task.owner.worker
        arguments = (task, request.peer, request.vector, worker.steps)
        self.network.send(worker.rank, [(request.peer, self.message_bytes, self._pushed, arguments)])

    def _pushed(self, task: Task[Any], peer: int, vector: Tensor, steps: int) -> None:
        self.nodes[peer].inbox.append((vector, task.owner.worker.rank, steps))
        task.resume()

    # Servers

    def _call(self, task: Task[Any], request: Call) -> None:
        k, rank = len(self.shards), task.owner.worker.rank
        answers: list[Any] = [None] * k
        missing = [k]  # shared by the shards' answers
        if request.vector is None:
            for shard in range(k):
                self.network.after_latency(self._serve, task, request, shard, None, answers, missing)
            return
        size = self.message_bytes / k
        messages = [
            (self.server_ports[shard], size, self._serve, (task, request, shard, part, answers, missing))
            for shard, part in enumerate(request.vector.tensor_split(k))
        ]
        self._send(rank, messages)

    def _send(self, port: int, messages: list[tuple[int, float, Callable[..., None], tuple[Any, ...]]]) -> None:
        """Between ports through the network; what stays at one port takes no time."""
        for receiver, _, action, arguments in messages:
            if receiver == port:
                self.loop.at(self.loop.now, action, *arguments)
        leaving = [message for message in messages if message[0] != port]
        if leaving:
            self.network.send(port, leaving)

    def _serve(
        self, task: Task[Any], request: Call, shard: int, part: Tensor | None, answers: list[Any], missing: list[int]
    ) -> None:
        rank = task.owner.worker.rank
        answers[shard], staleness = self.shards[shard].serve(rank, request.operation, part, request.scalars)
        if part is not None:
            self._count_staleness(staleness)
        if answers[shard] is None:
            self.network.after_latency(self._answered, task, answers, missing)
            return
        size = self.message_bytes / len(self.shards)
        self._send(self.server_ports[shard], [(rank, size, self._answered, (task, answers, missing))])

    def _answered(self, task: Task[Any], answers: list[Any], missing: list[int]) -> None:
        missing[0] -= 1
        if missing[0] == 0:
            task.owner.received += answers[0] is not None
            task.resume(None if answers[0] is None else answers[0] if len(answers) == 1 else torch.cat(answers))

    def _count_staleness(self, staleness: int) -> None:
        self.staleness_sum += staleness
        self.staleness_count += 1
        self.staleness_max = max(self.staleness_max, staleness)
