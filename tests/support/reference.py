"""The algorithms once more, as plain NumPy loops on the quadratic: nothing in common with the package but the data.

Lock-step algorithms are matrices X [nodes, dim] and return their path [steps + 1, nodes, dim]. In the others a worker
is a generator that yields the seconds it waits; they return what workers and centre hold at the end of the budget.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dsgd.data.quadratic import Quadratic

Array = np.ndarray
Process = Generator[float, None, None]


@dataclass(frozen=True, eq=False)
class Setting:
    """What both the simulator and these loops are told, apart from the algorithm's own options.

    gradient_s: of each worker, empty: 1 s each. latency_s: of a message, which costs nothing else.
    start [nodes, dim], centre [dim]: None is the origin.
    """

    nodes: int = 4
    steps: int = 12  # of each worker on average: the budget is steps x nodes samples
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    halve_at: float | None = None  # epoch from which the rate is half
    data: Quadratic = field(default_factory=lambda: Quadratic(dim=5))
    seed: int = 3
    gradient_s: tuple[float, ...] = ()
    latency_s: float = 0.0
    start: Array | None = None
    centre: Array | None = None

    @property
    def samples(self) -> int:
        return self.steps * self.nodes

    def times(self) -> tuple[float, ...]:
        return self.gradient_s or (1.0,) * self.nodes

    def xs(self) -> Array:
        """A copy of the workers' first vectors."""
        return np.zeros((self.nodes, self.data.dim)) if self.start is None else self.start.copy()

    def c(self) -> Array:
        """A copy of the centre's first vector."""
        return np.zeros(self.data.dim) if self.centre is None else self.centre.copy()

    def rate(self, samples: int) -> float:
        """The learning rate when so many samples have been processed; an epoch is one sample of each worker."""
        late = self.halve_at is not None and samples / self.nodes >= self.halve_at
        return self.lr * (0.5 if late else 1.0)

    @property
    def h(self) -> Array:
        return self.data.curvature()

    @cached_property
    def hs(self) -> Array:
        """Of each worker, [nodes, dim]."""
        return self.data.curvatures(self.nodes, self.seed)

    @property
    def target(self) -> Array:
        return self.data.targets(self.nodes, self.seed)[0]

    @property
    def minima(self) -> Array:
        return self.data.targets(self.nodes, self.seed)[1]

    def noise(self, step: int) -> Array:
        """The gradient noise of all workers at this step of their own, [nodes, dim]."""
        return np.array([self.data.gradient_noise(self.seed, rank, step) for rank in range(self.nodes)])

    def gradient(self, rank: int, step: int, x: Array) -> Array:
        noise = self.data.gradient_noise(self.seed, rank, step)
        return self.hs[rank] * (x - self.minima[rank]) + noise + self.weight_decay * x

    def gradients(self, step: int, xs: Array) -> Array:
        return np.array([self.gradient(rank, step, x) for rank, x in enumerate(xs)])


class Direction:
    """What SGD with momentum multiplies by the rate: v = mu v + g, with Nesterov g + mu v."""

    def __init__(self, setting: Setting) -> None:
        self.mu = setting.momentum
        self.nesterov = setting.nesterov
        self.v: Array | float = 0.0

    def __call__(self, g: Array) -> Array:
        self.v = self.mu * self.v + g
        return g + self.mu * self.v if self.nesterov else self.v


# In lock-step


def sync(s: Setting) -> Array:
    x, direction = s.xs()[0], Direction(s)
    path = [np.tile(x, (s.nodes, 1))]
    for k in range(s.steps):
        x = x - s.rate(k * s.nodes) * direction(s.gradients(k, path[-1]).mean(axis=0))
        path.append(np.tile(x, (s.nodes, 1)))
    return np.array(path)


