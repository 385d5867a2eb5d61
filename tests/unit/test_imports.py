from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import dsgd

PACKAGE = Path(dsgd.__file__).parent
EXTRAS = ("torchvision", "wandb", "tensorboard", "mlflow")

# Which parts of the package each part may import: the edges that are wanted, and no others. "" is dsgd itself. The
# engines are parts of their own, and so is what chooses among them.
WANTED = {
    "": {"python"},
    "worker": set(),
    "topology": {"host"},
    "streams": set(),
    "keys": set(),
    "optim": {"host", "keys"},
    "cluster": {"host", "keys"},
    "crossing": set(),
    "host": set(),
    "models": {"keys"},
    "data": {"streams", "host", "keys", "models"},
    "experiment": {"cluster", "crossing", "data", "keys", "models", "optim", "topology", "worker"},
    "algorithms": {"compression", "keys", "streams", "topology", "worker"},
    "compression": {"streams", "worker"},
    "problem": {"data", "experiment", "host", "optim", "streams"},
    "gradients": {"data", "experiment", "host", "problem", "streams"},
    "record": {"host"},
    "runner": {"data", "engines.rules", "experiment", "gradients", "host", "keys", "models", "optim", "problem"}
    | {"record", "topology", "worker"},
    "engines.rules": {"crossing", "experiment", "optim", "problem", "worker"},
    "engines.sim": {"cluster", "data", "engines.rules", "experiment", "gradients", "host", "optim", "problem", "record"}
    | {"runner", "streams", "worker"},
    "engines.dist": {"cluster", "data", "engines.rules", "experiment", "host", "optim", "problem", "record", "runner"}
    | {"streams", "worker"},
    "engines.torch": {"data", "engines.dist", "engines.rules", "host", "optim", "problem", "record", "runner"}
    | {"streams", "worker"},
    "engines": {"engines.dist", "engines.sim", "engines.torch", "host", "record", "runner"},
    "torch": {"engines.torch", "runner", "streams", "worker"},
    "certificate": {"data", "engines.dist", "host", "models", "runner", "streams", "torch", "worker"},
    "report": {"crossing", "experiment", "keys", "record"},
    "sweep": {"keys", "record"},
    "traces": {"host"},
    "python": {"record", "report", "runner"},
    "comparison": {"cli", "crossing", "data", "host", "keys", "record", "report", "runner", "sweep"},
    "replay": {"cli", "cluster", "comparison", "engines.rules", "engines.sim", "experiment", "host", "record", "report"}
    | {"runner", "traces"},
    "cli": {"certificate", "cluster", "data", "engines", "engines.dist", "engines.rules", "engines.sim", "experiment"}
    | {"host", "keys", "models", "problem", "record", "report", "runner", "sweep", "traces"},
}
# What an algorithm may import, besides the standard library.
OF_ALGORITHMS = {
    "dsgd.keys", "dsgd.worker", "dsgd.topology", "dsgd.streams", "torch", "dsgd.compression",
    "dsgd.compression.codes",
}  # fmt: skip


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
    """The part of dsgd that a module belongs to; '' for dsgd itself."""
    names = module.split(".")[1:]
    within = ".".join(names[:2])
    return within if within in WANTED else ".".join(names[:1])


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_part_of_the_package_has_a_place_in_the_rule() -> None:
    """A new folder or file of dsgd must be put into WANTED, and what is gone must be taken out."""
    assert {part(module_name(path)) for path in FILES} == WANTED.keys()


def test_files_import_what_their_parts_may() -> None:
    wrong = [
        f"dsgd/{path.relative_to(PACKAGE)}:{line}: {part(module_name(path))} must not import {module}"
        for path in FILES
        for line, module in imports(path)
        if module.split(".")[0] == "dsgd"
        and part(module) not in WANTED[part(module_name(path))] | {part(module_name(path)), ""}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_stands_without_the_studies() -> None:
    """`studies/` uses the program, and is not in its wheel."""
    wrong = [f"{path}:{line}" for path in FILES for line, module in imports(path) if module.split(".")[0] == "studies"]
    assert not wrong


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


def test_algorithms_import_the_waist_graphs_and_torch_and_nothing_else() -> None:
    wrong = [
        f"dsgd/algorithms/{path.name}:{line}: must not import {module}"
        for path in sorted((PACKAGE / "algorithms").glob("*.py"))
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
