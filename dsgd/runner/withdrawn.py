"""List what the last release had and this one has not: withdrawn keys, choices and flags, and classes that have moved.

An entry stays for one release."""

from __future__ import annotations

from typing import Any

OWN_TOPOLOGY = "a class of your own with build(nodes, seed), as _target_ in topology/NAME.yaml below --config-dir"
# key: its former default, which a stored configuration may have, and what to use instead. An option of one algorithm
# stands behind its name, as "algo=gossip algo.peers"; a choice of a group has no default
WITHDRAWN: dict[str, tuple[Any, str]] = {
    "topology=file": (None, f"name {OWN_TOPOLOGY}"),
    "topology=random_regular": (None, f"topology=hypercube or torus has as few neighbours, or name {OWN_TOPOLOGY}"),
    "algo=gossip algo.peers": ("uniform", "a peer is any other worker; algo=adpsgd algo.peers=topology has a graph"),
    "algo=adpsgd algo.tau": (1, "an average begins with every gradient; algo=gossip algo.tau averages less often"),
    "algo=easgd algo.average": (False, "the output model is the centre"),
    "algo=asyncdiloco algo.servers": (1, "the global server is on one node, whose rate is cluster.server_bandwidth"),
    "algo=downpour algo.server_nesterov": (False, "algo.server_optimizer=momentum is heavy ball"),
    "algo=downpour algo.adagrad_eps": (1e-8, "algo.server_optimizer=adagrad adds 1e-8 to its sum of squares"),
    **{
        f"algo={name} algo.seed": (None, "seed, the key of the run, seeds it as well")
        for name in ("choco", "compressed", "noloco", "sparta")
    },
    "schedule.final": (0.0, "the cosine ends at 0"),
    "data.seed": (0, "generated data are the same in every run; seed orders them"),
    "topology.rows": (None, "the torus is as square as the number of nodes allows; topology=ring has one row"),
    "engine.restarts": (0, "the others continue without a dead worker; resume=FOLDER begins with all of them again"),
    "eval.sharded": (None, "the coordinator evaluates; eval.every_epochs and eval.every_steps set how often"),
}

# the former import path of a class that stored configurations and files of users name
MOVED = {
    "dsgd.optimizer.SGD": "dsgd.optim.optimizer.SGD",
    "dsgd.optimizer.AdamW": "dsgd.optim.optimizer.AdamW",
    "dsgd.muon.Muon": "dsgd.optim.muon.Muon",
    "dsgd.schedule.Schedule": "dsgd.optim.schedule.Schedule",
}

# a flag of dsgd-run: what to use instead
FLAGS = {
    "--hydra-help": "--help names every flag and key",
    "--info": "--cfg job prints what is composed",
    "-i": "--cfg job prints what is composed",
    "--package": "--cfg job prints the whole configuration",
    "-p": "--cfg job prints the whole configuration",
    "--run": "without -m a command line is one run",
    "-r": "without -m a command line is one run",
    "--config-path": "--config-dir adds a folder",
    "-cp": "--config-dir adds a folder",
    "--experimental-rerun": "resume=FOLDER resumes a run",
}


def entry(key: str, algorithm: str | None = None) -> str | None:
    """Return the name under which WITHDRAWN has a key; None if it does not. algorithm: the one that is configured."""
    names = (key, f"algo={algorithm} {key}")
    return next((name for name in names if name in WITHDRAWN), None)


def explained(key: str, algorithm: str | None = None) -> str | None:
    """Return the error text for a withdrawn key or choice; None for any other. algorithm: as above."""
    name = entry(key, algorithm)
    return f"{name} is withdrawn: {WITHDRAWN[name][1]}" if name else None
