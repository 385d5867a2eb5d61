"""Write the reference pages that follow from the code: docs/reference/keys.md, commands.md and algorithms/*.md.

    python scripts/reference_pages.py      # after a change of a key, a command's help or an algorithm's docstring

The keys come from conf/, the commands from what they print for --help, the algorithms from the docstrings in
dsgd/algorithms with the NumPy loops of the tests. tests/unit/test_docs.py compares the committed pages.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from dsgd.cli.commands import MODULES
from dsgd.cli.key_list import HEAD, comments

ROOT = Path(__file__).resolve().parents[1]
CONF, ALGORITHMS, ORACLES = ROOT / "conf", ROOT / "dsgd" / "algorithms", ROOT / "tests" / "engine" / "oracles"
# Lines of an algorithm's docstring that begin a paragraph.
PARAGRAPH = re.compile(r"\n(?=\S)((?:Differences|Cost|Output model|A worker that fails)\b)")
COMMANDS = ("compare", "plot", "sweep", "reproduce", "calibrate", "replay", "certify")  # whose help argparse prints
# By algorithm: the functions that are its NumPy loop, where the name alone does not find them.
LOOPS = {
    "sync": ["sync", "backup_workers"],
    "diloco": ["diloco"],
    "easgd": ["easgd", "easgd_in_lockstep"],
    "gossip": ["gossip_pull", "gossip_push"],
    "gasloc": ["gasloc", "laplacian"],
    "asyncdiloco": ["asyncdiloco", "towards"],
    "choco": ["loop"],
    "relay": ["loop"],
    "corrected": ["d2", "tracking", "qg", "decentlam"],
    "compressed": ["test_agrees_with_a_numpy_loop"],
}
GROUPS = {
    "algo": "Algorithm",
    "cluster": "Cluster: time and faults of the simulated machines",
    "data": "Data",
    "model": "Model",
    "optimizer": "Optimizer",
    "schedule": "Learning-rate schedule",
    "topology": "Topology: who are neighbours in the graph",
    "engine": "Engine",
    "slurm": "SLURM: what `dsgd-sweep` passes on",
}


def reference_pages() -> dict[str, str]:
    """Return the text of each page, by its path in docs/reference."""
    names = sorted(path.stem for path in (CONF / "algo").glob("*.yaml"))
    pages = {f"algorithms/{name}.md": algorithm_page(name) for name in names}
    return {"keys.md": keys_page(), "commands.md": commands_page()} | pages


def keys_page() -> str:
    """Return the page of all configuration keys, from conf/ and its comments."""
    blocks = [
        "# Configuration keys\n\nThis page is generated from the files in `conf/`. Type any key as `key=value` behind "
        "`dsgd-run` or\n`dsgd-compare`; `group=choice` selects a file of a group. `dsgd-run --help` prints the same "
        "keys with the values that\nyour command line gives them.\n",
        "## Keys of every run\n\n" + key_table(CONF / "config.yaml", ""),
        "## Keys of dsgd-compare\n\n" + key_table(CONF / "compare.yaml", ""),
    ]
    for group, title in GROUPS.items():
        blocks.append(f"## {title}\n\n" + "\n".join(choices(group)))
    rows = [f"| `experiment={path.stem}` | {title_of(path)} |" for path in sorted((CONF / "experiment").glob("*.yaml"))]
    blocks.append(
        "## Experiments\n\nAn experiment sets several groups and keys at once. Your own `key=value` wins."
        "\n\n| choice | sets |\n|---|---|\n" + "\n".join(rows) + "\n"
    )
    return "\n".join(blocks)


def choices(group: str) -> Iterator[str]:
    """Yield a section for each choice of a group that has keys of its own to explain, then a table of the others."""
    others = []
    for path in sorted((CONF / group).glob("*.yaml")):
        table = key_table(path, group)
        more = f" [Pseudo-code and cost](algorithms/{path.stem}.md)." if group == "algo" else ""
        if table and not (group == "cluster" and path.stem != "gigabit"):
            yield f"### {group}={path.stem}\n\n{title_of(path)}{more}\n\n{table}"
        else:
            others.append(f"| `{group}={path.stem}` | {title_of(path)}{more} |")
    if others:
        yield "| choice | is |\n|---|---|\n" + "\n".join(others) + "\n"


def title_of(path: Path) -> str:
    """Return what a configuration file says of itself in its first comment."""
    return cell(comments(path.read_text()).get("", ""))


def key_table(path: Path, group: str) -> str:
    """Return the table of a file's keys that have a comment. group: their prefix."""
    text = path.read_text()
    values: dict[str, Any] = yaml.safe_load(text) or {}
    effects = comments(text)
    rows = []
    for key, value in leaves(values, ""):
        above = key.rpartition(".")[0]
        comment = effects.get(key, "") or (effects.get(above, "") if above else "")
        if not key.startswith(("defaults", "hydra", "_target_")) and not (key == "slurm" or key in GROUPS):
            default = shown(value).replace("|", "\\|")
            rows.append(f"| `{group + '.' if group else ''}{key}` | `{default}` | {cell(comment)} |")
    if not rows or not any(effects.values()):
        return ""
    return "| key | default | effect |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def leaves(values: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with their values."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def shown(value: object) -> str:
    """Return a value as one types it."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def cell(text: str) -> str:
    """Return a text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