def backup_workers(s: Setting, backups: int, reduce_s: float) -> tuple[Array, list[float], list[int]]:
    """Chen et al. 2016: each step takes the first gradients that are complete, and reduce_s. Whoever is busy with one
    of an earlier step drops it at its end and begins one of the present step, if that still waits for gradients.

    Returns the path of x [steps + 1, dim], when each step ends, and how many gradients each worker has begun."""
    x, direction, needed = s.xs()[0], Direction(s), s.nodes - backups
    path, ends = [x], []
    begun, free = [0] * s.nodes, [0.0] * s.nodes  # free: when the latest gradient of a worker ends
    now = 0.0
    for k in range(s.steps):
        first: list[Array] = []
        events = [(max(now, free[i]), i, False) for i in range(s.nodes)]
        while len(first) < needed:
            now, i, complete = min(events)
            events.remove((now, i, complete))
            if complete:
                first.append(s.gradient(i, begun[i] - 1, x))
            else:
                free[i] = now + s.times()[i]
                begun[i] += 1
                events.append((free[i], i, True))
        now += reduce_s
        x = x - s.rate(k * needed) * direction(np.mean(first, axis=0))
        path.append(x)
        ends.append(now)
    return np.array(path), ends, begun


def dpsgd(s: Setting, mixing: Callable[[int], Array], gradient: str = "before") -> Array:
    """mixing: W [nodes, nodes] of a step. gradient: taken at x, after the mixing, or first, with its step."""
    X, direction = s.xs(), Direction(s)
    path = [X]
    for k in range(s.steps):
        rate, mixture = s.rate(k * s.nodes), mixing(k) @ X
        if gradient == "first":
            X = mixing(k) @ (X - rate * direction(s.gradients(k, X)))
        else:
            X = mixture - rate * direction(s.gradients(k, mixture if gradient == "after" else X))
        path.append(X)
    return np.array(path)


