"""Stage the documentation site: docs/, pages generated from the package, and the repository files that pages link to.

    python scripts/stage_docs.py build/docs      # then: zensical build --strict -f build/zensical.toml; or: make docs

Generated: reference/keys.md from conf/, reference/commands.md from the help of the commands, reference/algorithms/*.md
from the docstrings in dsgd/algorithms with the NumPy loops of the tests. mkdocstrings reads the Python API.
A link that leaves docs/ leads to a copy: a Markdown page stays a page, an image an image; other text is shown as code.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dsgd.cli.key_list import HEAD, comments

ROOT = Path(__file__).resolve().parents[1]
CONF, ALGORITHMS, REFERENCE = ROOT / "conf", ROOT / "dsgd" / "algorithms", ROOT / "tests" / "support" / "reference.py"
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".h": "c", ".c": "c", ".sh": "bash", ".def": "text", ".ipynb": "json"}
# Lines of an algorithm's docstring that begin a paragraph.
PARAGRAPH = re.compile(r"\n(?=\S)((?:Differences|Cost|Output model|A worker that fails)\b)")
# of an algorithm's docstring
COMMANDS = ("compare", "plot", "sweep", "reproduce", "calibrate")  # whose help argparse prints
# By algorithm: the functions that are its NumPy loop, where the name alone does not find them.
LOOPS = {
    "sync": ["sync", "backup_workers"],
    "diloco": ["diloco", "diloco_overlapped"],
    "easgd": ["easgd", "easgd_in_lockstep"],
    "gossip": ["gossip_pull", "gossip_push"],
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


def main(folder: Path) -> None:
    """Write the staged pages into `folder`, and zensical.toml beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.toml"))
    generated = {"reference/keys.md": keys_page(), "reference/commands.md": commands_page()}
    names = sorted(path.stem for path in (CONF / "algo").glob("*.yaml"))
    generated |= {f"reference/algorithms/{name}.md": algorithm_page(name) for name in names}
    for name, text in generated.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for page in sorted(folder.rglob("*.md")):
        mend_links(page, ROOT / "docs" / page.relative_to(folder), folder)
    pages = ", ".join(f'"reference/algorithms/{name}.md"' for name in names)
    config = (ROOT / "docs" / "zensical.toml").read_text()
    (folder.parent / "zensical.toml").write_text(config.replace('"reference/algorithms/*"', pages))


def mend_links(page: Path, source: Path, folder: Path) -> None:
    """Have the links of a staged page lead to staged copies. source: where the page stands in the repository."""

    def mended(match: re.Match[str]) -> str:
        text, target, anchor = match["text"], match["target"], match["anchor"] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = Path(os.path.normpath(source.parent / target))
        if source == ROOT / "README.md" and path.parent == ALGORITHMS:  # whose pages only the site has
            path = ROOT / "docs" / "reference" / "algorithms" / f"{path.stem}.md"
        if path.is_relative_to(ROOT / "docs"):
            page_there = folder / path.relative_to(ROOT / "docs")
            return f"{text}({os.path.relpath(page_there, page.parent)}{anchor})"
        if path.is_dir() and (path / "README.md").is_file():
            path = path / "README.md"
        if not path.is_file():
            return text.strip("[]") if path.is_dir() else match[0]  # a missing file: the strict build names it
        staged = stage(path, folder)
        return f"{text}({os.path.relpath(staged, page.parent)}{anchor if path.suffix == '.md' else ''})"

    page.write_text(LINK.sub(mended, page.read_text()))


def stage(path: Path, folder: Path) -> Path:
    """Copy a file of the repository under files/, as something a browser shows; return the copy."""
    name = path.relative_to(ROOT)
    if path.suffix in (".png", ".svg", ".md"):
        staged = folder / "files" / name
    else:
        staged = folder / "files" / name.with_name(f"{name.name}.md")
    if staged.exists():
        return staged
    staged.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".png", ".svg"):
        shutil.copy(path, staged)
    elif path.suffix == ".md":
        staged.write_text(path.read_text())
        mend_links(staged, path, folder)
    else:
        staged.write_text(f"# {name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text().rstrip()}\n````\n")
    return staged


def keys_page() -> str:
    """Return the page of all configuration keys, from conf/ and its comments."""
    blocks = [
        "# Configuration keys\n\nThis page is generated from the files in `conf/`. Type any key as `key=value` behind "
        "`dsgd-run` or `dsgd-compare`; `group=choice` selects a file of a group. `dsgd-run --help` prints the same "
        "keys with the values that your command line gives them.\n",
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
    told = comments(text)
    rows = []
    for key, value in leaves(values, ""):
        above = key.rpartition(".")[0]
        comment = told.get(key, "") or (told.get(above, "") if above else "")
        if not key.startswith(("defaults", "hydra", "_target_")) and not (key == "slurm" or key in GROUPS):
            default = shown(value).replace("|", "\\|")
            rows.append(f"| `{group + '.' if group else ''}{key}` | `{default}` | {cell(comment)} |")
    return "| key | default | effect |\n|---|---|---|\n" + "\n".join(rows) + "\n" if any(told.values()) and rows else ""


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
    blocks = [f"## dsgd-{name}\n\n```text\n{text.rstrip()}\n```\n" for name, text in texts.items()]
    head = (
        "# Commands\n\nThis page is generated: it holds what each command prints for `--help`. `dsgd-run --help` also "
    )
    return head + "lists every key; [Configuration keys](keys.md) has them.\n\n" + "\n".join(blocks)


def help_of(command: str, *words: str) -> str:
    """Return what a command prints for --help, 100 columns wide."""
    os.environ["COLUMNS"] = "100"
    printed = io.StringIO()
    module = "studies" if command == "reproduce" else command
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        importlib.import_module(f"dsgd.cli.{module}").main([*words, "--help"])
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
            "\n## The same in NumPy\n\nThe tests hold the algorithm against this loop. `s` is the setting: workers, "
            "steps, learning rate, gradients. `X` has one row per worker.\n\n```python\n"
            + "\n\n\n".join(loops)
            + "\n```\n"
        )
    return page


def numpy_loops(name: str) -> Iterator[str]:
    """Yield the source of each function that is an algorithm's NumPy loop."""
    wanted = LOOPS.get(name, [name])
    for path in (REFERENCE, ROOT / "tests" / "oracles" / f"test_{name}.py"):
        text = path.read_text() if path.is_file() else ""
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name in wanted:
                yield ast.get_source_segment(text, node) or ""


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
