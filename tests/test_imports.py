from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsgd

PACKAGE = Path(dsgd.__file__).parent

# Higher may import lower, never the other way round, and never its own level's neighbour.
LEVELS = {"cli": 5, "sweep": 4, "report": 3, "record": 3, "sim": 2, "dist": 2, "algorithms": 1, "worker": 0}
# Beside the tower: these know no engine and no algorithm; of the tower they may see the waist alone.
BESIDE = {
    "gradients",
    "marks",
    "server",
    "task",
    "trace",
    "models",
    "data",
    "vision",
    "topology",
    "streams",
    "cluster",
    "optimizer",
    "schedule",
    "experiment",
    "host",
    "conf",
}
# What an algorithm may import, besides the standard library.
OF_ALGORITHMS = {"dsgd.worker", "dsgd.topology", "torch"}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import in a file, those in functions and under TYPE_CHECKING included."""
    module = ".".join(("dsgd", *path.relative_to(PACKAGE).with_suffix("").parts))
    package = module.removesuffix(".__init__") if path.name == "__init__.py" else module.rpartition(".")[0]
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


def allowed(source: str, target: str) -> bool:
    """May `source` import `target`, both top-level parts of dsgd?"""
    if source == target or source == "":
        return True
    if source in BESIDE:
        return target in BESIDE or target == "worker"
    if target in BESIDE:
        return source not in ("worker", "algorithms") or (source, target) == ("algorithms", "topology")
    return LEVELS[source] > LEVELS[target]


def part(module: str) -> str:
    """The top-level part of dsgd that a module belongs to; '' for dsgd itself."""
    return module.split(".")[1] if "." in module else ""


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_part_of_the_package_has_a_place_in_the_rule() -> None:
    """A new folder or file of dsgd must be put somewhere in LEVELS or BESIDE."""
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert parts <= LEVELS.keys() | BESIDE


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    """cli > report, record > sim > algorithms > worker; what is beside knows no engine."""
    source = path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__init__", "")
    wrong = [
        f"dsgd/{path.relative_to(PACKAGE)}:{line}: {source} must not import {module}"
        for line, module in imports(path)
        if module.split(".")[0] == "dsgd" and part(module) and not allowed(source, part(module))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", sorted((PACKAGE / "algorithms").glob("*.py")), ids=lambda path: path.stem)
def test_an_algorithm_imports_the_waist_graphs_and_torch_and_nothing_else(path: Path) -> None:
    wrong = [
        f"dsgd/algorithms/{path.name}:{line}: must not import {module}"
        for line, module in imports(path)
        if module.split(".")[0] not in sys.stdlib_module_names and module not in OF_ALGORITHMS
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("sim", "record"),
        ("sim", "dist"),
        ("dist", "sim"),
        ("dist", "record"),
        ("sim", "cli"),
        ("algorithms", "sim"),
        ("algorithms", "gradients"),
        ("worker", "topology"),
        ("gradients", "sim"),
        ("experiment", "algorithms"),
        ("report", "record"),
        ("record", "report"),
    ],
)
def test_the_rule_forbids(source: str, target: str) -> None:
    assert not allowed(source, target)


def test_configurations_are_composed_and_checked_without_torch() -> None:
    """Importing torch takes longer than a configuration error may."""
    program = """
import sys
import dsgd.cli.build, dsgd.cli.compose, dsgd.cli.run
from importlib.resources import files
names = [path.name[:-5] for path in (files("dsgd.conf") / "algo").iterdir() if path.name.endswith(".yaml")]
assert names
for name in names:
    dsgd.cli.build.build_experiment(dsgd.cli.compose.composed([f"algo={name}", "experiment=quadratic"])[0])
    dsgd.cli.build.build_experiment(dsgd.cli.compose.composed([f"algo={name}", "model=resnet8"])[0])
slow = {"torch", "sklearn", "matplotlib", "wandb", "networkx"} & set(sys.modules)
assert not slow, slow
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
