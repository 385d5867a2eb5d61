"""The single-line changes that `mutations.py` can make in a Python file, and how a line is found again."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TURNED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "==", "in": "not in", "not in": "in"}
TURNED |= {"is": "is not", "is not": "is"}
BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
SIGN = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*"}
LOGIC = {"and": "or", "or": "and"}
CHOICE = {"min": "max", "max": "min", "any": "all", "all": "any"}
OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in"},
    **{ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not", ast.And: "and", ast.Or: "or"},
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//"},
}
MESSAGES = {"print", "warn", "debug", "info", "warning", "error", "exception", "log"}
HARMFUL = re.compile(rb"kill|rmtree|unlink|rmdir|truncate|os\.remove")  # a wrong line would harm more than a test
SEQUENCES = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr)


@dataclass(frozen=True)
class Mutation:
    """A change of a line of a function. line, changed: without indentation. occurrence: which of its equal lines."""

    file: str
    function: str
    line: str
    occurrence: int
    kind: str
    changed: str

    @property
    def address(self) -> str:
        """Return what stays the same when the file moves to another folder."""
        return digest(Path(self.file).name, self.function, self.line, self.occurrence)


@dataclass(frozen=True)
class Site:
    """A possible change. number: of the line, from 0. statement: the first line of the statement around it."""

    number: int
    statement: int
    kind: str
    changed: str


def digest(*values: object) -> str:
    return hashlib.sha256("|".join(map(str, values)).encode()).hexdigest()[:12]


def sites(source: str) -> Iterator[Site]:
    """Yield the possible changes in functions, without messages, annotations and what only shows an object."""
    lines = [line.encode() for line in source.splitlines()]

    def visit(node: ast.AST, statement: int, inside: bool) -> Iterator[Site]:
        if isinstance(node, ast.stmt) and not lines[node.lineno - 1].lstrip().startswith(b"elif "):
            statement = node.lineno - 1
        children: Sequence[ast.AST] = list(ast.iter_child_nodes(node))
        match node:
            case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.FunctionDef(name="__repr__" | "__str__"):
                return
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in MESSAGES:
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                children, inside = node.body, inside or not isinstance(node, ast.ClassDef)
            case ast.AnnAssign():
                children = [node.value] if node.value else []
            case ast.Lambda():
                children = [node.body]
        if inside and isinstance(node, ast.expr | ast.stmt) and node.lineno == node.end_lineno:
            line = lines[node.lineno - 1]
            if HARMFUL.search(line):
                return
            for begin, end, new, kind in _changes(node, line):
                changed = (line[:begin] + new.encode() + line[end:]).decode().strip()
                yield Site(node.lineno - 1, statement, kind, changed)
        for child in children:
            yield from visit(child, statement, inside)

    yield from visit(ast.parse(source), 0, False)


def _changes(node: ast.expr | ast.stmt, line: bytes) -> Iterator[tuple[int, int, str, str]]:
    """Yield the changes of a node that is on one line: begin and end of the old text, the new text, the kind."""
    begin, end = node.col_offset, node.end_col_offset or 0

    def operator(left: ast.expr, right: ast.expr, kind: ast.AST, suffix: str = "") -> tuple[int, int, str]:
        """Return where the operator between two operands is; no text if it stays."""
        old, start = OPERATORS.get(type(kind), "?"), left.end_col_offset or 0
        gap = line[start : right.col_offset].decode()
        texts = (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes) for side in (left, right))
        if (any(texts) and old in SIGN) or any(isinstance(side, SEQUENCES) for side in (left, right)):
            return 0, 0, ""
        match = re.fullmatch(rf"[)\s]*({re.escape(old)}){re.escape(suffix)}[(\s]*", gap)
        return (start + match.start(1), start + match.end(1), old) if match else (0, 0, "")

    match node:
        case ast.Compare(left=left, ops=[kind], comparators=[right]):
            *where, old = operator(left, right, kind)
            for table, name in ((TURNED, "comparison turned"), (BOUNDARY, "boundary")):
                if old in table:
                    yield where[0], where[1], table[old], name
        case ast.BinOp(left=left, op=kind, right=right):
            *where, old = operator(left, right, kind)
            if old in SIGN:
                yield where[0], where[1], SIGN[old], "sign"
        case ast.AugAssign(target=left, op=kind, value=right):
            yield begin, end, "pass", "statement dropped"
            *where, old = operator(left, right, kind, "=")
            if old in SIGN:
                yield where[0], where[1], SIGN[old], "sign"
        case ast.BoolOp(op=kind, values=[left, right]):
            *where, old = operator(left, right, kind)
            if old in LOGIC:
                yield where[0], where[1], LOGIC[old], "logic"
        case ast.UnaryOp(op=ast.Not()):
            yield begin, begin + len("not "), "", "logic"
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield begin, begin + 1, "", "sign"
        case ast.Constant(value=bool(value)):
            yield begin, end, str(not value), "constant"
        case ast.Constant(value=int(value)):
            for other in (value + 1, value - 1)[: 1 + (value > 0)]:
                yield begin, end, str(other), "constant"
        case ast.Call(func=ast.Name(id=name) as function) if name in CHOICE:
            yield begin, function.end_col_offset or 0, CHOICE[name], "choice"
        case ast.Call(func=ast.Attribute(attr="clone" | "copy" as name), args=[], keywords=[]):
            yield end - len(f".{name}()"), end, "", "clone dropped"
        case ast.Expr(value=ast.Await()):
            yield begin, end, "pass", "await dropped"
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))) if name not in MESSAGES:
            yield begin, end, "pass", "statement dropped"


def replaced(source: str, number: int, changed: str) -> str:
    """Return the source with another text in one line, whose indentation stays."""
    lines = source.splitlines(keepends=True)
    indentation = re.match(r"\s*", lines[number])
    assert indentation is not None
    return "".join([*lines[:number], f"{indentation[0]}{changed}\n", *lines[number + 1 :]])


def addresses(source: str) -> list[tuple[str, str, int]]:
    """Return function, text and occurrence of every line."""
    functions = defaultdict[int, str](str)

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = (*names, node.name)
            functions.update(dict.fromkeys(range(node.lineno - 1, node.end_lineno or 0), ".".join(names)))
        for child in ast.iter_child_nodes(node):
            visit(child, names)

    visit(ast.parse(source), ())
    where, seen = [], Counter[tuple[str, str]]()
    for number, line in enumerate(map(str.strip, source.splitlines())):
        where.append((functions[number], line, seen[functions[number], line]))
        seen[functions[number], line] += 1
    return where


@cache
def addresses_in(path: Path) -> list[tuple[str, str, int]]:
    return addresses(path.read_text())


def mutations(tree: Path, path: Path) -> Iterator[Mutation]:
    """Yield the possible changes of a file of a checkout."""
    where = addresses_in(path)
    for site in sites(path.read_text()):
        yield Mutation(path.relative_to(tree).as_posix(), *where[site.number], site.kind, site.changed)


def located(tree: Path, mutation: Mutation) -> tuple[Path, int] | None:
    """Return where a checkout has the line: in the file, in another folder's of this name, or in any other."""
    same, name = tree / mutation.file, Path(mutation.file).name
    others = sorted((tree / "dsgd").rglob("*.py"), key=lambda path: (path.name != name, path))
    for path in [*([same] if same.exists() else []), *others]:
        with suppress(ValueError):
            return path, addresses_in(path).index((mutation.function, mutation.line, mutation.occurrence))
    return None


def is_possible(tree: Path, mutation: Mutation) -> bool:
    """Check that a checkout has the line, and is Python with the change."""
    if not (where := located(tree, mutation)):
        return False
    try:
        ast.parse(replaced(where[0].read_text(), where[1], mutation.changed))
    except SyntaxError:
        return False
    return True
