"""The rules of single options, and bad input in files; tests/system/core/test_bad_input.py has each kind of message."""

from __future__ import annotations

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from dsgd.cli.compose import composed
from dsgd.runner.configuration import configure
from dsgd.runner.plan import plan_run
from dsgd.runner.values import WITHDRAWN, ConfigError
from tests.support.command import refusal
from tests.system.core.test_bad_input import split

ROOT = Path(__file__).parents[3]
GROUPS = {"algo", "cluster", "data", "engine", "experiment", "model", "optimizer", "schedule", "topology"}

# of two regions, as typed
LINKS = "{regions: [a, b], latency_s: [[null, 0.1], [null, null]], bandwidth: [[null, 9], [9, null]]}"

# what is typed -> what the line must contain
RULES = """
algo=easgd algo.alpha=1.5 -> algo.alpha must be in [0, 1], got 1.5
algo=easgd algo.variant=both -> algo.variant must be one of async, sync, round_robin, got 'both'
algo=easgd algo.variant=sync algo.servers=2 -> algo.servers must be 1 (unused) with algo.variant=sync, got 2
algo=downpour algo.n_push=0 -> algo.n_push must be >= 1, got 0
algo=adpsgd algo.peers=topology nodes=5 -> algo.peers=topology must have a bipartite graph ... topology=ring
algo=corrected algo.method=qg optimizer.momentum=0.9 -> optimizer.momentum must be 0 ... got 0.9
algo=streaming algo.fragments=21 -> algo.fragments must be in [1, tau = 20] ... got 21
algo=streaming algo.delay=5 -> algo.delay must be in [0, tau / fragments = 5) ... got 5
algo=streaming algo.bits=5 -> algo.bits must be one of 32, 16, 8, 4 ... got 5
algo=compressed algo.code=zip -> algo.code must be one of powersgd, topk, randomk, sign ... got 'zip'
algo=compressed algo.share=0 -> algo.share must be in (0, 1] ... got 0
algo=choco algo.compressor=powersgd -> algo.compressor must be one of topk, randomk, sign ... got 'powersgd'
algo=choco topology=one_peer_exponential -> algo=choco needs an undirected topology that does not change, got
algo=relay topology=ring nodes=5 -> algo=relay needs a tree: topology=chain, binary_tree or star, got topology=ring
algo=relay topology=one_peer_exponential -> algo=relay needs a tree ... got topology=one_peer_exponential with
algo=diloco algo.outer=adam -> algo.outer must be one of nesterov, heavy_ball, slowmo ... got 'adam'
algo=diloco algo.code=sparse algo.overlap=eager -> algo.code must be none with algo.overlap=eager ... got 'sparse'
algo=diloco algo.kept=5000 -> algo.kept must be in [1, chunk = 4096] ... got 5000
algo=diloco algo.bits=9 -> algo.bits must be 2 to 8, or 32 ... got 9
algo=asyncdiloco algo.group=3 nodes=8 -> algo.group must divide the number of nodes (nodes=8) ... got 3
algo=asyncdiloco algo.local_beta=1 -> algo.local_beta must be in [0, 1) ... got 1
algo=asyncdiloco algo.slow_nodes={0: 0} -> algo.slow_nodes must have factors > 0 ... got {0: 0.0}
algo=decoupled algo.fragments=30 -> algo.fragments must be in [1, tau = 24] ... got 30
algo=decoupled algo.quorum=9 nodes=8 -> algo.quorum must be <= nodes = 8 ... got 9
algo=sparta algo.share=0 -> algo.share must be in (0, 1] ... got 0
algo=diloco algo.beta=1 -> algo.beta must be in [0, 1) ... got 1
algo=sgp algo.overlap=-1 -> algo.overlap must be >= 0, got -1
algo=localsgd nodes=6 algo.group=4 -> algo.group must divide the number of nodes (nodes=6), got 4
algo=localsgd algo.group=2 algo.inner_tau=3 -> algo.inner_tau must divide tau (4), got 3
algo=localsgd algo.momentum=half -> algo.momentum must be one of keep, zero, average ... got 'half'
algo=delayfree algo.tau=3 -> algo.tau must be even ... got 3
algo=gossip algo.mode=pool -> algo.mode must be pull or push, got 'pool'
algo.backups=1 -> algo.overlap must be false with backups: ... got true
algo.elastic=true -> algo.overlap must be false with elastic
algo.overlap=false algo.backups=1 algo.elastic=true -> algo.backups must be 0 with elastic, got 1
algo=localsgd algo.switch=2 algo.elastic=true -> algo.switch must be 0 with elastic, got 2
algo=localsgd algo.group=2 algo.elastic=true -> algo.group must be 1 with elastic, got 2
algo=diloco algo.overlap=eager algo.elastic=true -> algo.overlap must be none with elastic, got 'eager'
algo=diloco algo.overlap=backward engine=dist -> algo.overlap must not be backward with engine=dist
algo=diloco algo.overlap=backward cluster.collective=star cluster.collective_messages=true -> cluster.collective_mess
algo=diloco algo.elastic=true engine=dist -> algo.elastic must be false with engine=dist, which ends without a worker
++engine.name=both -> engine.name must be one of auto, sim, dist, torch, got 'both'
engine=dist eval.conservation=true -> eval.conservation must be false with engine=dist, got true
engine.workers_per_gpu=0 -> engine.workers_per_gpu must be >= 1, got 0
engine.workers_per_gpu=2 engine.gpus_per_node=2 -> engine.gpus_per_node must be 1 or null where workers_per_gpu = 2
engine=torch -> engine=torch must be started by torchrun or srun ... torchrun --nproc-per-node=8
engine=torch algo=easgd -> engine must be sim or dist with algo=easgd, got torch: its workers ask a parameter server
engine=dist engine.collectives=mpi -> engine.collectives must be one of own, torch, got 'mpi'
engine=dist engine.collectives=torch engine.workers_per_gpu=2 -> engine.collectives must be own where workers_per_gpu
++schedule.milestones=[3] -> schedule.milestones must be left to kind=step, got [3.0] with kind=constant
mlflow.timeout_s=-1 -> mlflow.timeout_s must be finite and >= 0, got -1.0
nodes=10000 -> nodes must be <= 1437 (the training samples), got 10000
nodes=1000000000 -> nodes must be <= 16384, got 1000000000
batch_size=0 -> batch_size must be >= 1, got 0
seed=99999999999999999999 -> seed must be < 2^63, got 99999999999999999999
optimizer=adamw optimizer.nesterov=true -> optimizer.nesterov is not a key of
optimizer=muon algo=corrected algo.method=qg -> optimizer.momentum must be 0, got 0.95
optimizer.momentum=1 -> optimizer.momentum must be in [0, 1), got 1
optimizer=adamw optimizer.betas=[0.9] -> optimizer.betas must be two numbers in [0, 1), got [0.9]
optimizer.nesterov=true optimizer.momentum=0 -> optimizer.nesterov must be false when optimizer.momentum is 0, got true
engine.checkpoint_every_s=0 -> engine.checkpoint_every_s must be > 0 or null, got 0
eval.every_steps=0 -> eval.every_steps must be > 0 or null, got 0
schedule=step schedule.gamma=1e20 schedule.milestones=[1,2,3] -> optimizer.lr must stay <= 1e+30 through schedule.*,
schedule.warmup_epochs=-1 -> schedule.warmup_epochs must be finite and >= 0, got -1
eval.every_time_s=1e-12 -> eval.every_time_s must be >= ... 1,000,000 marks in ... got 1e-12
engine=dist budget.time_s=10 eval.every_time_s=1e-9 -> eval.every_time_s must be >= ... got 1e-09
eval.every_epochs=1e-12 -> eval.every_epochs must be at least one sample ... (eval.every_epochs=1e-12)
eval.batch_norm=none -> eval.batch_norm must be auto, average or recalibrate, got 'none'
eval.diverged_factor=1 -> eval.diverged_factor must be > 1, got 1
eval.workers=0 -> eval.workers must be all, none or a number >= 1, got 0
eval.workers=some -> eval.workers must be all, none or a number >= 1, got 'some'
eval.test_folds=true engine=dist -> eval.test_folds must be false with engine=dist, got true
experiment=quadratic engine=sim engine.gradients=none eval.conservation=true -> eval.conservation must be false with
target.accuracy=0 -> target.accuracy must be in (0, 1] or null, got 0
target.stop=true -> target.stop must be false without target.accuracy or target.loss, got true
budget.epochs=1e300 -> budget must be < 2^63 samples, got 1.44e+303
cluster.failures={every_s: 1e7, repair_s: 3600} budget.time_s=60 -> cluster.failures: repair_s must be <=
cluster.failures={every_s: 1} -> cluster.failures must be {every_s, repair_s} with or without repair_median_s, or
cluster.failures={every_s: 1, repair_s: -1} -> cluster.failures: repair_s must be > 0 and <= 1e+09, got -1
cluster.failures={every_s: 1, repair_s: 1, repair_median_s: 2} -> cluster.failures: repair_median_s must be <= repair_s
cluster.failures={every_s: 1, repair_s: 1, server_checkpoint_s: -1} -> cluster.failures: server_checkpoint_s must be >=
cluster.gradient_s=1 cluster.failures={every_s: 0.5, repair_s: 1} -> cluster.failures: every_s must be >= 1, the longest
budget.epochs=null -> budget must give at least one of epochs, samples, steps, time_s, got none
budget.samples=5 -> budget must allow one step of 128 samples, got 5
budget.epochs=0 -> budget.epochs must be > 0 or null, got 0
budget.time_s=inf -> budget.time_s must be > 0 or null, got inf
data.split_alpha=0 -> data.split_alpha must be in (0, 1e+15], got 0
data.validation=1.0 -> data.validation must be in [0, 1), got 1.0
data.validation=1e-9 -> data.validation must hold out at least one of 1437 training samples
data.validation=0.9999 -> data.validation must hold out at least one of 1437 training samples
data.evaluate=validation -> data.evaluate must be test with data.validation=0, got validation
data.evaluate=train data.validation=0.1 -> data.evaluate must be one of test, validation, got 'train'
cluster.jitter_distribution=pareto -> cluster.jitter_distribution must be one of gamma, lognormal, normal, got
cluster.jitter_distribution=normal cluster.jitter=0.5 -> cluster.jitter must be <= 1/3 with
cluster.collective=hub -> cluster.collective must be one of best, ring ... hierarchical, star, store, got 'hub'
cluster.collective_messages=true -> cluster.collective must be one of ring, ... store with collective_messages=true,
cluster.collective=star cluster.servers_colocated=true -> cluster.servers_colocated must be false ... got true
cluster.slow_nodes={3: -1} -> cluster.slow_nodes must give a factor in [1e-06, 1e+06], got -1.0 for node 3
cluster.stalls=[{node: 1}] -> cluster.stalls must be {node, start_s, duration_s} ... got {'node': 1}
cluster.stalls=[{node: 9, start_s: 1, duration_s: 1}] -> cluster.stalls must name nodes in 0..7 ... got 9
cluster.stalls=[{every_s: 1e-9, duration_s: 1}] -> cluster.stalls: every_s must be >= ... got 1e-09
cluster.stalls=[{node: 1, start_s: inf, duration_s: 1}] -> cluster.stalls: start_s must be <= 1e+09, got inf
cluster.jitter=1e-308 -> cluster.jitter must be 0 or in [0.001, 1000], got 1e-308
cluster.jitter=0.5 cluster.jitter_distribution=lognormal cluster.jitter_skew=1 -> cluster.jitter_skew must be in
cluster.jitter=0.1 cluster.jitter_skew=1 -> cluster.jitter_skew must be null without jitter and
cluster=islands cluster.congestion=[{every_s: 9, duration_s: 1, factor: 0.5}] -> cluster.collective_messages must be
cluster.congestion=[{start_s: 9, duration_s: 1, factor: 0.5}] -> cluster.congestion must be [] without islands
cluster.congestion=[{start_s: 9, factor: 0.5}] -> cluster.congestion must be {start_s, duration_s, factor} or
cluster.congestion=[{every_s: 9, duration_s: 1, factor: 0}] -> cluster.congestion: factor must be in [0.001, 1], got 0
cluster.loss=1 -> cluster.loss must be in [0, 1), got 1
cluster.loss=0.1 -> cluster.collective_messages must be true with loss
cluster=islands nodes=5 -> cluster.islands must divide the number of nodes (nodes=5), got 2
cluster=islands cluster.wan_latency_s=0 -> cluster.wan_latency_s must be >= latency_s (5e-05), got 0
cluster=islands cluster.collective=tree -> cluster.collective must be one of best, ring, hierarchical ... 'tree'
cluster.window_bytes=100 -> cluster.window_bytes must be in [1500, 1e+15], a packet or more, got 100
cluster.protocol_efficiency=1.1 -> cluster.protocol_efficiency must be in (0, 1], got 1.1
cluster.links=LINKS cluster.collective=tree -> cluster.collective must be one of best, ring with links
cluster.links=LINKS nodes=5 -> cluster.links.nodes must be given where 2 regions
cluster.links=LINKS cluster.links.bandwidth=[[null, 9], [9]] -> cluster.links.bandwidth must be 2 rows of 2 ... from
cluster.links=LINKS cluster.links.latency_s=[[null, far], [null, null]] -> cluster.links.latency_s from a to b must be
cluster.links={regions: [a, b]} -> cluster.links must be {regions, latency_s, bandwidth} ... got regions
cluster.node_bandwidth={3: 0.5} -> cluster.node_bandwidth must give bit/s in [1, 1e+18], got 0.5 for node 3
model.hidden=[1000000000] -> model.hidden must be a list of at most 2048 widths in [1, 65536]
model=resnet20 data=shapes model.depth=10 -> model.depth must be 6n + 2 with n >= 1 (8, 14, 20, ...), got 10
model=resnet20 data=shapes model.width=0 -> model.width must be in [1, 4096], got 0
model=resnet20 data=shapes model.norm=layer -> model.norm must be batch or group, got 'layer'
data=shapes data.train_size=1000000000000 -> data.train_size must be <= 16777216 with resolution=16, channels=1
data=shapes data.resolution=4 -> data.resolution must be in [8, 1024], got 4
data=shapes data.noise=nan -> data.noise must be in [0, 1], got nan
data=cifar10 data.classes=20 -> data.classes must be 10 or 100, got 20
data=fashion_mnist data.collection=cifar -> data.collection must be one of fashion_mnist, mnist, kmnist, emnist, got
data=fashion_mnist data.subset=letters -> data.subset must be null with collection=fashion_mnist, got 'letters'
data=emnist data.subset=all -> data.subset must be one of balanced, byclass ... letters, mnist, got 'all'
experiment=quadratic data.dim=1e18 -> data.dim must be in [1, 1000000000], got 1000000000000000000
experiment=quadratic data.condition=0.5 -> data.condition must be in [1, 1e+300], got 0.5
data=imagenet-like data.samples_per_class=1e18 -> data.samples_per_class must be <= 1000000 with classes=10
data=imagenet-like data.on_error=ignore -> data.on_error must be one of skip, fail, got 'ignore'
data=imagenet-like data.max_pixels=0 -> data.max_pixels must be in [1, 134217728], got 0
data=imagenet-like data.workers=1000000 -> data.workers must be in [1, 1024] or null, got 1000000
topology=complete nodes=16384 engine.gradients=none -> topology must have at most 16777216 weights, got 268435456 of
topology=torus nodes=7 -> topology=torus needs nodes = rows x columns, both >= 2, got nodes=7
model=gpt data=text model.heads=3 -> model.heads must divide width (64), got 3
model=gpt data=text data.context=20000 -> data.context must be <= 19999 (training and test have 180000 and 20000
model=gpt data=text data.context=0 -> data.context must be in [1, 65536], got 0
model=gpt data=text data.generated_bytes=14 -> data.generated_bytes must give 2 bytes each for training and test
"""
OF_LINKS = (
    f"cluster.links={LINKS} cluster.collective=ring cluster.collective_messages=true "
    "cluster.congestion=[{start_s: 9, duration_s: 1, factor: 0.5, between: [a, c]}]",
    "cluster.congestion: between must name regions of links (a, b), got c",
)


