"""Bad input ends before anything starts: exit status 2, one line with key, rule and value, nothing left on disk."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dsgd.cli.compose import composed
from dsgd.runner.configuration import configure
from dsgd.runner.values import ConfigError
from dsgd.runner.withdrawn import WITHDRAWN
from tests.support.command import call, environment, shell

ROOT = Path(__file__).parents[3]

# of two regions, as typed
LINKS = "{regions: [a, b], latency_s: [[null, 0.1], [null, null]], bandwidth: [[null, 9], [9, null]]}"

# what is typed; what the line must contain
CASES = [
    # names
    ("algo=gosip", "algo must be one of", "sync", "got 'gosip'", "did you mean gossip?"),
    ("algo=powersgd", "algo must be one of", "got 'powersgd'; that is algo=compressed algo.code=powersgd here"),
    ("algo=Slow-Mo", "algo must be one of", "got 'Slow-Mo'; that is algo=diloco algo.outer=slowmo here"),
    ("algo=diloco algo.outer_lr=1", "algo.outer_lr is not a key of the configuration; did you mean algo.olr?"),
    ("algo=choco algo.code=topk", "algo.code is not a key of the configuration; did you mean algo.compressor?"),
    ("model=resnet", "model must be one of", "got 'resnet'", "did you mean resnet8 or"),
    ("data=digit", "data must be one of", "got 'digit'", "did you mean digits?"),
    ("topology=hyper", "topology must be one of", "got 'hyper'", "did you mean hypercube?"),
    ("cluster=gigabyte", "cluster must be one of", "got 'gigabyte'", "gigabit"),
    ("experiment=quadratc", "experiment must be one of", "got 'quadratc'", "did you mean quadratic?"),
    ("optimizer=adam", "optimizer must be one of adamw, muon, sgd", "got 'adam'"),
    ("algo=", "algo must be one of", "got ''"),
    ("algo=3", "algo must be the name of one choice, got 3"),
    ("algo=null", "algo must be the name of one choice, got null"),
    ("algo=[sync,gossip]", "algo must be the name of one choice, got [sync,gossip]"),
    # keys
    ("node=4", "node is not a key of the configuration; did you mean nodes"),
    ("foo=1", "foo is not a key of the configuration"),
    ("+foo=1", "foo is not a key of the configuration; it has nodes, batch_size"),
    ("algo=gossip algo.taus=3", "algo.taus is not a key of the configuration; did you mean algo.tau?"),
    ("algo.tau=3", "algo.tau is not a key of the configuration; algo=sync has overlap"),
    ("+algo.tau=3", "algo.tau is not a key of Sync; it has backups, elastic, overlap"),
    ("optimiser.lr=1", "optimiser.lr is not a key of the configuration; did you mean optimizer.lr?"),
    ("budget.epoch=3", "budget.epoch is not a key of the configuration; did you mean budget.epochs?"),
    ("topo=ring", "topo is not a key of the configuration; did you mean topology?"),
    ("algo@foo=gossip", "algo@foo is not a key"),
    ("~seed", "seed must be given, got ~seed; seed=VALUE changes it"),
    ("~nodes", "nodes must be given, got ~nodes; nodes=VALUE changes it"),
    ("~algo", "algo must be given, got ~algo; algo=NAME changes it"),
    ("~budget", "budget must be given, got ~budget; budget=VALUE changes it"),
    ("~cluster.bandwidth", "cluster.bandwidth must be given, got nothing"),
    ("model=import", "model.target must be given, got nothing"),
    # keys that nothing would come of
    (
        "schedule._target_=my.Schedule",
        "schedule._target_ must be dsgd.optim.schedule.Schedule or not given, got 'my.Sch",
    ),
    ("++budget._target_=my.Budget", "budget._target_ must be dsgd.experiment.Budget or not given, got 'my.Budget'"),
    ("++engine._target_=x", "engine._target_ must be dsgd.runner.configuration.EngineOptions or not given, got 'x'"),
    ("++eval._target_=x", "eval._target_ must be dsgd.experiment.Evaluation or not given, got 'x'"),
    ("++target._target_=x", "target._target_ must be dsgd.experiment.Target or not given, got 'x'"),
    ("++wandb._target_=x", "wandb._target_ must be dsgd.record.trackers.WandbOptions or not given, got 'x'"),
    ("-m seed=0,1 ++sweep._target_=x", "sweep._target_ must be dsgd.runner.configuration.SweepOptions or not given"),
    ("++schedule._partial_=true", "schedule._partial_ is not a key of Schedule"),
    ("++algo._args_=[1]", "algo._args_ is not a key of Sync"),
    ("++data._recursive_=false", "data._recursive_ is not a key of Digits"),
    ("++cluster._convert_=all", "cluster._convert_ is not a key of Cluster"),
    ("++budget.name=x", "budget.name is not a key of Budget"),
    ("++eval.name=x", "eval.name is not a key of Evaluation"),
    ("-m seed=0,1 ++sweep.name=x", "sweep.name is not a key of SweepOptions"),
    ("++algo.name=gossip", "algo.name is not a key of Sync, which algo=sync names, got 'gossip'"),
    ("++schedule.name=x", "schedule.name is not a key of Schedule, which schedule=constant names, got 'x'"),
    ("++topology.name=x", "topology.name is not a key of Ring, which topology=ring names, got 'x'"),
    ("++engine.name=both", "engine.name must be one of auto, sim, dist, torch, got 'both'"),
    ("++schedule.milestones=[3]", "schedule.milestones must be left to kind=step, got [3.0] with kind=constant"),
    ("schedule=cosine ++schedule.gamma=0.5", "schedule.gamma must be left to kind=step, got 0.5 with kind=cosine"),
    ("sweep.jobs=2", "sweep.jobs must be given with a sweep (-m) on this machine only, got sweep.jobs=2"),
    ("compare.seeds=3", "compare.seeds is not a key of a run: it belongs to dsgd-compare"),
    ("slurm.partition=gpu", "slurm.partition is not a key of a run: it belongs to dsgd-sweep submit"),
    # types
    ("nodes=two", "nodes must be an integer, got 'two'"),
    ("nodes=2.5", "nodes must be an integer, got 2.5"),
    ("nodes=true", "nodes must be an integer, got True"),
    ("nodes=null", "nodes must be an integer, got None"),
    ("nodes=", "nodes must be an integer, got ''"),
    ("nodes=[2,4]", "nodes must be an integer, got [2, 4]"),
    ("algo=gossip algo.tau=", "algo.tau must be an integer, got ''"),
    ("optimizer.lr=[1]", "optimizer.lr must be a number, got [1]"),
    ("trace=maybe", "trace must be true or false, got 'maybe'"),
    ("budget=null", "budget must be a group of keys, got None"),
    ("track=wandb", "track must be a list, got 'wandb'"),
    ("track=[nonsense]", "track must be a list of wandb, tensorboard, mlflow, got 'nonsense'"),
    ("mlflow.experiment=null", "mlflow.experiment must be a word, got None"),
    ("mlflow.timeout_s=-1", "mlflow.timeout_s must be finite and >= 0, got -1.0"),
    ("wandb=null", "wandb must be a group of keys, got None"),
    ("wandb.project=null", "wandb.project must be a word, got None"),
    ("model.hidden=3", "model.hidden must be a list, got 3"),
    ("cluster.slow_nodes=[3]", "cluster.slow_nodes must be a mapping like {3: 2.0}, got [3]"),
    ("cluster.slow_nodes={a:2}", "cluster.slow_nodes: every key must be an integer, got 'a'"),
    ("algo._target_=os.path", "algo._target_ must be the import path of a dataclass, got 'os.path'"),
    ("algo._target_=no.such", "algo._target_ must be the import path of a dataclass, got 'no.such'"),
    # ranges
    ("algo=gossip algo.tau=0", "algo.tau must be >= 1, got 0"),
    ("algo=easgd algo.tau=-1", "algo.tau must be >= 1, got -1"),
    ("algo=easgd algo.alpha=1.5", "algo.alpha must be in [0, 1], got 1.5"),
    ("algo=easgd algo.alpha=-0.1", "algo.alpha must be in [0, 1], got -0.1"),
    ("algo=easgd algo.variant=both", "algo.variant must be one of async, sync, round_robin, got 'both'"),
    (
        "algo=easgd algo.variant=sync algo.servers=2",
        "algo.servers must be 1 (unused) with algo.variant=sync, got 2",
    ),
    ("algo=easgd algo.servers=0", "algo.servers must be >= 1, got 0"),
    ("algo=downpour algo.n_push=0", "algo.n_push must be >= 1, got 0"),
    ("algo=adpsgd algo.tau=0", "algo.tau must be >= 1", "got 0"),
    ("algo=adpsgd algo.peers=ring", "algo.peers must be uniform or topology", "got 'ring'"),
    ("algo=adpsgd algo.peers=topology nodes=5", "algo.peers=topology must have a bipartite graph", "topology=ring"),
    ("algo=corrected algo.method=extra", "algo.method must be one of d2, tracking, qg, decentlam", "got 'extra'"),
    ("algo=corrected topology=exponential", "algo.method=d2 needs an undirected topology", "got topology=exponential"),
    ("algo=corrected algo.method=qg optimizer.momentum=0.9", "optimizer.momentum must be 0", "got 0.9"),
    ("algo=streaming algo.fragments=21", "algo.fragments must be in [1, tau = 20]", "got 21"),
    (
        "experiment=quadratic data.dim=20 algo=streaming algo.tau=60 algo.fragments=21",
        "algo.fragments must be <= 20 (the parameters of this model)",
        "got 21",
    ),
    ("algo=streaming algo.delay=5", "algo.delay must be in [0, tau / fragments = 5)", "got 5"),
    ("algo=streaming algo.bits=5", "algo.bits must be one of 32, 16, 8, 4", "got 5"),
    ("algo=streaming algo.mix=1.5", "algo.mix must be in [0, 1]", "got 1.5"),
    ("algo=noloco algo.gamma=-1", "algo.gamma must be >= 0", "got -1"),
    ("algo=compressed algo.code=zip", "algo.code must be one of powersgd, topk, randomk, sign", "got 'zip'"),
    ("algo=compressed algo.rank=32", "algo.rank must be <= 31 (more would compress no layer of this model), got 32"),
    ("-m algo=compressed algo.rank=2,4 model.hidden=[3]", "algo.rank must be <= 2 (more would", "got 4"),
    ("algo=compressed algo.rank=0", "algo.rank must be >= 1", "got 0"),
    ("algo=compressed algo.share=0", "algo.share must be in (0, 1]", "got 0"),
    ("algo=choco algo.compressor=powersgd", "algo.compressor must be one of topk, randomk, sign", "got 'powersgd'"),
    ("algo=choco algo.share=1.5", "algo.share must be in (0, 1]", "got 1.5"),
    ("algo=choco algo.gamma=-0.1", "algo.gamma must be >= 0", "got -0.1"),
    ("algo=choco algo.order=first", "algo.order must be one of paper, code", "got 'first'"),
    ("algo=choco topology=exponential", "algo=choco needs an undirected topology", "got topology=exponential"),
    (
        "algo=relay topology=ring nodes=5",
        "algo=relay needs a tree: topology=chain, binary_tree or star",
        "got topology=ring",
    ),
    ("algo=diloco algo.outer=adam", "algo.outer must be one of nesterov, heavy_ball, slowmo", "got 'adam'"),
    ("algo=diloco algo.overlap=all", "algo.overlap must be one of none, delayed, eager", "got 'all'"),
    ("algo=diloco algo.code=zip", "algo.code must be one of none, sparse", "got 'zip'"),
    (
        "algo=diloco algo.code=sparse algo.overlap=eager",
        "algo.code must be none with algo.overlap=eager",
        "got 'sparse'",
    ),
    ("algo=diloco algo.kept=5000", "algo.kept must be in [1, chunk = 4096]", "got 5000"),
    ("algo=diloco algo.bits=9", "algo.bits must be 2 to 8, or 32", "got 9"),
    ("algo=diloco algo.decay=2", "algo.decay must be in [0, 1]", "got 2"),
    ("algo=asyncdiloco algo.buffer=0", "algo.buffer must be >= 1", "got 0"),
    ("algo=asyncdiloco algo.group=3 nodes=8", "algo.group must divide the number of nodes (nodes=8)", "got 3"),
    ("algo=asyncdiloco algo.local_beta=1", "algo.local_beta must be in [0, 1)", "got 1"),
    ("algo=asyncdiloco algo.slow_nodes={0: 0}", "algo.slow_nodes must have factors > 0", "got {0: 0.0}"),
    ("algo=decoupled algo.fragments=30", "algo.fragments must be in [1, tau = 24]", "got 30"),
    ("algo=decoupled algo.quorum=9 nodes=8", "algo.quorum must be <= nodes = 8", "got 9"),
    ("algo=sparta algo.share=0", "algo.share must be in (0, 1]", "got 0"),
    ("algo=diloco algo.beta=1", "algo.beta must be in [0, 1)", "got 1"),
    ("algo=diloco algo.olr=-0.1", "algo.olr must be >= 0", "got -0.1"),
    ("algo=sgp algo.overlap=-1", "algo.overlap must be >= 0, got -1"),
    ("algo=sgp algo.overlap=0.5", "algo.overlap must be", "got 0.5"),
    ("algo=localsgd algo.tau=0", "algo.tau must be >= 1", "got 0"),
    ("algo=localsgd nodes=6 algo.group=4", "algo.group must divide the number of nodes (nodes=6), got 4"),
    ("algo=localsgd algo.group=2 algo.inner_tau=3", "algo.inner_tau must divide tau (4), got 3"),
    ("algo=localsgd algo.group=0", "algo.group must be >= 1, got 0"),
    ("algo=localsgd algo.switch=-1", "algo.switch must be >= 0", "got -1"),
    ("algo=localsgd algo.momentum=half", "algo.momentum must be one of keep, zero, average", "got 'half'"),
    ("algo=delayfree algo.tau=3", "algo.tau must be even", "got 3"),
    ("algo=gossip algo.mode=pool", "algo.mode must be pull or push, got 'pool'"),
    ("nodes=0", "nodes must be >= 1, got 0"),
    ("nodes=4 nodes=0", "nodes must be >= 1, got 0"),
    ("batch_size=0", "batch_size must be >= 1, got 0"),
    ("batch_size=200", "batch_size must be <= 179 (a worker's share: 1437 samples / 8 nodes), got 200"),
    ("nodes=10000", "nodes must be <= 1437 (the training samples), got 10000"),
    ("nodes=1000000000", "nodes must be <= 16384, got 1000000000"),
    ("seed=-1", "seed must be >= 0, got -1"),
    ("seed=99999999999999999999", "seed must be < 2^63, got 99999999999999999999"),
    ("precision=fp8", "precision must be one of fp32, fp64, tf32, bf16, fp16, got 'fp8'"),
    ("channels_last=3", "channels_last must be true or false, got 3"),
    ("compile=maybe", "compile must be true or false, got 'maybe'"),
    (
        "data=imagenet-like data.decoder=gpu",
        "data.decoder must be one of auto, nvimgcodec, simplejpeg, pillow, got 'gpu'",
    ),
    ("optimizer.lr=-1", "optimizer.lr must be in [0, 1e+30], got -1"),
    ("optimizer.lr=nan", "optimizer.lr must be in [0, 1e+30], got nan"),
    ("optimizer.momentum=1", "optimizer.momentum must be in [0, 1), got 1"),
    ("optimizer=adamw optimizer.eps=0", "optimizer.eps must be in (0, 1e+30], got 0"),
    ("optimizer=adamw optimizer.nesterov=true", "optimizer.nesterov is not a key of"),
    ("optimizer=adamw algo=downpour", "optimizer must be sgd with algo=downpour", "got adamw"),
    ("optimizer=muon algo=corrected algo.method=qg", "optimizer.momentum must be 0, got 0.95"),
    ("optimizer.nesterov=true", "optimizer.nesterov must be false", "got true"),
    ("cluster.bandwidth=0", "cluster.bandwidth must be >= 1 bit/s, got 0"),
    ("cluster.jitter_distribution=pareto", "cluster.jitter_distribution must be one of gamma, lognormal, normal, got"),
    (
        "cluster.jitter_distribution=normal cluster.jitter=0.5",
        "cluster.jitter must be <= 1/3 with jitter_distribution=normal, got 0.5",
    ),
    ("cluster.collective=hub", "cluster.collective must be one of best, ring", "hierarchical, star, got 'hub'"),
    (
        "cluster.collective_messages=true",
        "cluster.collective must be one of ring, ",
        "star with collective_messages=true, got 'best'",
    ),
    ("cluster.collective=star cluster.servers_colocated=true", "cluster.servers_colocated must be false", "got true"),
    ("cluster.latency_s=nan", "cluster.latency_s must be in [0, 1e+09], got nan"),
    ("cluster.slow_nodes={8: 2.0}", "cluster.slow_nodes must name nodes in 0..7 (nodes=8), got 8"),
    ("cluster.slow_nodes={3: -1}", "cluster.slow_nodes must give a factor in [1e-06, 1e+06], got -1.0 for node 3"),
    ("cluster.stalls=[{node: 1}]", "cluster.stalls must be {node, start_s, duration_s}", "got {'node': 1}"),
    ("cluster.stalls=[{node: 9, start_s: 1, duration_s: 1}]", "cluster.stalls must name nodes in 0..7", "got 9"),
    (
        "engine.gradients=all",
        "engine.gradients must be one of auto, compiled, loop, graphs, none, got 'all'",
    ),
    ("engine.threads=0", "engine.threads must be >= 1, got 0"),
    ("engine.checkpoint_every_s=0", "engine.checkpoint_every_s must be > 0 or null, got 0"),
    ("wandb.mode=nonsense", "wandb.mode must be one of disabled, offline, online, got 'nonsense'"),
    ("target.accuracy=1.5", "target.accuracy must be in (0, 1] or null, got 1.5"),
    ("target.loss=0", "target.loss must be > 0 or null, got 0.0"),
    ("target.loss=inf", "target.loss must be > 0 or null, got inf"),
    ("target.loss=nan", "target.loss must be > 0 or null, got nan"),
    ("target.accuracy=0.9 target.loss=0.3", "target.loss must be null with target.accuracy=0.9, got 0.3"),
    ("eval.every_steps=0", "eval.every_steps must be > 0 or null, got 0"),
    ("schedule=step schedule.milestones=[3,1]", "schedule.milestones must be increasing", "got [3.0, 1.0]"),
    # numbers that would take all memory, or have no end
    ("nodes=1e308", "nodes must be < 2^63, got 1000"),
    ("seed=-1e308", "seed must be > -2^63, got -1000"),
    (f"batch_size={'9' * 400}", "batch_size must be < 2^63, got 9999"),
    (f"optimizer.lr={'9' * 400}", "optimizer.lr must be < 2^63, got 9999"),
    ("optimizer.lr=1e308", "optimizer.lr must be in [0, 1e+30], got 1e+308"),
    ("optimizer.lr=inf", "optimizer.lr must be in [0, 1e+30], got inf"),
    ("optimizer.weight_decay=1e308", "optimizer.weight_decay must be in [0, 1e+30], got 1e+308"),
    (
        "schedule=step schedule.gamma=1e20 schedule.milestones=[1,2,3]",
        "optimizer.lr must stay <= 1e+30 through schedule.*, got 1e+59",
    ),
    (
        "schedule=step schedule.gamma=1e300 schedule.milestones=[1,2,3]",
        "optimizer.lr must stay <= 1e+30 through schedule.*, got inf",
    ),
    ("schedule=step schedule.milestones=[nan]", "schedule.milestones must be increasing numbers of epochs > 0"),
    ("engine.threads=100000", "engine.threads must be <= 1024, got 100000"),
    ("engine=dist engine.threads=100000", "engine.threads must be <= 1024, got 100000"),
    ("eval.every_time_s=1e-12", "eval.every_time_s must be >= ", "1,000,000 marks in", "got 1e-12"),
    ("budget.time_s=10 eval.every_time_s=1e-12", "eval.every_time_s must be >= ", "1,000,000 marks in", "got 1e-12"),
    ("engine=dist budget.time_s=10 eval.every_time_s=1e-9", "eval.every_time_s must be >= ", "got 1e-09"),
    ("eval.every_epochs=1e-12", "eval.every_epochs must be at least one sample", "(eval.every_epochs=1e-12)"),
    ("budget.epochs=1e300", "budget must be < 2^63 samples, got 1.44e+303"),
    ("cluster.stalls=[{every_s: 1e-9, duration_s: 1}]", "cluster.stalls: every_s must be >= ", "got 1e-09"),
    ("cluster.stalls=[{every_s: 1e-9, duration_s: 1e-9}]", "cluster.stalls: every_s must be >= ", "got 1e-09"),
    ("cluster.stalls=[{every_s: 1, duration_s: 1e300}]", "cluster.stalls: duration_s must be <= 1e+09, got 1e+300"),
    ("cluster.stalls=[{node: 1, start_s: inf, duration_s: 1}]", "cluster.stalls: start_s must be <= 1e+09, got inf"),
    ("cluster.gradient_s=1e308", "cluster.gradient_s must be in [0, 1e+09], got 1e+308"),
    ("cluster.jitter=1e-308", "cluster.jitter must be 0 or in [0.001, 1000], got 1e-308"),
    ("cluster.jitter=1e8", "cluster.jitter must be 0 or in [0.001, 1000], got 1"),
    (
        "cluster.jitter=0.5 cluster.jitter_distribution=lognormal cluster.jitter_skew=1",
        "cluster.jitter_skew must be in [1.625, 1000] (jitter^3 + 3 jitter: a log-normal's own), got 1",
    ),
    (
        "cluster.jitter=0.1 cluster.jitter_skew=1",
        "cluster.jitter_skew must be null without jitter and jitter_distribution=lognormal, got 1",
    ),
    (
        "cluster.failures={every_s: 1e7, repair_s: 1h} budget.time_s=1min",
        "cluster.failures: repair_s must be <= budget.time_s (60), got 3600",
    ),
    ("cluster.compute_trace=nope.csv", "cluster.compute_trace must be a readable file, got nope.csv (No such file"),
    ("cluster.message_bytes=1e308", "cluster.message_bytes must be in (0, 1e+15], got 1e+308"),
    ("cluster.bandwidth=1e-308", "cluster.bandwidth must be >= 1 bit/s, got 1e-308"),
    (
        "cluster=islands cluster.congestion=[{every_s: 9, duration_s: 1, factor: 0.5}]",
        "cluster.collective_messages must be true with congestion",
    ),
    ("cluster.congestion=[{start_s: 9, duration_s: 1, factor: 0.5}]", "cluster.congestion must be [] without islands"),
    ("cluster.congestion=[{start_s: 9, factor: 0.5}]", "cluster.congestion must be {start_s, duration_s, factor} or"),
    (
        "cluster.congestion=[{every_s: 9, duration_s: 1, factor: 0}]",
        "cluster.congestion: factor must be in [0.001, 1], got 0",
    ),
    ("cluster.loss=1", "cluster.loss must be >= 0 and < 1, got 1"),
    ("cluster.loss=-0.1", "cluster.loss must be >= 0 and < 1, got -0.1"),
    ("cluster.loss=nan", "cluster.loss must be >= 0 and < 1, got nan"),
    ("cluster.loss=0.1", "cluster.collective_messages must be true with loss"),
    ("cluster.retransmit_s=-1", "cluster.retransmit_s must be in [0, 1e+09], got -1"),
    ("cluster.islands=0", "cluster.islands must be >= 1, got 0"),
    ("cluster=islands nodes=5", "cluster.islands must divide the number of nodes (nodes=5), got 2"),
    ("cluster=islands cluster.wan_latency_s=0", "cluster.wan_latency_s must be >= latency_s (5e-05), got 0"),
    ("cluster=islands cluster.wan_bandwidth=0", "cluster.wan_bandwidth must be >= 1 bit/s, got 0"),
    ("cluster=islands cluster.collective=tree", "cluster.collective must be one of best, ring, hierarchical", "'tree'"),
    ("cluster.window_bytes=100", "cluster.window_bytes must be in [1500, 1e+15], a packet or more, got 100"),
    ("cluster.streams=0", "cluster.streams must be in [1, 1024], got 0"),
    ("cluster.protocol_efficiency=1.1", "cluster.protocol_efficiency must be > 0 and <= 1, got 1.1"),
    ("cluster.slice_bytes=1", "cluster.slice_bytes must be in [64, 1e+15], got 1"),
    ("cluster.bucket_startup_s=-1", "cluster.bucket_startup_s must be in [0, 1e+09], got -1"),
    (f"cluster.links={LINKS} cluster.islands=2", "cluster.islands must be 1 with links", "got 2"),
    (
        f"cluster.links={LINKS} cluster.collective=tree",
        "cluster.collective must be one of best, ring with links",
        "'tree'",
    ),
    (f"cluster.links={LINKS} nodes=5", "cluster.links.nodes must be given where 2 regions", "(nodes=5), got null"),
    ("cluster.links={regions: [a, b]}", "cluster.links must be {regions, latency_s, bandwidth}", "got regions"),
    (
        f"cluster.links={LINKS.replace('[9, null]', '[9]')}",
        "cluster.links.bandwidth must be 2 rows of 2 numbers, one for each region, got rows of [2, 1]",
    ),
    (
        f"cluster.links={LINKS.replace('[9, null]', '[-9, null]')}",
        "cluster.links.bandwidth must be >= 1 bit/s, got -9 from b to a",
    ),
    (
        f"cluster.links={LINKS.replace('0.1', 'null')}",
        "cluster.links.latency_s must have every pair of regions, got null for a and b",
    ),
    (
        f"cluster.links={LINKS.replace('0.1', 'far')}",
        "cluster.links.latency_s must be >= 0 seconds, got 'far' from a to b",
    ),
    (
        f"cluster.links={LINKS} cluster.congestion=[{{start_s: 9, duration_s: 1, factor: 0.5, between: [a, c]}}] "
        "cluster.collective=ring cluster.collective_messages=true",
        "cluster.congestion: between must name regions of links (a, b), got c",
    ),
    ("cluster.node_bandwidth={3: 0.5}", "cluster.node_bandwidth must give bit/s in [1, 1e+18], got 0.5 for node 3"),
    ("cluster.slow_nodes={3: 1e300}", "cluster.slow_nodes must give a factor in [1e-06, 1e+06], got 1e+300"),
    ("model.hidden=[1e308]", "model.hidden[0] must be < 2^63, got 1000"),
    ("model.hidden=[1000000000]", "model.hidden must be a list of at most 2048 widths in [1, 65536]"),
    ("data=shapes model=resnet20 model.width=1000000", "model.width must be in [1, 4096], got 1000000"),
    ("data=shapes model=resnet20 model.depth=6000000002", "model.depth must be <= 2048, got 6000000002"),
    ("data=shapes data.resolution=1000000", "data.resolution must be in [8, 1024], got 1000000"),
    ("data=shapes data.train_size=1000000000000", "data.train_size must be <= 16777216 with resolution=16, channels=1"),
    ("experiment=quadratic data.dim=1e18", "data.dim must be in [1, 1000000000], got 1000000000000000000"),
    ("experiment=quadratic data.noise=1e308", "data.noise must be in [0, 1e+15], got 1e+308"),
    ("data=imagenet-like data.side=1000000000", "data.side must be <= 4096, got 1000000000"),
    ("data=imagenet-like data.samples_per_class=1e18", "data.samples_per_class must be <= 1000000 with classes=10"),
    ("data=imagenet-like data.max_pixels=0", "data.max_pixels must be in [1, 134217728], got 0"),
    ("data=imagenet-like data.workers=1000000", "data.workers must be in [1, 1024] or null, got 1000000"),
    (
        "topology=complete nodes=16384 engine.gradients=none",
        "topology must have at most 16777216 weights, got 268435456 of complete with nodes=16384",
    ),
    # texts
    (f"optimizer.lr={'x' * 9000}", "optimizer.lr must be a number, got 'xxxx", "xxx..."),
    (f"model.hidden={'[' * 40}{']' * 40}", "model.hidden[0] must be an integer, got [[[[["),
    # what does not fit together
    ("topology=hypercube nodes=6", "topology=hypercube needs nodes to be a power of two, got nodes=6"),
    ("budget.epochs=null", "budget must give at least one of epochs, samples, steps, time_s, got none"),
    ("budget.samples=5", "budget must allow one step of 128 samples, got 5"),
    ("schedule=cosine budget.epochs=null budget.time_s=3", "schedule=cosine needs budget.epochs", "got budget.time_s"),
    ("experiment=quadratic target.accuracy=0.5", "target.accuracy must be null for data without classes, got 0.5"),
    ("target.stop=true", "target.stop must be false without target.accuracy or target.loss, got true"),
    ("model=vector", "model=vector needs data=quadratic"),
    ("algo=easgd algo.alpha=0.1 algo.rho=1", "algo.alpha", "rho", "at most one of"),
    ("data.split=noniid", "data.split must be one of iid, dirichlet, label, got 'noniid'"),
    ("data.split_alpha=0", "data.split_alpha must be in (0, 1e+15], got 0"),
    ("data.split=label nodes=32 batch_size=64", "batch_size must be <= 44 (a worker's share: 1437 samples / 32 nodes)"),
    ("experiment=quadratic data.split=label", "data.split is not a key of the configuration; data=quadratic has "),
    ("model=gpt", "model=gpt needs data=text"),
    ("data=text", "model=mlp needs data of measured numbers; data=text has tokens and needs model=gpt"),
    ("model=gpt data=text model.heads=3", "model.heads must divide width (64), got 3"),
    ("model=gpt data=text data.split=label", "data.split is not a key of the configuration; data=text has path, "),
    ("model=gpt data=text data.test_share=1", "data.test_share must be in (0, 1), got 1"),
    (
        "model=gpt data=text data.context=20000",
        "data.context must be <= 19999 (training and test have 180000 and 20000 bytes), got 20000",
    ),
    (
        "model=gpt data=text data.generated_bytes=14",
        "data.generated_bytes must give 2 bytes each for training and test with data.test_share=0.1, got 14 bytes",
    ),
    # what only torch can tell
    ("engine=sim engine.device=cpu precision=tf32", "precision must be fp32, fp64, bf16 or fp16 on a CPU, got tf32"),
    ("engine=dist engine.gpus_per_node=0 precision=tf32", "precision must be fp32, fp64, bf16 or fp16 on a CPU"),
    ("engine=dist engine.gpus_per_node=1000", "engine.gpus_per_node must be <= ", "got 1000"),
    ("engine=sim model=import model.target=no.such.thing", "model.target must be importable, got 'no.such.thing'"),
    ("engine=dist model=import model.target=no.such.thing", "model.target must be importable, got 'no.such.thing'"),
    ("model=import model.target=torch.nn.Linear", "model.target=torch.nn.Linear fails: TypeError: "),
    (
        "data=shapes model=import model.target=torch.nn.Identity",
        "must give 8 outputs for each sample, one a class, got",
    ),
    ("data=imagenet-like model=torchvision model.name=nope", "model.name must be a classifier", "got 'nope'"),
    ("-m engine=sim engine.device=cpu precision=fp32,tf32", "precision must be fp32, fp64, bf16 or fp16 on a CPU"),
    # files and folders
    ("data=cifar10 data.root=nope", "data.root must be a folder with cifar-10-batches-py", "torchvision"),
    (
        "data=mnist data.root=nope",
        "data.root must be a folder with MNIST/raw, found no train-images-idx3-ubyte",
        "torchvision",
    ),
    (f"data=kmnist data.root={'x' * 300}", "data.root must be", "xxx"),
    ("data=fashion_mnist data.resolution=10", "data.resolution must be 4, 7, 14 or 28, got 10"),
    ("cluster.compute_trace=/", "cluster.compute_trace must be a re", "file, got /"),
    (f"cluster.compute_trace={'x' * 300}", "cluster.compute_trace must be a word of at most 255 bytes, or a path"),
    (
        f"cluster.compute_trace={'x' * 9000}",
        "cluster.compute_trace must be a word of at most 255 bytes, or a path",
        "got 'xxx",
    ),
    ("model=gpt data=text data.path=nope.txt", "data.path must be a readable file, got nope.txt (No such file or"),
    ("model=gpt data=text data.path=/dev/zero", "data.path must be a readable file, got /dev/zero (not a regular"),
    ("data=imagenet data.path=/dev/zero", "data.path must be a folder with train/", "found no folder /dev/zero"),
    (f"data=imagenet data.path={'x' * 300}", "data.path must be", "xxx"),
    (f"data=cifar10 data.root={'x' * 300}", "data.root must be", "xxx"),
    (f"data=imagenet-like data.path={'x' * 300}", "data.path must be", "xxx"),
    ("resume=/dev/zero", "resume must be a checkpoint or a folder with checkpoint.pt, got /dev/zero"),
    (f"resume={'x' * 300}", "resume must be a checkpoint or a folder with checkpoint.pt, got xxx"),
    (f"--config-dir {'x' * 300}", "--config-dir must be a folder, got xxx"),
    (f"hydra.run.dir={'x' * 300}", "hydra.run.dir must be a word of at most 255 bytes, or a path", "got 'xxx"),
    (
        f"hydra.run.dir={'x/' * 3000}",
        "hydra.run.dir must be a word of at most 255 bytes, or a path of such words of at most 4000",
    ),
    (f"-m nodes=2,4 hydra.sweep.dir={'x' * 300}", "hydra.sweep.dir must be a word of at most 255 bytes"),
    (f"-m nodes=2,4 hydra.sweep.subdir={'x' * 300}", "hydra.sweep.dir must be a word of at most 255 bytes"),
    (f"hydra.run.dir='{__file__}/below'", "hydra.run.dir must be a folder that can be written, got", "/below"),
    ("hydra.run.dir=", "hydra.run.dir must be a folder, got ''"),
    ("resume=nope", "resume must be a checkpoint or a folder with checkpoint.pt, got nope"),
    (f"resume='{__file__}'", "resume must be a checkpoint of dsgd", "something else or corrupt"),
    # the grammar and the flags
    ("nodes", "an override must be key=value", "got nodes"),
    ("algo=gossip algo.tau", "an override must be key=value", "got algo.tau"),
    ("=3", "an override must be key=value, got =3"),
    ("cluster.slow_nodes={3:2", "an override must be key=value", "got cluster.slow_nodes={3:2"),
    ("nodes=${oc.env:NOPE}", "nodes", "'NOPE' not found"),
    ("nodes=2,4", "nodes must be one value without -m (multirun), got 2,4"),
    ("algo=sync,gossip", "algo must be one value without -m (multirun), got sync,gossip; add -m"),
    ("gossip", "an override must be key=value, got gossip; did you mean algo=gossip?"),
    ("algo gossip", "an override must be key=value, got algo; as in algo=VALUE"),
    ("--algo gossip", "unrecognized arguments: --algo; keys have no dashes: algo=gossip"),
    ("nodes=4 --algo=gossip seed=1", "unrecognized arguments: --algo=gossip; keys have no dashes: algo=gossip"),
    ("--seed", "unrecognized arguments: --seed; keys have no dashes: seed=VALUE"),
    ("+nodes=3", "nodes must be given without +, as it is there already, got +nodes=3"),
    ("+optimizer.lr=3", "optimizer.lr must be given without +, as it is there already, got +optimizer.lr=3"),
    ("+algo=gossip", "algo must be given without +, as it is there already, got +algo=gossip"),
    ("+model=mlp", "model must be given without +, as it is there already, got +model=mlp"),
    ("++algo.tau=3", "algo.tau is not a key of Sync; it has backups, elastic, overlap"),
    ("--foo", "--foo"),
    ("--cfg jobs", "--cfg", "'jobs'"),
    ("--cfg job -m", "Only one of"),
    ("--cfg job algo=gosip", "algo must be one of", "got 'gosip'", "did you mean gossip?"),
    ("--config-dir nope", "--config-dir must be a folder, got nope"),
    ("--config-name nope", "--config-name must be a configuration there is, got nope"),
    ("--config-path nope", "--config-path must not be given", "got nope"),
    # one bad point and nothing of a sweep starts
    ("-m algo=sync,gossip,gosip", "algo must be one of", "got 'gosip'"),
    ("-m algo=gossip algo.tau=1,0", "algo.tau must be >= 1, got 0"),
    ("-m nodes=2,4,8 batch_size=200,1000", "batch_size must be <= 718", "got 1000"),
    ("-m optimizer.lr=interval(0,1)", "optimizer.lr must be a list of values to sweep over, got interval(0,1)"),
    ("-m nodes=2,4 hydra.sweep.subdir=x", "hydra.sweep.subdir must give every job a folder of its own, got x twice"),
    (f"-m nodes=2,4 hydra.sweep.dir='{__file__}/below'", "hydra.sweep.dir must be a folder that can be written, got"),
    ("-m nodes=2,4 resume=nope", "resume must be auto in a sweep, got nope"),
    ("-m nodes=2,4 sweep.jobs=1,2", "sweep.jobs must be one value, got 1,2"),
    ("-m nodes=2,4 sweep=null", "sweep must be a group of keys, got None"),
    ("-m nodes=2,4 +sweep.threads=2", "sweep.threads is not a key of SweepOptions; it has jobs"),
    ("sweep.jobs=0", "sweep.jobs must be auto or a number >= 1, got 0"),
]


@pytest.mark.parametrize(
    ("line", "parts"), [(case[0], case[1:]) for case in CASES], ids=[case[0][:60] for case in CASES]
)
def test_bad_input_is_one_line_and_leaves_nothing(
    line: str, parts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.argv)
    result = call(*split(line))
    assert result.status == 2
    assert result.out == ""
    assert result.err.endswith("\n")
    assert len(result.err.splitlines()) == 1
    assert [part for part in parts if part not in result.err] == []
    assert list(tmp_path.iterdir()) == []
    assert sys.argv == before


@pytest.mark.parametrize("algo", ["sync", "easgd"])
def test_a_rate_at_its_limit_is_a_run_that_diverges(algo: str, tmp_path: Path) -> None:
    """It is a result, in the simulator and in any precision."""
    command = (f"algo={algo}", "engine=sim", "nodes=2", "optimizer.lr=1e30", "optimizer.weight_decay=1e30")
    result = call(*command, "budget.epochs=1", f"hydra.run.dir={tmp_path}/run")
    assert result.status == 0, result.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "diverged"


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("model=import model.target=nobodys.net", "model.target must be importable, got 'nobodys.net': No module"),
        ("data=import data.target=nobodys.x.y data.classes=2", "data.target must be importable, got 'nobodys.x.y'"),
        ("algo._target_=nobodys.Net", "algo._target_ must be the import path of a dataclass, got 'nobodys.Net'"),
    ],
)
@pytest.mark.parametrize("found", ["nobodys.py", "nobodys", None])
def test_a_module_in_the_current_folder_is_told_how_it_is_found(
    line: str, rule: str, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if found is not None:
        (tmp_path / found).touch()
    result = call(*split(line))
    assert (result.status, len(result.err.splitlines())) == (2, 1)
    assert rule in result.err
    assert (f"; {found} is in this folder: PYTHONPATH=. before the command" in result.err) == (found is not None)
    assert ("PYTHONPATH" in result.err) == (found is not None)


def test_a_value_that_the_shell_has_split_is_told_its_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words, whole in [
        ("cluster.slow_nodes={3:; 2.0}; nodes=4", "cluster.slow_nodes={3: 2.0}"),
        ("cluster.stalls=[{node:; 1,; start_s:; 2}]", "cluster.stalls=[{node: 1, start_s: 2}]"),
    ]:
        result = call(*words.split("; "))
        first = words.partition(";")[0]
        assert (result.status, result.err) == (2, f"a value with spaces must be in quotes, '{whole}', got {first}\n")
    assert list(tmp_path.iterdir()) == []


def test_flags_may_stand_between_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["experiment=quadratic", "budget.steps=2", "engine=sim"]
    swept = call(*small, "-m", "nodes=2,3", "hydra.sweep.dir=swept")
    assert (swept.status, len(list((tmp_path / "swept").iterdir()))) == (0, 3), swept.err
    shown = call("nodes=2", "--cfg", "job", "seed=7", "--package", "budget")  # which Hydra itself parses
    assert (shown.status, "epochs: 20" in shown.out) == (0, True), shown.err


def split(line: str) -> list[str]:
    """On single spaces, but not inside {...}, which shells would need quotes for."""
    return shlex.split(line.replace(": ", ":").replace(", ", ","))


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ("1,0,0.5 1,1,0.5 2,1,0.5", "must have every rank in every step, got no rank 0 in step 2 (times.csv)"),
        ("1,0,0.5 1,1,-0.5", "must have seconds in (0, 1e+09], got -0.5 (times.csv, line 3)"),
        ("1,0,0.5 2,0,0.5", "must have at least 2 ranks (nodes=4), as one tells nothing about the others, got 1"),
    ],
)
def test_bad_traces(lines: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "times.csv").write_text("\n".join(["step,rank,seconds", *lines.split()]))
    result = call("cluster.compute_trace=times.csv", "nodes=4")
    assert (result.status, len(result.err.splitlines())) == (2, 1)
    assert result.err.startswith(f"cluster.compute_trace {rule}")
    assert [path.name for path in tmp_path.iterdir()] == ["times.csv"]


TWO = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


# where a withdrawn key was one of some choices alone
CHOICES_WITH = {"topology.rows": ["topology=torus"]}


def test_a_withdrawn_key_says_what_to_use_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a command line and in a file of the user's; its former default in a stored configuration is no error."""
    monkeypatch.chdir(tmp_path)
    for entry, (default, instead) in WITHDRAWN.items():
        line = f"{entry} is withdrawn: {instead}"
        *choices, key = [*CHOICES_WITH.get(entry, []), *entry.split()]
        group, _, name = key.partition("." if "." in key else "=")
        result = call(*choices, key if "=" in key else f"{key}=7")
        assert (result.status, result.err) == (2, f"{line}\n")
        stored = composed(choices)
        values, former = stored[group], {"_target_": "dsgd.Gone", "name": name} if "=" in key else {name: "another"}
        with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
            configure(stored | {group: values | former})
        if "=" not in key:
            configure(stored | {group: values | {name: stored["seed"] if name == "seed" else default}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("variables", "rule"),
    [
        ({"RANK": "0", "MASTER_ADDR": "127.0.0.1"}, "WORLD_SIZE must be set where RANK='0' is"),
        ({"WORLD_SIZE": "4"}, "RANK must be set where WORLD_SIZE='4' is"),
        (TWO, "nodes must be WORLD_SIZE=2, the processes started, got 4"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(
    variables: dict[str, str], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun or srun the processes that were started are the workers."""
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = call("nodes=4")
    assert result.status == 2
    assert rule in result.err
    assert list(tmp_path.iterdir()) == []


def test_the_installed_command_ends_the_same_way(tmp_path: Path) -> None:
    for line, rule in [
        ("dsgd-run algo=gosip", "did you mean gossip?"),
        ("dsgd-run algo=gossip algo.tau=0", "algo.tau must be >= 1, got 0"),
        ("dsgd-run --nodes 4", "--nodes"),
        ("dsgd-plot nope", "nope"),
    ]:
        result = shell(line, tmp_path)
        assert result.returncode == 2
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 1
        assert rule in result.stderr
    assert list(tmp_path.iterdir()) == []


QUICK = """
import sys
from tests.support.command import call
for line in ("--help", "--cfg job", "--info", "nodes=0", "algo=gosip", "-m nodes=2,0", "data=cifar10", "resume=nope"):
    print(call(*line.split()).status, end=" ")
print(sorted({"torch", "matplotlib", "wandb"} & set(sys.modules)))
"""


def test_help_and_errors_import_nothing_heavy(tmp_path: Path) -> None:
    """Importing torch alone takes longer than a user should wait to be told of a typing error."""
    root = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "-c", QUICK],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(root)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "0 0 0 2 2 2 2 2 []\n"


FORKED = """
import os, sys
from dsgd.runner.children import told_by_child

print(told_by_child(lambda: "precision must be another")[:2])
print(told_by_child(lambda: sys.exit(2))[:2])
print(told_by_child(lambda: os.kill(os.getpid(), 9))[:2])
print(told_by_child(lambda: 1 / 0)[:2])
"""


def test_what_a_check_in_a_process_of_its_own_finds_is_told_here() -> None:
    """GPUs are asked there: CUDA, once begun, would not survive the fork of the workers."""
    line = [sys.executable, "-W", "error", "-c", FORKED]
    result = subprocess.run(line, capture_output=True, text=True, check=True, timeout=300)
    assert result.stdout == "('precision must be another', 0)\n('', 2)\n('', -9)\n('', 1)\n"
    assert result.stderr.count("ZeroDivisionError") == 1


@pytest.mark.parametrize("line", ["", "-m nodes=2,4"])
def test_a_configuration_of_the_users_without_a_key(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = (ROOT / "conf" / "config.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(re.sub(r"(?m)^resume:.*\n", "", whole))
    refused = call(*split(line), "--config-dir", str(tmp_path), "--config-name", "mine")
    assert (refused.status, refused.err) == (2, "resume must be given, got nothing\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
