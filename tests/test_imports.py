from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import dsgd

PACKAGE = Path(dsgd.__file__).parent
EXTRAS = ("torchvision", "wandb", "tensorboard", "mlflow")

# Which parts of the package each part may import: the edges that are wanted, and no others. "" is dsgd itself.
WANTED = {
    "": {"python"},
    "worker": set(),
    "graph_file": {"host"},
    "topology": {"graph_file"},
    "streams": set(),
    "safe_text": set(),
    "torchvision_operators": set(),
    "user_code": {"torchvision_operators"},
    "token_shape": set(),
    "units": set(),
    "schedule": set(),
    "optimizer": set(),
    "muon": {"optimizer"},
    "link_matrix": set(),
    "disturbances": set(),
    "jitter": {"disturbances"},
    "trace_file": {"host"},
    "compute_trace": {"disturbances", "trace_file"},
    "failures": {"disturbances", "trace_file"},
    "cluster": {"compute_trace", "disturbances", "failures", "jitter", "link_matrix"},
    "crossing": set(),
    "host": set(),
    "models": {"token_shape", "torchvision_operators", "user_code"},
    "data": {"streams", "host", "token_shape", "user_code"},
    "experiment": {"cluster", "crossing", "data", "models", "optimizer", "schedule", "topology", "worker"},
    "algorithms": {"compression", "streams", "topology", "worker"},
    "compression": {"streams", "worker"},
    "problem": {"data", "experiment", "optimizer", "streams"},
    "gradients": {"data", "experiment", "host", "problem"},
    "engine": {"crossing", "experiment", "optimizer", "problem", "worker"},
    "sim": {"cluster", "compute_trace", "disturbances", "engine", "experiment", "failures", "gradients", "jitter"}
    | {"optimizer", "problem", "streams", "worker"},
    "processes": {"cluster", "data", "engine", "experiment", "host", "optimizer", "problem", "safe_text", "streams"}
    | {"worker"},
    "process_groups": {"engine", "worker"},
    "record": {"host", "safe_text"},
    "report": {"crossing", "record", "safe_text", "units"},
    "sweep": {"record"},
    "run": {"data", "engine", "experiment", "gradients", "host", "models", "optimizer", "problem", "processes"}
    | {"process_groups", "record", "safe_text", "schedule", "sim", "streams", "topology", "user_code", "worker"},
    "torch": {"process_groups", "run", "streams", "worker"},
    "contest": {"record", "report"},
    "python": {"record", "report", "run", "safe_text"},
    "reproduction": {"record", "report", "safe_text"},
    "yardstick": {"reproduction"},
    "papers": {"algorithms", "record", "report", "reproduction", "topology"},
    "cli": {
        "contest",
        "host",
        "papers",
        "problem",
        "process_groups",
        "processes",
        "record",
        "report",
        "reproduction",
        "run",
        "sweep",
    }
    | {"safe_text", "units", "yardstick"},
}
# What an algorithm may import, besides the standard library.
OF_ALGORITHMS = {
    "dsgd.worker",
    "dsgd.topology",
    "dsgd.streams",
    "torch",
    "dsgd.algorithms.centre",  # a part of easgd
    "dsgd.algorithms.delayed_nesterov",  # a part of asyncdiloco
    "dsgd.algorithms.syncer",  # of decoupled
    "dsgd.compression",
    "dsgd.compression.low_rank",
    "dsgd.compression.few_bits",
}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import in a file, those in functions and under TYPE_CHECKING included."""
    module = module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            ancestors = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*ancestors, *([node.module] if node.module else [])]) if node.level else node.module or ""
            if base == "dsgd":  # from dsgd import sim
                yield from ((node.lineno, f"dsgd.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, base


def module_name(path: Path) -> str:
    return ".".join(("dsgd", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def part(module: str) -> str:
    """The top-level part of dsgd that a module belongs to; '' for dsgd itself."""
    return module.split(".")[1] if "." in module else ""


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_part_of_the_package_has_a_place_in_the_rule() -> None:
    """A new folder or file of dsgd must be put into WANTED, and what is gone must be taken out."""
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert parts == WANTED.keys() - {""}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_what_its_part_may(path: Path) -> None:
    source = path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__init__", "")
    wrong = [
        f"dsgd/{path.relative_to(PACKAGE)}:{line}: {source} must not import {module}"
        for line, module in imports(path)
        if module.split(".")[0] == "dsgd" and part(module) not in WANTED[source] | {source, ""}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_dependencies_are_what_is_imported_and_no_more() -> None:
    """Dependencies are installed for all users, and some packages are a hundred megabytes; the rest are extras."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    declared = {re.split("[<>=]", line)[0] for line in project["dependencies"] + extras}
    names = {module.partition(".")[0] for path in FILES for _, module in imports(path)}
    distributions = packages_distributions()
    imported = {distributions[name][0].lower() for name in names - sys.stdlib_module_names - {"dsgd"}}
    assert imported == declared