@cache
def composed_once(choices: tuple[str, ...]) -> dict[str, Any]:
    return composed(choices)


def planned(line: str) -> str:
    """Return the error of a configuration, whose files are composed once for all that choose the same ones."""
    given = OverridesParser.create().parse_overrides(split(line))
    choices = [override for override in given if override.key_or_group in GROUPS]
    values = copy.deepcopy(composed_once(tuple(str(override.input_line) for override in choices)))
    for override in given:
        if override not in choices:
            *groups, name = override.key_or_group.split(".")
            place = values
            for group in groups:
                place = place[group]
            place[name] = override.value()
    with pytest.raises(ConfigError) as refused:
        plan_run(values, split(line))
    return str(refused.value)


def test_every_option_has_a_rule_that_names_it() -> None:
    rules = [tuple(text.split(" -> ")) for text in RULES.replace("LINKS", LINKS).strip().splitlines()]
    for line, rule in [*rules, OF_LINKS]:
        text = planned(line)
        assert "\n" not in text
        assert [part for part in rule.split(" ... ") if part not in text] == [], (line, text)


WHOLE = [
    (
        "experiment=quadratic data.dim=20 algo=streaming algo.tau=60 algo.fragments=21",
        "algo.fragments must be <= 20 (the parameters of this model)",
        "got 21",
    ),
    ("engine=dist engine.gpus_per_node=0 precision=tf32", "precision must be fp32, fp64, bf16 or fp16 on a CPU"),
    ("data=fashion_mnist data.resolution=10", "data.resolution must be 4, 7, 14 or 28, got 10"),
    ("resume=/dev/zero", "resume must be a checkpoint or a folder with checkpoint.pt, got /dev/zero"),
    (f"hydra.run.dir={'x' * 300}", "hydra.run.dir must be a word of at most 255 bytes, or a path", "got 'xxx"),
    ("data=import data.target=x.y data.classes=1", "data.classes must be >= 2, got 1"),
    ("algo gossip", "an override must be key=value, got algo; as in algo=VALUE"),
    ("--cfg jobs", "--cfg", "'jobs'"),
    ("--cfg job nodes=2,4", "nodes must be one value, got 2,4"),
    ("-sc query", "--shell-completion must be followed by install=SHELL", "got query"),
    ("budget={epoch:3}", "budget.epoch is not a key of the configuration; did you mean budget.epochs?"),
    ("model.hidden.7=3", "model.hidden.7 is not a key of the configuration; did you mean model.hidden?"),
    # what Hydra's own commands have
    ("--config-path nope", "--config-path is withdrawn: --config-dir adds a folder"),
    ("--info", "--info is withdrawn: --cfg job prints what is composed"),
    ("-m nodes=2,4 hydra/launcher=joblib", "hydra/launcher is withdrawn", "dsgd-sweep", "dsgd.run"),
    ("-m nodes=2,4 hydra.launcher.n_jobs=2", "hydra.launcher.n_jobs is withdrawn", "dsgd-sweep"),
    ("hydra.job.chdir=true", "hydra.job.chdir must not be given: of Hydra's keys dsgd-run reads hydra.run.dir, "),
    ("-m hydra.sweep.dir=a,b", "hydra.sweep.dir must be one value, got a,b"),
    ("-m nodes=2,4 sweep.jobs=1,2", "sweep.jobs must be one value, got 1,2"),
    ("-m nodes=2,4 +sweep.threads=2", "sweep.threads is not a key of SweepOptions; it has jobs"),
]


