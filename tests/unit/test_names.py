"""One name, one thing: files, classes and aliases of the package have names of their own, and variables say what they
hold."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.each_row import each_row

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("dsgd", "studies") for path in (ROOT / folder).rglob("*.py"))
PAPERS = ROOT / "studies" / "papers"
OF_PACKAGES = {"__init__.py", "__main__.py"}
SAY_NOTHING = {"found", "one", "own", "of", "told", "said", "those", "rest", "words", "place"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def repeated(where: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: places for name, places in where.items() if len(places) > 1}


def public_types(path: Path) -> Iterator[str]:
    """Yield the classes and the aliases of types that a module defines, without those that begin with an underscore."""
    for node in tree(path).body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            continue
        yield from (
            name for name in names if name[0].isupper() and (isinstance(node, ast.ClassDef) or not name.isupper())
        )


def bound(node: ast.AST) -> list[str]:
    """Return the names that a node of the syntax gives to something: a variable, parameter, field, method or import."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.alias(name=name, asname=other):
            return [other or name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
    return []


def test_no_two_files_have_one_name() -> None:
    """But for the folders of papers, which all have one layout."""
    where = defaultdict(list)
    for path in FILES:
        if path.name not in OF_PACKAGES and path.parent.parent != PAPERS:
            where[path.name].append(str(path.relative_to(ROOT)))
    assert repeated(where) == {}


def test_no_two_public_classes_or_aliases_have_one_name() -> None:
    where = defaultdict(list)
    for path in FILES:
        for name in public_types(path):
            where[name].append(str(path.relative_to(ROOT)))
    assert repeated(where) == {}


def test_variables_parameters_and_fields_say_what_they_hold() -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {name}"
        for path in FILES
        for node in ast.walk(tree(path))
        for name in bound(node)
        if name in SAY_NOTHING
    ]
    assert lines == []


@each_row(
    ("code", "names"),
    [
        ("def f(one, *, place=1): ...", ["f", "one", "place"]),
        ("x.own = 1", ["own"]),
        ("class A:\n    words: str", ["A", "words"]),
        ("[of for of in a]", ["of"]),
        ("from a import said as told", ["told"]),
        ("print(found.rest)", []),
    ],
)
def test_every_way_of_giving_a_name_is_seen(code: str, names: list[str]) -> None:
    assert sorted(name for node in ast.walk(ast.parse(code)) for name in bound(node)) == sorted(names)