def commands_page() -> str:
    """Return the page of the commands: what each prints for --help."""
    texts = {"run": HEAD}
    for command in COMMANDS:
        texts[command] = help_of(command)
    for name in ("submit", "status", "logs", "cancel", "retry", "collect"):
        texts[f"sweep {name}"] = help_of("sweep", name)
    texts["calibrate need"] = help_of("calibrate", "need")
    blocks = [f"## dsgd-{name}\n\n```text\n{text.rstrip()}\n```\n" for name, text in texts.items()]
    head = (
        "# Commands\n\nThis page is generated: it holds what each command prints for `--help`. `dsgd-run --help` also "
        "lists every key;\n[Configuration keys](keys.md) has them.\n\n"
    )
    return head + "\n".join(blocks)


def help_of(command: str, *words: str) -> str:
    """Return what a command prints for --help, 100 columns wide."""
    printed = io.StringIO()
    module = importlib.import_module(MODULES[command])
    columns = patch.dict(os.environ, COLUMNS="100")
    with columns, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        module.main([*words, "--help"])
    return printed.getvalue()


def algorithm_page(name: str) -> str:
    """Return the page of an algorithm: docstring, options, NumPy loop."""
    file = CONF / "algo" / f"{name}.yaml"
    module = ROOT.joinpath(*yaml.safe_load(file.read_text())["_target_"].split(".")[:-1]).with_suffix(".py")
    docstring = PARAGRAPH.sub(r"\n\n\1", ast.get_docstring(ast.parse(module.read_text())) or "")
    table = key_table(file, "algo") or "None.\n"
    page = f"# {name}\n\n{docstring}\n\n## Options\n\nSelect it with `algo={name}`.\n\n{table}"
    if loops := list(numpy_loops(name)):
        page += (
            "\n## The same in NumPy\n\nThe tests compare the algorithm with this loop. `s` is the setting: workers, "
            "steps, learning rate, gradients.\n`X` has one row per worker.\n\n```python\n"
            + "\n\n\n".join(loops)
            + "\n```\n"
        )
    return page


def numpy_loops(name: str) -> Iterator[str]:
    """Yield the source of each function that is an algorithm's NumPy loop."""
    wanted = LOOPS.get(name, [name])
    for path in (ROOT / "tests" / "support" / "reference.py", ORACLES / f"test_{name}.py"):
        text = path.read_text() if path.is_file() else ""
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name in wanted:
                yield ast.get_source_segment(text, node) or ""


if __name__ == "__main__":
    for name, text in reference_pages().items():
        (ROOT / "docs" / "reference" / name).write_text(text)