def test_what_only_a_command_line_has_is_refused_in_one_line(here: Path) -> None:
    for line, *parts in WHOLE:
        said = refusal(*split(line))
        assert [part for part in parts if part not in said] == [], (line, said)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("model=import model.target=nobodys.net", "nobodys.py"),
        ("data=import data.target=nobodys.x.y data.classes=2", "nobodys"),
        ("algo._target_=nobodys.Net", None),
    ],
)
def test_a_module_in_the_current_folder_is_told_how_it_is_found(line: str, found: str | None, here: Path) -> None:
    if found is not None:
        (here / found).touch()
    said = refusal(*split(line))
    assert "got 'nobodys." in said
    assert (f"; {found} is in this folder: PYTHONPATH=. before the command" in said) == (found is not None)
    assert ("PYTHONPATH" in said) == (found is not None)


def test_a_trace_of_one_rank_is_refused(here: Path) -> None:
    (here / "given.csv").write_text("step,rank,seconds\n1,0,0.5")
    rule = "cluster.compute_trace must have at least 2 ranks (nodes=4), as one tells nothing about the others"
    assert planned("nodes=4 cluster.compute_trace=given.csv").startswith(rule)


# where a withdrawn key was one of some choices alone
CHOICES_WITH = {"topology.rows": ["topology=torus"]}


