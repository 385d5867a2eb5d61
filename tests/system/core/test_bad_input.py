"""Bad input ends before anything starts: exit status 2, one line with key, rule and value, nothing left on disk.

One case for each kind of message; tests/system/cli/test_bad_input.py has the rules of single options."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.support.command import call, in_python, shell

ROOT = Path(__file__).parents[3]

# what is typed; what the line must contain
CASES = [
    # a choice
    ("algo=gosip", "algo must be one of", "sync", "got 'gosip'", "did you mean gossip?"),
    ("algo=powersgd", "algo must be one of", "got 'powersgd'; that is algo=compressed algo.code=powersgd here"),
    ("algo=null", "algo must be the name of one choice, got null"),
    # a key that is not there
    ("node=4", "node is not a key of the configuration; did you mean nodes"),
    ("+foo=1", "foo is not a key of the configuration; it has nodes, batch_size"),
    ("algo=diloco algo.outer_lr=1", "algo.outer_lr is not a key of the configuration; did you mean algo.olr?"),
    ("algo.tau=3", "algo.tau is not a key of the configuration; algo=sync has overlap"),
    ("optimiser.lr=1", "optimiser.lr is not a key of the configuration; did you mean optimizer.lr?"),
    ("++algo.tau=3", "algo.tau is not a key of Sync; it has backups, elastic, overlap"),
    ("++algo._args_=[1]", "algo._args_ is not a key of Sync"),
    ("algo@foo=gossip", "algo@foo is not a key"),
    # one that must be, or must not be
    ("~seed", "seed must be given, got ~seed; seed=VALUE changes it"),
    ("~algo", "algo must be given, got ~algo; algo=NAME changes it"),
    ("~cluster.bandwidth", "cluster.bandwidth must be given, got nothing"),
    ("data=import data.classes=2", "data.target must be given, got nothing"),
    ("+nodes=3", "nodes must be given without +, as it is there already, got +nodes=3"),
    ("schedule=cosine ++schedule.gamma=0.5", "schedule.gamma must be left to kind=step, got 0.5 with kind=cosine"),
    ("compare.seeds=3", "compare.seeds is not a key of a run: it belongs to dsgd-compare"),
    ("slurm.partition=gpu", "slurm.partition is not a key of a run: it belongs to dsgd-sweep submit"),
    ("sweep.jobs=2", "sweep.jobs must be given with a sweep (-m) only, got sweep.jobs=2"),
    # a class that would be called in place of ours, a name that a record would show
    ("++engine._target_=x", "engine._target_ must be dsgd.runner.configuration.EngineOptions or not given, got 'x'"),
    ("algo._target_=os.path", "algo._target_ must be the import path of a dataclass, got 'os.path'"),
    ("++algo.name=gossip", "algo.name is not a key of Sync, which algo=sync names, got 'gossip'"),
    # a type
    ("nodes=two", "nodes must be an integer, got 'two'"),
    ("nodes=2.5", "nodes must be an integer, got 2.5"),
    ("optimizer.lr=[1]", "optimizer.lr must be a number, got [1]"),
    ("trace=maybe", "trace must be true or false, got 'maybe'"),
    ("budget=null", "budget must be a group of keys, got None"),
    ("track=[nonsense]", "track must be a list of wandb, tensorboard, mlflow, got 'nonsense'"),
    ("cluster.slow_nodes={a:2}", "cluster.slow_nodes: every key must be an integer, got 'a'"),
    (f"optimizer.lr={'x' * 9000}", "optimizer.lr must be a number, got 'xxxx", "xxx..."),
    # a range
    ("nodes=4 nodes=0", "nodes must be >= 1, got 0"),
    ("precision=fp8", "precision must be one of fp32, fp64, tf32, bf16, fp16, got 'fp8'"),
    ("optimizer.lr=nan", "optimizer.lr must be in [0, 1e+30], got nan"),
    ("nodes=1e308", "nodes must be < 2^63, got 1000"),
    ("cluster.latency_s=10MB", "cluster.latency_s must be in s, got 10MB"),
    ("schedule=step schedule.milestones=[3,1]", "schedule.milestones must be increasing", "got [3.0, 1.0]"),
    # what does not fit together
    ("batch_size=200", "batch_size must be <= 179 (a worker's share: 1437 samples / 8 nodes), got 200"),
    ("cluster.slow_nodes={8: 2.0}", "cluster.slow_nodes must name nodes in 0..7 (nodes=8), got 8"),
    ("topology=hypercube nodes=6", "topology=hypercube needs nodes to be a power of two, got nodes=6"),
    ("algo=choco topology=exponential", "algo=choco needs an undirected topology", "got topology=exponential"),
    ("optimizer=adamw algo=downpour", "optimizer must be sgd with algo=downpour", "got adamw"),
    ("algo=easgd algo.alpha=0.1 algo.rho=1", "algo.alpha", "rho", "at most one of"),
    ("target.accuracy=0.9 target.loss=0.3", "target.loss must be null with target.accuracy=0.9, got 0.3"),
    ("schedule=cosine budget.epochs=null budget.time_s=3", "schedule=cosine needs budget.epochs", "got budget.time_s"),
    ("experiment=quadratic target.accuracy=0.5", "target.accuracy must be null for data without classes, got 0.5"),
    ("model=vector", "model=vector needs data=quadratic"),
    (
        "engine=torch algo=gossip",
        "engine must be sim or dist with algo=gossip, got torch: its workers do not keep step",
    ),
    # what only torch can tell
    ("algo=compressed algo.rank=32", "algo.rank must be <= 31 (more would compress no layer of this model), got 32"),
    ("engine=sim engine.device=cpu precision=tf32", "precision must be fp32, fp64, bf16 or fp16 on a CPU, got tf32"),
    ("engine=sim engine.device=xpu", "engine.device must be cpu or auto where torch has no accelerator, got xpu"),
    ("engine=dist engine.device=warp", "engine.device must be cpu or auto where torch has no accelerator, got warp"),
    ("engine.device=accelerator", "engine.device must be cpu or auto where torch has no accelerator, got accelerator"),
    ("engine.device=cuda:1", "engine.device must be auto, cpu, accelerator, or one of torch's types", "got 'cuda:1'"),
    ("engine=dist engine.gpus_per_node=1000", "engine.gpus_per_node must be <= ", "got 1000"),
    ("engine=sim model=import model.target=no.such.thing", "model.target must be importable, got 'no.such.thing'"),
    ("model=import model.target=torch.nn.Linear", "model.target=torch.nn.Linear fails: TypeError: "),
    # files and folders
    ("cluster.compute_trace=nope.csv", "cluster.compute_trace must be a readable file, got nope.csv (No such file"),
    ("model=gpt data=text data.path=/dev/zero", "data.path must be a readable file, got /dev/zero (not a regular"),
    ("data=cifar10 data.root=nope", "data.root must be a folder with cifar-10-batches-py", "torchvision"),
    ("resume=nope", "resume must be a checkpoint or a folder with checkpoint.pt, got nope"),
    (f"resume='{__file__}'", "resume must be a checkpoint of dsgd", "something else or corrupt"),
    (f"hydra.run.dir='{__file__}/below'", "hydra.run.dir must be a folder that can be written, got", "/below"),
    ("hydra.run.dir=", "hydra.run.dir must be a folder, got ''"),
    # the grammar and the flags
    ("nodes", "an override must be key=value", "got nodes"),
    ("=3", "an override must be key=value, got =3"),
    ("gossip", "an override must be key=value, got gossip; did you mean algo=gossip?"),
    ("cluster.slow_nodes={3:2", "an override must be key=value", "got cluster.slow_nodes={3:2"),
    ("nodes=${oc.env:NOPE}", "nodes", "'NOPE' not found"),
    ("algo=sync,gossip", "algo must be one value without -m (multirun), got sync,gossip; add -m"),
    ("--algo gossip", "unrecognized arguments: --algo; keys have no dashes: algo=gossip"),
    ("--cfg job -m", "--cfg must be given without -m, got both"),
    ("--config-dir nope", "--config-dir must be a folder, got nope"),
    ("--config-name nope", "--config-name must be a configuration there is, got nope"),
    # one bad point and nothing of a sweep starts
    ("-m algo=sync,gossip,gosip", "algo must be one of", "got 'gosip'"),
    ("-m algo=gossip algo.tau=1,0", "algo.tau must be >= 1, got 0"),
    ("-m optimizer.lr=interval(0,1)", "optimizer.lr must be a list of values to sweep over, got interval(0,1)"),
    ("-m nodes=2,4 hydra.sweep.subdir=x", "hydra.sweep.subdir must give every job a folder of its own, got x twice"),
    (f"-m nodes=2,4 hydra.sweep.dir='{__file__}/below'", "hydra.sweep.dir must be a folder that can be written, got"),
    ("-m nodes=2,4 resume=nope", "resume must be auto in a sweep, got nope"),
    ("-m nodes=2,4 sweep.jobs=0", "sweep.jobs must be auto or a number >= 1, got 0"),
]


def split(line: str) -> list[str]:
    """On single spaces, but not inside {...}, which shells would need quotes for."""
    return shlex.split(line.replace(": ", ":").replace(", ", ","))


@pytest.mark.parametrize(
    ("line", "parts"), [(case[0], case[1:]) for case in CASES], ids=[case[0][:60] for case in CASES]
)
def test_bad_input_is_one_line_and_leaves_nothing(line: str, parts: tuple[str, ...], here: Path) -> None:
    before = list(sys.argv)
    result = call(*split(line))
    assert result.status == 2
    assert result.out == ""
    assert result.err.endswith("\n")
    assert len(result.err.splitlines()) == 1
    assert [part for part in parts if part not in result.err] == []
    assert list(here.iterdir()) == []
    assert sys.argv == before


def test_a_value_that_the_shell_has_split_is_told_its_quotes(here: Path) -> None:
    for words, whole in [
        ("cluster.slow_nodes={3:; 2.0}; nodes=4", "cluster.slow_nodes={3: 2.0}"),
        ("cluster.stalls=[{node:; 1,; start_s:; 2}]", "cluster.stalls=[{node: 1, start_s: 2}]"),
    ]:
        result = call(*words.split("; "))
        first = words.partition(";")[0]
        assert (result.status, result.err) == (2, f"a value with spaces must be in quotes, '{whole}', got {first}\n")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "rule"),
    [
        ({"RANK": "0", "MASTER_ADDR": "127.0.0.1"}, "WORLD_SIZE must be set where RANK='0' is"),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
            "nodes must be WORLD_SIZE=2, the processes started, got 4",
        ),
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


def test_the_installed_commands_end_the_same_way(tmp_path: Path) -> None:
    for line, rule in [
        ("dsgd-run algo=gosip", "did you mean gossip?"),
        ("dsgd-run -m algo=gossip algo.tau=1,0 sweep.jobs=2", "algo.tau must be >= 1, got 0"),
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
    assert in_python(QUICK, folder=tmp_path, PYTHONPATH=str(ROOT)) == "0 0 2 2 2 2 2 2 []\n"
