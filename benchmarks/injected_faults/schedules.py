"""Draw what happens to a run from a number, and say how the run may end: the rules by which every trial is judged.

The rules are those of the table in docs/explanation/real_processes.md.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import product

TIMEOUT_S = 8.0  # engine.timeout_s; on a busy machine a healthy process can be silent for 4 s
NODES = 3
STEPS = 100
MARK_STEPS = 10
MARKS = STEPS // MARK_STEPS

LOCKSTEP = {
    "sync": ("algo=sync",),
    "choco": ("algo=choco",),
    "compressed": ("algo=compressed",),
    "corrected": ("algo=corrected",),
    "delayfree": ("algo=delayfree", "algo.tau=4"),
    "diloco": ("algo=diloco", "algo.tau=4", "algo.overlap=eager", "algo.olr=0.3"),
    "dpsgd": ("algo=dpsgd",),
    "localsgd": ("algo=localsgd", "algo.tau=4"),
    "noloco": ("algo=noloco", "algo.tau=4"),
    "relay": ("algo=relay",),
    "sgp": ("algo=sgp",),
    "sparta": ("algo=sparta", "algo.share=0.1", "algo.tau=4"),
    "streaming": ("algo=streaming", "algo.tau=8", "algo.fragments=2", "algo.delay=2"),
}
FREE_RUNNING = {
    "adpsgd": ("algo=adpsgd",),
    "gossip": ("algo=gossip",),
    "gossip push": ("algo=gossip", "algo.mode=push"),
    "easgd": ("algo=easgd", "algo.tau=2"),
    "easgd 2 servers": ("algo=easgd", "algo.tau=2", "algo.servers=2"),
    "asyncdiloco": ("algo=asyncdiloco", "algo.tau=2"),
    "decoupled": ("algo=decoupled", "algo.tau=4"),
    "downpour": ("algo=downpour",),
    "downpour 2 servers": ("algo=downpour", "algo.servers=2"),
}
SERVERLESS = ("adpsgd", "gossip", "gossip push")  # of those that run free
ALGORITHMS = {**LOCKSTEP, **FREE_RUNNING}
CYCLE = {"delayfree": 2, "diloco": 4, "streaming": 4}  # steps after which all that was under way has come; else 1

# kinds of faults by victim, with their weights
KINDS = {
    "worker": {
        "kill": 4, "stop": 2, "pause": 3, "long pause": 2, "cut control": 1, "cut snapshots": 2, "cut peer": 2,
    },
    "server": {"kill": 3, "stop": 1, "pause": 2, "long pause": 1, "cut control": 1, "cut snapshots": 1},
    "coordinator": {"kill": 3, "stop": 2, "pause": 3, "long pause": 1},
    "command": {"kill": 3, "pause": 2},
    "signals": {"INT": 3, "TERM": 2, "USR1": 2, "USR2": 1, "INT INT": 2, "USR1 TERM": 2},
    "disk": {"full": 1},
    "record": {"flipped": 2, "doubled": 1, "swapped": 1, "cut": 1, "other version": 2, "earlier checkpoint": 2},
    "second": {"at once": 2, "during": 2, "resume": 1},
}  # fmt: skip
VICTIMS = {"worker": 8, "server": 6, "coordinator": 3, "command": 2, "signals": 5, "disk": 2}
BESIDE = 2000  # from this number on, the record is damaged, or another command is typed for its folder
PHASES = {"start": 2, "marks": 6, "end": 1}

# How a run may end. lost: without a summary, since whoever writes it was killed. none: before there was a record or,
# where a run is gone on with, before anything in its record was touched.
COMPLETED, FAILED, INTERRUPTED, LOST, NONE = "completed", "failed", "interrupted", "lost", "none"


@dataclass(frozen=True)
class Fault:
    """What happens to one victim, and when.

    kind: of KINDS. name: of the process, like `worker 2`, or `command`, `signals`, `disk`; `record`, before it is gone
    on with; `second`, another command with the same folder. phase: start: delay_s after the command was typed, or as
    soon as the victim is there | marks: delay_s after that many marks were evaluated | end: delay_s after the last
    mark. pause_s: of a pause; else 0."""

    kind: str
    name: str
    phase: str
    marks: int
    delay_s: float
    pause_s: float

    @property
    def victim(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def numbers(self) -> list[signal.Signals]:
        """Return the signals that a victim named `signals` is sent."""
        return [signal.Signals[f"SIG{name}"] for name in self.kind.split()]


@dataclass(frozen=True)
class Schedule:
    """One run and what happens to it. algo: of ALGORITHMS. options: of the command line. faults: of the run at first.
    later: of the run when it is gone on with. damage: of its record before that."""

    number: int
    algo: str
    options: tuple[str, ...]
    faults: tuple[Fault, ...]
    later: tuple[Fault, ...]
    damage: Fault | None = None

    @property
    def lockstep(self) -> bool:
        return self.algo in LOCKSTEP

    def allowed(self, happened: Iterable[Fault], late: Collection[Fault]) -> set[str]:
        """Return how the run may end after those of its faults that have reached their victims.

        late: faults that came when all steps were made, or nearly so: marks are written later than their steps."""
        ends = {COMPLETED}
        for fault in happened:
            after = self._ends(fault) | ({COMPLETED} if fault in late else set())
            ends = {end for pair in product(ends, after) for end in _both(*pair)}
        return ends

    def _ends(self, fault: Fault) -> set[str]:
        """Return how a run may end to which only this happens."""
        early = {NONE} if fault.phase == "start" else set[str]()
        late = {COMPLETED} if fault.phase == "end" or fault in self.later else set[str]()
        match fault.victim, fault.kind:
            case ("second", _) | (_, "pause"):
                return {COMPLETED}
            case "signals", _:
                # the checkpoint waits for a process that stands still; meanwhile those that need not wait for it may
                # come to the end; so it does for a worker whose snapshots do not come
                waits = ("pause", "long pause", "stop", "cut snapshots")
                still = [other for other in self.faults if other.kind in waits]
                # a command that stands still does not hear the signal; its processes go on
                goes_on = any(not self.lockstep or other.victim in ("coordinator", "command") for other in still)
                return {INTERRUPTED} | late | early | ({COMPLETED} if goes_on else set())
            case "disk", _:  # an older checkpoint that goes may leave enough room for the rest
                return {FAILED, COMPLETED} | early
            case "command", _:
                return {LOST, NONE, COMPLETED}
            case "coordinator", "kill" | "stop":
                return {LOST, NONE} | late
            case "coordinator", _:  # others may have left when it goes on
                return {LOST, FAILED, COMPLETED} | early
            case "server", _:
                return {FAILED} | late
            case "worker", "cut peer":  # where nobody waits for it, the connection is made again
                return {COMPLETED} if self.algo in SERVERLESS else {FAILED, COMPLETED}
            case "worker", _ if self.lockstep:
                return {FAILED} | late
            case _:
                return {COMPLETED} | ({FAILED} if fault.phase == "start" else set())


def _both(first: str, second: str) -> set[str]:
    return {second} if first == COMPLETED else {first} if second == COMPLETED else {first, second}


def draw(number: int) -> Schedule:
    """Return the schedule with this number."""
    rng = random.Random(f"fault schedule {number}")
    algo = list(ALGORITHMS)[number % len(ALGORITHMS)]
    checkpoint_every_s = rng.choice(["0.2", "0.5", "60"])
    options = [*ALGORITHMS[algo], f"nodes={NODES}", f"engine.checkpoint_every_s={checkpoint_every_s}"]
    if rng.random() < 0.15:
        options.append("trace=true")
    faults = tuple(_fault(rng, algo) for _ in range(rng.choice([1, 1, 2])))
    again = (replace(_fault(rng, algo), phase="start", delay_s=rng.uniform(0, 1.5)),)
    drawn = Schedule(number, algo, tuple(options), faults, again if rng.random() < 0.25 else ())
    return drawn if number < BESIDE else _beside(rng, drawn)


def _beside(rng: random.Random, drawn: Schedule) -> Schedule:
    """Add a second command, or a signal and damage to the record that it leaves."""
    moment = Fault("INT", "signals", "marks", rng.randint(2, MARKS - 2), rng.uniform(0, 0.2), 0.0)
    if rng.random() < 0.4:
        (kind,) = rng.choices(list(KINDS["second"]), list(KINDS["second"].values()))
        second = replace(moment, kind=kind, name="second")
        if kind == "during":
            return replace(drawn, faults=(second, *drawn.faults[:1]))
        if kind == "resume":
            return replace(drawn, faults=(second,), later=())
        second = replace(second, phase="start", marks=0, delay_s=rng.uniform(0, 0.05))
        resumed = rng.random() < 0.5
        return replace(drawn, faults=(moment if resumed else second,), later=(second,) if resumed else ())
    (kind,) = rng.choices(list(KINDS["record"]), list(KINDS["record"].values()))
    damage = Fault(kind, "record", "start", 0, rng.random(), 0.0)  # delay_s: where, from the first line to the last
    others = drawn.faults[:1] if rng.random() < 0.3 else ()
    often = ("engine.checkpoint_every_s=0.2",) if kind == "earlier checkpoint" else ()
    return replace(drawn, faults=(moment, *others), damage=damage, options=(*drawn.options, *often))


def _fault(rng: random.Random, algo: str) -> Fault:
    servers = 0 if algo in LOCKSTEP or algo in SERVERLESS else 2 if "2 servers" in algo else 1
    weights = {victim: weight for victim, weight in VICTIMS.items() if victim != "server" or servers}
    (victim,) = rng.choices(list(weights), list(weights.values()))
    (kind,) = rng.choices(list(KINDS[victim]), list(KINDS[victim].values()))
    number = rng.randrange({"worker": NODES, "server": servers}.get(victim, 1))
    name = f"{victim} {number}" if victim in ("worker", "server") else victim
    (phase,) = rng.choices(list(PHASES), list(PHASES.values()))
    marks = rng.randint(1, MARKS - 1) if phase == "marks" else 0
    delay_s = rng.uniform(0, {"start": 0.6, "marks": 0.2, "end": 0.1}[phase])
    pause_s = rng.uniform(0.2, TIMEOUT_S / 2) if kind == "pause" else TIMEOUT_S + 2 if kind == "long pause" else 0.0
    return Fault(kind, name, phase, marks, delay_s, pause_s)
