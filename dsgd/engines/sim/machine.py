"""The simulated machine: answers the requests of all workers in virtual time."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from dsgd.cluster import CENTRAL
from dsgd.engines.rules.marks import is_beyond, limit_of_batch
from dsgd.engines.rules.step_rules import Shard, StepRules, bucket_count
from dsgd.engines.rules.task import Task, start
from dsgd.engines.sim.all_reduce import AllReduces, Quorum
from dsgd.engines.sim.downtime import Downtime, LockstepFailures, outages_of
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import network_of
from dsgd.engines.sim.node import Node, PendingAllReduce, Processor, null_vector
from dsgd.engines.sim.pairs import Pairs
from dsgd.engines.sim.restarts import ElasticRestarts, Restarts
from dsgd.engines.sim.servers import ServerFailures, Servers
from dsgd.experiment import Experiment
from dsgd.gradients.evaluators import GradientEvaluator, PendingGradient
from dsgd.optim.optimizer import state_vectors
from dsgd.problem.problem import Problem
from dsgd.problem.state import mean
from dsgd.streams import stream
from dsgd.worker import (
    AllReduceMean,
    Ask,
    Busy,
    Call,
    Exchange,
    Gradient,
    MeanGradient,
    MeanOfFirst,
    Pull,
    Push,
    Request,
    Worker,
)

T = TypeVar("T")


class Machine:
    """Simulate workers, servers and the network between them. Implements `dsgd.worker.Engine`."""

    def __init__(self, experiment: Experiment, problem: Problem, evaluator: GradientEvaluator) -> None:
        self.experiment = experiment
        self.problem = problem
        self.evaluator = evaluator
        self.loop = EventLoop()
        self.samples = 0
        self.steps = 0  # of all workers together
        self.staleness_sum, self.staleness_count, self.staleness_max = 0.0, 0, 0
        self.compute_spans: list[tuple[int, float, float]] | None = [] if experiment.trace else None

        p, k, cluster = experiment.nodes, experiment.algo.servers, experiment.cluster
        self.rules = StepRules(experiment, () if experiment.gradients == "none" else problem.matrices)
        total = None if experiment.algo.lockstep else experiment.total_samples
        self._free_running_budget = math.inf if total is None else total  # in samples
        self.mark_at = math.inf  # samples at which the next mark is due
        self.training = p  # workers whose algorithm has not ended
        self.message_bytes = cluster.message_bytes or problem.dimension * problem.start.element_size()
        ports = (p if cluster.servers_colocated else p + k) + (cluster.collective in CENTRAL)
        self.server_ports = [s % p if cluster.servers_colocated else p + s for s in range(k)]
        self.network = network_of(cluster, self.loop, p, ports, experiment.seed)
        self.network.spans = [] if experiment.trace else None

        self.diverged = False  # by the loss of a mini-batch
        self.timing_only = experiment.gradients == "none"
        self._loss_limit = math.inf if self.timing_only else limit_of_batch(experiment, problem)
        start = null_vector(problem.start) if self.timing_only else problem.start
        self.nodes: list[Node] = []
        xs = [start if self.timing_only else start.clone() for _ in range(p)]
        self.downtime = Downtime() if cluster.failing is not None else None
        for rank, x in enumerate(xs):
            worker = Worker(rank, p, x, stream("algorithm", experiment.seed, rank), self, problem.layout)
            failing = None
            if self.downtime is not None and experiment.algo.lockstep and not experiment.algo.elastic:
                failing = LockstepFailures(rank, outages_of(experiment, rank, self.message_bytes), self.downtime)
            processor = Processor(cluster, rank, experiment.seed, p, failing)
            buffers = start if self.timing_only else problem.start_buffers.clone()
            published = (start, 0)  # all nodes share the start, which never changes
            self.nodes.append(Node(worker=worker, processor=processor, published=published, buffers=buffers))
        parts = start.tensor_split(k) if k else []
        self.shards = [Shard(experiment.algo.server(part.clone()), p, problem.layout) for part in parts]
        counted = (self.message_bytes, self._count_staleness)
        failures = None if self.downtime is None else self._server_failures(self.downtime)
        served = (self._serve, self._take_call, failures)
        self.servers = Servers(self.shards, self.server_ports, self.loop, self.network, *counted, *served)
        self.elastic: ElasticRestarts | None = None
        self.restarts = None if self.downtime is None else self._restarts(self.downtime)
        self.tasks: list[Task[None]] = []
        self._pending: list[PendingGradient] = []
        self.has_buffers = problem.start_buffers.numel() > 0 and not self.timing_only
        self._centre_port = ports - 1
        store = self._centre_port if cluster.collective == "store" else None
        pairs = Pairs(self.nodes, self.loop, self.network, *counted, self._answer_ask, self._take_answer, store)
        self._perform = {
            Gradient: self._gradient,
            MeanGradient: self._mean_gradient,
            MeanOfFirst: self._mean_of_first,
            Busy: self._busy,
            AllReduceMean: self._all_reduce_mean,
            Exchange: pairs.exchange,
            Pull: pairs.pull,
            Push: pairs.push,
            Ask: pairs.ask,
            Call: self._call,
        }

    def launch(self) -> None:
        """Start the algorithm on every worker."""
        for node in self.nodes:
            self.tasks.append(self.start(node.worker, self._train(node.worker)))
        if self.restarts is not None:
            for rank in range(len(self.nodes)):
                self.restarts.await_failure(rank)
        if self.servers.failures is not None:
            self.servers.failures.begin()

    async def _train(self, worker: Worker) -> None:
        await self.experiment.algo.train(worker)
        self.training -= 1
        if self.training == 0:
            self.loop.pause()

    @property
    def over(self) -> bool:
        """Return whether all workers have ended, or asynchronous ones have used up the budget, which discards pending
        gradients, or the run has diverged. If all workers are down, the run is not over: they return."""
        ended = self.training == 0 and not self.present[0].down
        return self.diverged or ended or self.samples >= self._free_running_budget

    def perform(self, task: Task[Any], request: Request) -> None:
        self._perform[type(request)](task, request)

    @property
    def present(self) -> list[Node]:
        """Return the workers that make up the output model."""
        return self.nodes if self.elastic is None else self.elastic.present()

    def centre(self) -> Tensor | None:
        """Return the output model [d]; None if it is the workers' mean."""
        name, last = self.experiment.algo.output, self.present[-1].worker
        if self.shards:
            return torch.cat([getattr(shard.server, name or "x") for shard in self.shards])
        return None if name is None else last.kept.get(name, last.x)  # before the first step there is only x

    # Methods of `dsgd.worker.Engine`, which take no time

    def start(self, worker: Worker, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        node = self.nodes[worker.rank]
        task = start(coroutine, node, self.perform)
        if self.restarts is not None:
            node.tasks = [*(each for each in node.tasks if not each.finished), task]
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
        done = self.rules.done(worker, self.samples)
        if self.elastic is not None and not done:
            self.elastic.begin_step(worker.rank)
        return done

    def learning_rate(self, worker: Worker) -> float:
        return self.rules.learning_rate(worker, self.samples)

    def step(self, worker: Worker, g: Tensor) -> None:
        node = self.nodes[worker.rank]
        if self.timing_only and node.optimizer_state is not None:  # its vectors are empty
            node.optimizer_state.steps += 1
            worker.steps += 1
        else:
            node.optimizer_state = self.rules.step(worker, g, node.optimizer_state, self.samples)
        self.steps += 1
        self.samples = self.experiment.samples_of(self.steps)
        if self.samples >= self.mark_at or self.samples >= self._free_running_budget:
            self.loop.pause()

    def remembered(self, worker: Worker) -> Sequence[Tensor]:
        return state_vectors(self.nodes[worker.rank].optimizer_state)

    def forget(self, worker: Worker) -> None:
        self.nodes[worker.rank].optimizer_state = None

    # Gradients

    def _begin_gradient(self, node: Node, at: Tensor) -> tuple[PendingGradient, float]:
        """Begin a gradient. Its value is computed when its virtual time is over, with all other pending gradients.
        Returns the gradient and its end."""
        buffers = node.buffers.clone() if self.has_buffers else node.buffers
        gradient = PendingGradient(node.worker.rank, node.batches, at, buffers)
        node.batches += 1
        if self.timing_only:
            gradient.set(at, buffers)
        else:
            self._pending.append(gradient)
        end = node.begin_gradient(self.loop.now)
        if self.compute_spans is not None:
            self.compute_spans.append((node.worker.rank, self.loop.now, end))
        return gradient, end

    def _finish_gradient(self, node: Node, gradient: PendingGradient) -> Tensor | None:
        """Return the gradient; None if the run has diverged with it, so no worker makes a step from it."""
        if self.timing_only:
            return gradient.value
        if gradient.value is None:
            self.evaluator.evaluate(self._pending)
            self._pending = []
        assert gradient.value is not None
        loss = gradient.read_loss()
        if loss is not None and is_beyond(loss, self._loss_limit):
            self.diverged = True
            self.loop.pause()
        node.buffers = gradient.buffers
        return None if self.diverged else gradient.value

    def _gradient(self, task: Task[Any], request: Gradient) -> None:
        gradient, end = self._begin_gradient(task.owner, request.at)
        self.loop.at(end, self._gradient_done, task, gradient)

    def _gradient_done(self, task: Task[Any], gradient: PendingGradient) -> None:
        if task.closed:
            return
        g = self._finish_gradient(task.owner, gradient)
        if g is not None:
            task.resume(g)

    def _busy(self, task: Task[Any], request: Busy) -> None:
        self.loop.at(self.loop.now + request.seconds, self._was_busy, task, request.seconds)

    def _was_busy(self, task: Task[Any], seconds: float) -> None:
        task.owner.computed_s += seconds
        task.resume()

    # Collectives

    @cached_property
    def all_reduces(self) -> AllReduces:
        """Return the sums over all workers, which most algorithms have."""
        experiment, item_bytes = self.experiment, self.problem.start.element_size()
        simulated = (self.loop, self.network, self._centre_port, self._reduced)
        return AllReduces(experiment.cluster, experiment.nodes, self.message_bytes, item_bytes, *simulated)

    @cached_property
    def _quorum(self) -> Quorum:
        return Quorum(self.loop, self.all_reduces, self._begin_gradient, self._finish_gradient)

    @cached_property
    def _buckets(self) -> int:
        in_buckets, n_bytes = self.experiment.cluster.bucket_bytes, self.message_bytes
        return math.ceil(n_bytes / in_buckets) if in_buckets else bucket_count(n_bytes)

    def _mean_gradient(self, task: Task[Any], request: MeanGradient) -> None:
        gradient, end = self._begin_gradient(task.owner, request.at)
        self.all_reduces.enter(task, gradient, self.loop.now, end, self._buckets)

    def _mean_of_first(self, task: Task[Any], request: MeanOfFirst) -> None:
        self._quorum.enter(task, request)

    def _all_reduce_mean(self, task: Task[Any], request: AllReduceMean) -> None:
        begin_s, parts = (task.owner.computing[0], self._buckets) if request.hidden else (self.loop.now, 1)
        self.all_reduces.enter(task, request.vector, begin_s, self.loop.now, parts, request.size)

    def _reduced(self, all_reduce: PendingAllReduce) -> None:
        vectors: list[Tensor] = []
        for node, task, contribution in zip(self.nodes, all_reduce.tasks, all_reduce.contributions, strict=True):
            if task is None:  # the worker was down
                continue
            if isinstance(contribution, PendingGradient):
                contribution = self._finish_gradient(node, contribution)
            elif not task.closed:
                node.received += 1
            if contribution is not None:
                vectors.append(contribution)
        if self.diverged:
            return
        result = mean(vectors)
        for task, steps in zip(all_reduce.tasks, all_reduce.steps, strict=True):
            if task is not None and not task.closed:
                self._count_mean(task, steps)
                task.resume(result)

    def _count_mean(self, task: Task[Any], entered: int) -> None:
        """Count the staleness of a mean when the algorithm receives it. entered: the worker's steps at its
        contribution."""
        worker = task.owner.worker
        if task is self.tasks[worker.rank]:
            self._count_staleness(worker.steps - entered)
        else:
            task.when_taken(lambda: self._count_staleness(worker.steps - entered))

    # Answers of peers and servers

    def _answer_ask(self, task: Task[Any], peer: Node, vector: Tensor) -> Tensor:
        return self.experiment.algo.answer(peer.worker, vector)

    def _call(self, task: Task[Any], request: Call) -> None:
        self.servers.call(task, request)

    def _serve(self, task: Task[Any], request: Call, shard: int, part: Tensor | None) -> tuple[Tensor | None, int]:
        return self.shards[shard].serve(task.owner.worker.rank, request.operation, part, request.scalars)

    def _take_answer(self, task: Task[Any], answer: Tensor) -> None:
        task.resume(answer)

    def _take_call(self, task: Task[Any], answer: Tensor | None) -> None:
        task.resume(answer)

    # Nodes that fail

    def _server_failures(self, downtime: Downtime) -> ServerFailures | None:
        """Return the failures of servers, or None."""
        failing = self.experiment.cluster.failing
        if failing is None or failing.server_checkpoint_s is None or not self.shards:
            return None
        part_bytes = self.message_bytes / len(self.shards)
        outages = [outages_of(self.experiment, port, part_bytes) for port in self.server_ports]
        return ServerFailures(self.shards, outages, failing.server_checkpoint_s, self.loop, downtime)

    def _restarts(self, downtime: Downtime) -> Restarts | None:
        """Return the failures of workers that others do not wait for, or None."""
        algo = self.experiment.algo
        if algo.lockstep and not algo.elastic:
            return None
        outages = [outages_of(self.experiment, rank) for rank in range(len(self.nodes))]
        rngs = [stream("restart", self.experiment.seed, rank) for rank in range(len(self.nodes))]
        simulated = (self.loop, self.network, downtime, rngs)
        shared = (self.nodes, self.servers, self.message_bytes, outages, *simulated, self._leave, self._enter_again)
        if not algo.elastic:
            return Restarts(*shared)
        self.elastic = ElasticRestarts(*shared, join=self._join)
        return self.elastic

    def _join(self, node: Node) -> None:
        self.training += 1
        self.all_reduces.join(node.collectives)

    def _leave(self, rank: int) -> None:
        self.loop.pause()  # it may have been the last one that trains
        if self.elastic is not None:
            self.training -= 1
            self.all_reduces.leave(rank)
        self._pending = [gradient for gradient in self._pending if gradient.rank != rank]
        if self.compute_spans is not None:
            now_s = self.loop.now
            self.compute_spans = [
                (node, begin, min(end, now_s) if node == rank else end) for node, begin, end in self.compute_spans
            ]

    def _enter_again(self, node: Node) -> None:
        self.tasks[node.worker.rank] = self.start(node.worker, self._train(node.worker))

    def _count_staleness(self, staleness: int) -> None:
        self.staleness_sum += staleness
        self.staleness_count += 1
        self.staleness_max = max(self.staleness_max, staleness)