def test_a_withdrawn_key_says_what_to_use_instead(here: Path) -> None:
    """On a command line and in a file of the user's; its former default in a stored configuration is no error."""
    for entry, (default, instead) in WITHDRAWN.items():
        line = f"{entry} is withdrawn: {instead}"
        *choices, key = [*CHOICES_WITH.get(entry, []), *entry.split()]
        group, _, name = key.partition("." if "." in key else "=")
        assert refusal(*choices, key if "=" in key else f"{key}=7") == f"{line}\n"
        stored = composed(choices)
        values, former = stored[group], {"_target_": "dsgd.Gone", "name": name} if "=" in key else {name: "another"}
        with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
            configure(stored | {group: values | former})
        if "=" not in key:
            configure(stored | {group: values | {name: stored["seed"] if name == "seed" else default}})
    assert not list(here.iterdir())


@pytest.mark.parametrize("group", ["launcher", "sweeper"])
def test_a_plugin_of_hydra_in_a_file_of_the_users(group: str, here: Path) -> None:
    (here / "hydra" / group).mkdir(parents=True)
    (here / "hydra" / group / "other.yaml").write_text("_target_: nobody.Other\n")
    (here / "mine.yaml").write_text(f"defaults:\n  - config\n  - override hydra/{group}: other\n  - _self_\n")
    said = refusal("-m", "nodes=2,4", "--config-dir", str(here), "--config-name", "mine")
    assert said.startswith(f"hydra/{group} is withdrawn: dsgd-run -m runs jobs on this machine, dsgd-sweep on ")
    assert {path.name for path in here.iterdir()} == {"hydra", "mine.yaml"}