def sgp(s: Setting, shares: Callable[[int], Array], overlap: int) -> tuple[Array, Array]:
    """shares: P [nodes, nodes] of a round, whose column j is what node j gives to each. Returns the paths of z = x / w
    and of w [steps + 1, nodes]."""
    X, w, direction = s.xs(), np.ones((s.nodes, 1)), Direction(s)
    path, weights = [X], [w[:, 0]]
    away = np.zeros((s.nodes, s.data.dim + 1))  # what is on its way to each node, its weight last
    for k in range(s.steps):
        if overlap and k % overlap == 0:
            P = shares(k // overlap)
            own = np.diag(np.diag(P))
            away = (P - own) @ np.hstack([X, w])
            X, w = own @ X, own @ w
        move = s.rate(k * s.nodes) * direction(s.gradients(k, X / w))
        if overlap:
            X = X - move
            if (k + 1) % overlap == 0 or k + 1 == s.steps:
                X, w = X + away[:, :-1], w + away[:, -1:]
        else:
            X, w = shares(k) @ (X - move), shares(k) @ w
        path.append(X / w)
        weights.append(w[:, 0])
    return np.array(path), np.array(weights)


def delayfree(s: Setting, tau: int) -> Array:
    X, direction = s.xs(), Direction(s)
    start = X
    path = [X]
    for k in range(s.steps):
        X = X - s.rate(k * s.nodes) * direction(s.gradients(k, X))
        if (k + 1) % (tau // 2) == 0 or k + 1 == s.steps:
            X = start.mean(axis=0) + (X - start)
            start = X
        path.append(X)
    return np.array(path)


def streaming(
    s: Setting, tau: int, fragments: int, delay: int, mix: float, olr: float, beta: float
) -> tuple[Array, Array]:
    """Returns the paths of the workers and of theta. Times as in the paper: fragment f of P is merged at every step t
    with t mod tau = (f + 1) tau / P mod tau, and leaves `delay` steps before."""
    X, direction = s.xs(), Direction(s)
    theta, v = X[0], np.zeros(s.data.dim)
    ranges = np.array_split(np.arange(s.data.dim), fragments)
    leaving: dict[int, Array] = {}
    path, centres = [X], [theta]
    for t in range(1, s.steps + 1):
        X = X - s.rate((t - 1) * s.nodes) * direction(s.gradients(t - 1, X))
        for f, part in enumerate(ranges):
            merged = (f + 1) * tau // fragments % tau
            if (t + delay) % tau == merged:
                leaving[f] = (theta - X).mean(axis=0)[part]
            if t % tau == merged:
                D = leaving.pop(f)
                v[part] = beta * v[part] + D
                theta = theta.copy()
                theta[part] -= olr * (D + beta * v[part])
                X = X.copy()
                X[:, part] = mix * X[:, part] + (1 - mix) * theta[part]
        path.append(X)
        centres.append(theta)
    return np.array(path), np.array(centres)


def noloco(s: Setting, tau: int, olr: float, beta: float, gamma: float, pairs: Callable[[int], list[int]]) -> Array:
    """pairs: by round, an order of the workers of whom the first two are partners, the next two, and so on. The form
    with the slow parameters and their displacement apart."""
    X, direction = s.xs(), Direction(s)
    phi, m = X, np.zeros_like(X)
    path = [X]
    for k in range(s.steps):
        X = X - s.rate(k * s.nodes) * direction(s.gradients(k, X))
        if (k + 1) % tau == 0 or k + 1 == s.steps:
            order = pairs(k // tau)
            W = np.eye(s.nodes)
            for i, j in zip(order[::2], order[1::2], strict=False):
                W[[i, i, j, j], [i, j, i, j]] = 0.5
            m = beta * m + olr * W @ (X - phi) + gamma * (W @ phi - phi)
            X = phi = phi + m
        path.append(X)
    return np.array(path)


def gasloc(
    s: Setting,
    tau: int,
    eta: float,
    alpha: float,
    gamma: float,
    mixing: Callable[[int], Array],
    overlap: float = 0.0,
    overlapped: Callable[[int], Array] | None = None,
) -> Array:
    """mixing: W [nodes, nodes] of a round; overlapped: of the gossip during its local steps. The form of the paper,
    whose Laplacian is a sum over edges."""
    X, direction = s.xs(), Direction(s)
    theta = before = X
    path = [X]
    for k in range(s.steps):
        X = X - s.rate(k * s.nodes) * direction(s.gradients(k, X))
        if (k + 1) % tau == 0 or k + 1 == s.steps:
            moved = eta * (X - theta)
            if overlap:
                theta = theta - overlap * laplacian((overlapped or mixing)(k // tau)) @ theta
            u = theta + moved
            X = theta = u - alpha * laplacian(mixing(k // tau)) @ u + gamma * (u - before)
            before = u
        path.append(X)
    return np.array(path)


def laplacian(W: Array) -> Array:
    """1/2 sum over edges of lambda_ij (e_i - e_j)(e_i - e_j)', lambda_ij = 2 W_ij."""
    e = np.eye(len(W))
    edges = itertools.combinations(range(len(W)), 2)
    return sum((W[i, j] * np.outer(e[i] - e[j], e[i] - e[j]) for i, j in edges), np.zeros_like(W))


def localsgd(
    s: Setting, tau: int, switch: int = 0, momentum: str = "keep", group: int = 1, inner_tau: int = 1
) -> Array:
    X, V = s.xs(), np.zeros((s.nodes, s.data.dim))
    path = [X]
    for k in range(s.steps):
        G = s.gradients(k, X)
        if k < switch:
            G = np.tile(G.mean(axis=0), (s.nodes, 1))
        V = s.momentum * V + G
        X = X - s.rate(k * s.nodes) * (G + s.momentum * V if s.nesterov else V)
        made = k + 1 - switch
        if made > 0 and (made % tau == 0 or (group > 1 and made % inner_tau == 0)) and k + 1 < s.steps:
            size = s.nodes if made % tau == 0 else group
            W = np.kron(np.eye(s.nodes // size), np.full((size, size), 1 / size))
            X = W @ X
            if momentum != "keep":
                V = np.zeros_like(V) if momentum == "zero" else W @ V
        path.append(X)
    return np.array(path)


def diloco(s: Setting, tau: int, outer: str, olr: float, beta: float, overlap: str = "none") -> tuple[Array, Array]:
    """Returns the paths of the workers and of their outer parameters, both [steps + 1, nodes, dim]."""
    X, direction = s.xs(), Direction(s)
    theta, u = np.tile(X[0], (s.nodes, 1)), np.zeros_like(X)
    sent = [np.zeros_like(X)]
    path, centres = [X], [theta]
    for k in range(s.steps):
        X = X - s.rate(k * s.nodes) * direction(s.gradients(k, X))
        if (k + 1) % tau == 0 or k + 1 == s.steps:
            sent.append(theta - X)
            E = np.empty_like(X)
            for i in range(s.nodes):
                shares = sent[-1 if overlap == "none" else -2].copy()
                if overlap == "eager":
                    shares[i] = sent[-1][i]
                E[i] = shares.sum(axis=0) / s.nodes
            rate = s.rate(k * s.nodes)
            u = beta * u + (E / rate if outer == "slowmo" else E)
            theta = theta - olr * {"nesterov": E + beta * u, "heavy_ball": u, "slowmo": rate * u}[outer]
            X = theta
        path.append(X)
        centres.append(theta)
    return np.array(path), np.array(centres)


def sparta(
    s: Setting, places: Callable[[int], Array], tau: int = 0, olr: float = 0.0, beta: float = 0.0
) -> tuple[Array, Array]:
    """places: to average after the k-th step. Returns the paths of the workers and of theta."""
    X, direction = s.xs(), Direction(s)
    theta, v = X[0], np.zeros(s.data.dim)
    path, centres = [X], [theta]
    for k in range(1, s.steps + 1):
        X = X - s.rate((k - 1) * s.nodes) * direction(s.gradients(k - 1, X))
        if tau and (k % tau == 0 or k == s.steps):
            D = (theta - X).mean(axis=0)
            v = beta * v + D
            theta = theta - olr * (D + beta * v)
            X = np.tile(theta, (s.nodes, 1))
        else:
            X[:, places(k)] = X[:, places(k)].mean(axis=0)
        path.append(X)
        centres.append(theta)
    return np.array(path), np.array(centres)


def easgd_in_lockstep(
    s: Setting, tau: int, alpha: Callable[[float], float], in_turn: bool, delta: float | None = None
) -> tuple[Array, Array]:
    """in_turn: one after the other, by rank; otherwise all at once. Returns the paths of the workers and the centre."""
    X, c, V, direction = s.xs(), s.c(), np.zeros((s.nodes, s.data.dim)), Direction(s)
    path, centres = [X], [c]
    for k in range(s.steps):
        S, rate = X.copy(), s.rate(k * s.nodes)
        moving_rate = alpha(rate) if k % tau == 0 else 0.0
        E = moving_rate * (S - c)
        for i in range(s.nodes if in_turn else 0):
            E[i] = moving_rate * (S[i] - c)
            c = c + E[i]
        c = c if in_turn else c + E.sum(axis=0)
        if delta is None:
            X = S - E - rate * direction(s.gradients(k, S))
        else:
            V = delta * V - rate * s.gradients(k, S + delta * V)
            X = S - E + V
        path.append(X)
        centres.append(c)
    return np.array(path), np.array(centres)


# In their own time


class Clock:
    """Resumes generators when the seconds they yielded have passed, at equal times in the order in which they asked."""

    def __init__(self, s: Setting) -> None:
        self.s, self.now, self.samples = s, 0.0, 0
        self._queue: list[tuple[float, int, Process]] = []
        self._order = itertools.count()

    @property
    def over(self) -> bool:
        return self.samples >= self.s.samples

    def step(self, i: int, t: int, x: Array, direction: Direction) -> Generator[float, None, bool]:
        """Let worker i make its step t from x [dim], in place. Returns whether the run is over then."""
        g = self.s.gradient(i, t, x)
        yield self.s.times()[i]
        x -= self.s.rate(self.samples) * direction(g)
        self.samples += 1
        return self.over

    def start(self, process: Process) -> None:
        for delay in process:
            heapq.heappush(self._queue, (self.now + delay, next(self._order), process))
            return

    def play(self, processes: Iterable[Process]) -> None:
        for process in processes:
            self.start(process)
        while not self.over:
            self.now, _, process = heapq.heappop(self._queue)
            self.start(process)


def easgd(s: Setting, tau: int, alpha: Callable[[float], float], delta: float | None = None) -> tuple[Array, Array]:
    """alpha: the moving rate as a function of the learning rate. delta: the momentum of EAMSGD."""
    xs, c, clock = s.xs(), s.c(), Clock(s)

    def worker(i: int) -> Process:
        x, v, direction = xs[i], np.zeros(s.data.dim), Direction(s)
        for t in itertools.count():
            snapshot = x.copy()
            if t % tau == 0:
                moving_rate = alpha(s.rate(clock.samples))
                yield s.latency_s
                e = moving_rate * (snapshot - c)
                c[:] += e
                yield s.latency_s
                x -= e
            g = s.gradient(i, t, snapshot if delta is None else snapshot + delta * v)
            yield s.times()[i]
            if delta is None:
                x -= s.rate(clock.samples) * direction(g)
            else:
                v = delta * v - s.rate(clock.samples) * g
                x += v
            clock.samples += 1
            if clock.over:
                return

    clock.play(worker(i) for i in range(s.nodes))
    return xs, c


Rule = Callable[[Array], Array]


def server_sgd() -> Rule:
    return lambda acc: acc


def server_momentum(m: float) -> Rule:
    return Direction(Setting(momentum=m))


def server_adagrad() -> Rule:
    total: Array | float = 0.0

    def rule(acc: Array) -> Array:
        nonlocal total
        total = total + acc * acc
        return acc / np.sqrt(total + 1e-8)

    return rule


def downpour(s: Setting, n_push: int, n_fetch: int, rule: Rule) -> tuple[Array, Array]:
    xs, c, clock = s.xs(), s.c(), Clock(s)

    def worker(i: int) -> Process:
        w, acc, direction = xs[i], np.zeros(s.data.dim), Direction(s)
        for t in itertools.count():
            if t % n_fetch == 0:
                yield s.latency_s
                fetched = c.copy()
                yield s.latency_s
                w[:] = fetched
            g = s.gradient(i, t, w)
            yield s.times()[i]
            acc = acc + g
            if (t + 1) % n_push == 0:
                rate = s.rate(clock.samples)
                yield s.latency_s
                c[:] -= rate * rule(acc)
                acc = np.zeros(s.data.dim)
                yield s.latency_s
            w -= s.rate(clock.samples) * direction(g)
            clock.samples += 1
            if clock.over:
                return

    clock.play(worker(i) for i in range(s.nodes))
    return xs, c


def asyncdiloco(
    s: Setting,
    taus: list[int],
    rule: tuple[float, float, int],
    group: int = 1,
    local_rule: tuple[float, float, int] = (1.0, 0.0, 1),
    updates: int = 1,
    mix: float = 0.0,
    changed: Callable[[Array, Array, int], Array] = lambda D, m, late: D,
) -> tuple[Array, Array]:
    """taus: local steps of each worker. rule: rate, momentum and buffer of the server; local_rule: of local ones, at
    the first worker of every `group`. changed: what a server makes of a difference before it applies it, by its
    momentum and the number of its updates that the worker does not know. Returns what the workers and the server hold
    at the end."""
    xs, clock = s.xs(), Clock(s)
    servers = {i: Nesterov(s.xs()[0], *local_rule) for i in range(0, s.nodes, group)}
    centre, last, fresh = Nesterov(s.c(), *rule), {i: s.xs()[0] for i in servers}, dict.fromkeys(servers, 0)
    merging: set[int] = set()
    read = [0] * s.nodes

    def merge(i: int) -> Process:
        merging.add(i)
        D = last[i] - servers[i].c
        yield s.latency_s
        c = centre.update(D)
        yield s.latency_s
        servers[i].c = (1 - mix) * servers[i].c + mix * c
        last[i], fresh[i] = servers[i].c, 0
        merging.discard(i)

    def worker(i: int) -> Process:
        start, direction, host = xs[i].copy(), Direction(s), i - i % group
        for t in itertools.count():
            if (yield from clock.step(i, t, xs[i], direction)):
                return
            if (t + 1) % taus[i]:
                continue
            D = start - xs[i]
            if group == 1 or i != host:
                yield s.latency_s
            server = centre if group == 1 else servers[host]
            c = server.update(changed(D, server.m, server.updates - read[i]))
            read[i] = server.updates
            fresh[host] += 1
            if group > 1 and i == host and fresh[i] >= updates and i not in merging:
                clock.start(merge(i))
            if group == 1 or i != host:
                yield s.latency_s
            xs[i] = start = c.copy()

    clock.play(worker(i) for i in range(s.nodes))
    return xs, centre.c


class Nesterov:
    """Delayed Nesterov: Liu et al. 2024, Algorithm 3 with c = 0, in rates of a single difference."""

    def __init__(self, c: Array, rate: float, beta: float, buffer: int) -> None:
        self.c, self.m, self.differences = c, np.zeros_like(c), []
        self.rate, self.beta, self.buffer, self.updates = rate, beta, buffer, 0

    def update(self, D: Array) -> Array:
        self.updates += 1
        self.differences.append(D)
        self.c = self.c - self.rate * D
        if len(self.differences) == self.buffer:
            self.m = self.beta * self.m + np.mean(self.differences, axis=0)
            self.c = self.c - self.rate * self.buffer * self.beta * self.m
            self.differences = []
        return self.c


def towards(D: Array, m: Array, c_ok: float, k_s: float, beta_max: float, k_d: float, kappa: float) -> Array:
    """HeLoCo's change of one block, of which the part along m and the rest are apart. m: the moving average."""
    length, v = np.linalg.norm(D), m / np.linalg.norm(m)
    along = float(D @ v)
    rest, cosine = D - along * v, along / length
    conf = length / (length + kappa * np.linalg.norm(m))
    if cosine >= c_ok:
        return D
    if cosine < 0:
        return rest + (1 - min(k_s * -cosine * conf, beta_max)) * along * v
    r = min(k_d * (1 - cosine) * conf, 1)
    turned = (1 - r) * rest + ((1 - r) * along + r * length) * v
    return turned * length / np.linalg.norm(turned)


def decoupled(
    s: Setting, tau: int, fragments: int, delay: int, quorum: int, olr: float, beta: float
) -> tuple[Array, Array]:
    """Returns what the learners and the syncer hold at the end."""
    xs, theta, v, clock = s.xs(), s.c(), np.zeros(s.data.dim), Clock(s)
    ranges = np.array_split(np.arange(s.data.dim), fragments)
    waiting: list[dict[int, tuple[float, Array]]] = [{} for _ in ranges]
    arrived: list[list[tuple[int, Array]]] = [[] for _ in range(s.nodes)]

    def send(i: int, f: int, steps: int) -> Process:
        x = xs[i][ranges[f]].copy()
        yield s.latency_s
        if i not in waiting[f]:
            waiting[f][i] = steps, theta[ranges[f]] - x

    def fetch(i: int, f: int, sent_s: float) -> Process:
        yield max(0.0, sent_s - clock.now) + s.latency_s
        part, sums = ranges[f], waiting[f]
        if len(sums) >= quorum:
            total = sum(w for w, _ in sums.values())
            length = sum(w * np.linalg.norm(D) for w, D in sums.values()) / total
            u = np.sum([w * D / np.linalg.norm(D) for w, D in sums.values()], axis=0)
            D = length * u / np.linalg.norm(u)
            v[part] = beta * v[part] + D
            theta[part] -= olr * (D + beta * v[part])
            sums.clear()
        if i not in sums:
            answer = theta[part].copy()
            yield s.latency_s
            arrived[i].append((f, answer))

    def worker(i: int) -> Process:
        direction, begun, sent = Direction(s), [0] * fragments, {}
        for t in itertools.count(1):
            for f, answer in arrived[i]:
                xs[i][ranges[f]] = answer
                begun[f] = t - 1
            arrived[i].clear()
            if (yield from clock.step(i, t - 1, xs[i], direction)):
                return
            for f in range(fragments):
                left = (f + 1) * tau // fragments
                if t % tau == left % tau:
                    clock.start(send(i, f, t - begun[f]))
                    sent[f] = clock.now + 2 * s.latency_s
                if t > delay and (t - delay) % tau == left % tau:
                    clock.start(fetch(i, f, sent[f]))

    clock.play(worker(i) for i in range(s.nodes))
    return xs, theta


def gossip_pull(s: Setting, tau: int, peer: Callable[[int], int]) -> Array:
    """peer: draws the next peer of a worker."""
    xs, clock = s.xs(), Clock(s)
    published = s.xs()

    def worker(i: int) -> Process:
        x, direction = xs[i], Direction(s)
        for t in itertools.count():
            if t % tau == 0:
                j = peer(i)
                yield s.latency_s
                pulled = published[j].copy()
                yield s.latency_s
                x[:] = (x + pulled) / 2
            published[i] = x
            over = yield from clock.step(i, t, x, direction)
            published[i] = x
            if over:
                return

    clock.play(worker(i) for i in range(s.nodes))
    return xs


def gossip_push(
    s: Setting, tau: int, peer: Callable[[int], int], lost: Callable[[int], bool] = lambda rank: False
) -> Array:
    """lost: whether the next push of a worker is."""
    xs, clock = s.xs(), Clock(s)
    inbox: list[list[Array]] = [[] for _ in range(s.nodes)]

    def message(to: int, y: Array) -> Process:
        yield s.latency_s
        inbox[to].append(y)

    def worker(i: int) -> Process:
        x, direction, arrival = xs[i], Direction(s), 0.0
        for t in itertools.count():
            if t % tau == 0:
                j = peer(i)
                if clock.now < arrival:
                    yield arrival - clock.now
                if lost(i):
                    arrival = clock.now
                else:
                    clock.start(message(j, x.copy()))
                    arrival = clock.now + s.latency_s
            for y in inbox[i]:
                x[:] = (x + y) / 2
            inbox[i].clear()
            if (yield from clock.step(i, t, x, direction)):
                return

    clock.play(worker(i) for i in range(s.nodes))
    return xs


def adpsgd(s: Setting, tau: int, peer: Callable[[int], int | None]) -> Array:
    """peer: draws the next peer of a worker, None for a passive one."""
    xs, clock = s.xs(), Clock(s)
    averaging = [False] * s.nodes

    def average(i: int, j: int) -> Process:
        v = xs[i].copy()
        averaging[i] = True
        yield s.latency_s
        y = xs[j].copy()
        xs[j] = (v + y) / 2
        yield s.latency_s
        xs[i] += (y - v) / 2
        averaging[i] = False

    def worker(i: int) -> Process:
        direction = Direction(s)
        for t in itertools.count():
            if t % tau == 0 and not averaging[i] and (j := peer(i)) is not None:
                clock.start(average(i, j))
            if (yield from clock.step(i, t, xs[i], direction)):
                return

    clock.play(worker(i) for i in range(s.nodes))
    return xs