def test_the_wanted_edges_have_no_circle() -> None:
    TopologicalSorter(WANTED).prepare()


@pytest.mark.parametrize("path", sorted((PACKAGE / "algorithms").glob("*.py")), ids=lambda path: path.stem)
def test_an_algorithm_imports_the_waist_graphs_and_torch_and_nothing_else(path: Path) -> None:
    wrong = [
        f"dsgd/algorithms/{path.name}:{line}: must not import {module}"
        for line, module in imports(path)
        if module.split(".")[0] not in sys.stdlib_module_names and module not in OF_ALGORITHMS
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports in functions and for type checkers count, too: who reads one file of a circle has to read all of it."""
    names = {module_name(path): path for path in FILES}
    graph = {
        name: {other for _, module in imports(path) for other in (module,) if other in names and other != name}
        for name, path in names.items()
    }
    TopologicalSorter(graph).prepare()


def test_a_class_name_stands_for_one_thing() -> None:
    statements = (statement for path in FILES for statement in ast.parse(path.read_text()).body)
    names = Counter(statement.name for statement in statements if isinstance(statement, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} == set()


def test_configurations_are_composed_and_checked_without_torch() -> None:
    """Importing torch takes longer than a configuration error may."""
    program = """
import sys
import dsgd.run.configuration, dsgd.cli.compose, dsgd.cli.check, dsgd.cli.jobs
from importlib.resources import files
names = [path.name[:-5] for path in (files("dsgd.conf") / "algo").iterdir() if path.name.endswith(".yaml")]
assert names
for name in names:
    dsgd.run.configuration.configure(dsgd.cli.compose.composed([f"algo={name}", "experiment=quadratic"])).experiment
    dsgd.run.configuration.configure(dsgd.cli.compose.composed([f"algo={name}", "model=resnet8"])).experiment
slow = {"torch", "matplotlib", "wandb", "networkx"} & set(sys.modules)
assert not slow, slow
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_a_command_line_is_looked_at_before_anything_slow_is_imported() -> None:
    """A sweep imports Hydra and torch in two processes, as soon as it is known to be one."""
    program = """
import sys
from dsgd.cli.run import main
from dsgd.cli.arguments import has_jobs_at_a_time
has_jobs_at_a_time(["-m", "seed=0,1"])
slow = {"torch", "numpy", "hydra", "omegaconf", "yaml"} & set(sys.modules)
assert not slow, slow
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_a_run_on_digits_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """A start takes what its imports take: torch's compiler a second, the others half of one."""
    program = """
import sys
from dsgd.cli.run import main
for number, line in enumerate(("model=mlp algo=gossip", "model=resnet8 algo=dpsgd engine.gradients=loop")):
    assert main([*line.split(), "nodes=2", "budget.steps=1", f"hydra.run.dir={number}"]) == 0
slow = ("torch._dynamo", "torch._inductor", "torchvision", "sympy", "networkx", "matplotlib", "PIL", "wandb")
print([name for name in slow if name in sys.modules])
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "[]"
