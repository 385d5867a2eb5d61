"""Every key of conf/ has a user: a study, an experiment, a cluster file, the Makefile, or a page that says to set it.

A key that nobody sets is code, documentation and tests that nobody needs. A list of all keys is no use of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from studies.evidence.make_trials import missing_of, overrides_of
from studies.evidence.pipeline import Pipelines
from studies.papers import papers
from studies.yardstick.measured_table import TIMING, tables

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf"
ALGORITHMS = sorted(path.stem for path in (CONF / "algo").glob("*.yaml"))
COMPLETE = CONF / "cluster" / "gigabit.yaml"  # has every key of a cluster; the other files set some

# which need no user among the studies, and why
PLUMBING = {
    "resume": "a run that was interrupted needs it",
    "resume_trusted": "a checkpoint of the user's own classes needs it",
    "slurm.": "a site sets it in a file of its own",
    "sweep.": "depends on the machine alone",
    "track": "copies the record, changes no run",
    "wandb.": "an account and a service of the user's",
    "mlflow.": "a server of the user's",
    "tensorboard.": "a tracker, as the two above",
    "hydra.": "Hydra's own",
    "data.collection": "is what a file of conf/data is about: a choice, no option",
    "schedule.kind": "is what a file of conf/schedule is about: a choice, no option",
    "model.name": "is what most files with it are about; model=torchvision must be given one",
}
GUIDES = ("README.md", "docs/howto", "docs/tutorials", "examples")  # where each key that is named is one to set

Key = tuple[str, str]  # algorithm, or "" for a key of every run; key


def leaves(group: str, values: Any) -> Iterator[str]:
    """Yield the keys of a file of a group; group: "" for those of the top level."""
    for name, value in values.items():
        key = f"{group}.{name}" if group else name
        if name in ("_target_", "defaults") or (name == "name" and group == "algo"):
            continue
        if isinstance(value, dict) and value:
            yield from leaves(key, value)
        else:
            yield key


def in_file(path: Path) -> set[str]:
    values = yaml.safe_load(re.sub(r"\$\{.*?\}", "x", path.read_text()))
    return set(leaves("" if path.parent in (CONF, CONF / "experiment") else path.parent.name, values))


def all_keys() -> set[Key]:
    files = [CONF / "config.yaml", CONF / "compare.yaml", COMPLETE]
    for group in ("model", "data", "optimizer", "schedule", "topology", "engine", "slurm"):
        files += (CONF / group).glob("*.yaml")
    keys = {("", key) for path in files for key in in_file(path)}
    return keys | {(name, key) for name in ALGORITHMS for key in in_file(CONF / "algo" / f"{name}.yaml")}


KEYS = all_keys()
OF_RUNS = {key for algorithm, key in KEYS if not algorithm}
OPTIONS: Mapping[str, set[str]] = {name: {key for of, key in KEYS if of == name} for name in ALGORITHMS}


def in_command(line: str) -> set[Key]:
    """Return the keys that a command gives values: `key=value`, and `key: value` in a mapping.

    An option of an algorithm counts for the contender, in braces, that it stands in, else for all algorithms named."""
    line = re.sub(r"\$+\{[^{}]*\}", "", line)  # interpolations
    contenders = re.findall(r"\{[^{}]*\balgo: ?\w+[^{}]*\}", line)
    keys = set[Key]()
    for contender in contenders:
        line = line.replace(contender, " ")
        algorithm = re.findall(r"\balgo: ?(\w+)", contender)[0]
        keys |= {(algorithm, key) for key in given(contender) & OPTIONS.get(algorithm, set())}
        keys |= {("", key) for key in given(contender) & OF_RUNS}
    named = {name for names in re.findall(r"(?<![\w.])algo=([\w,]+)", line) for name in names.split(",")}
    named |= {name for contender in contenders for name in re.findall(r"\balgo: ?(\w+)", contender)}
    for algorithm in named & set(ALGORITHMS) or {"sync"}:
        keys |= {(algorithm, key) for key in given(line) & OPTIONS[algorithm]}
    return keys | {("", key) for key in given(line) & OF_RUNS}


def given(text: str) -> set[str]:
    """Return the words in front of `=` or `: `, and what they are keys of: of a.b.15 also a.b."""
    words = re.findall(r"(?<![\w.])([a-z_]+(?:\.\w+)*)(?==|: )", text)
    return {word.rsplit(".", cut)[0] for word in words for cut in range(word.count(".") + 1)}


def commands_of_studies() -> Iterator[str]:
    for paper in papers():
        for study in paper.studies:
            yield " ".join(study.overrides)
        for run in missing_of(paper.needs_of(), Pipelines({}, {}), 3):
            yield " ".join(overrides_of(run))
    for table in tables():
        for row in table.rows:
            yield " ".join([*TIMING, *row.overrides])
    variables = dict(re.findall(r"^(\w+) \??:?= (.*)$", makefile := joined("Makefile"), re.MULTILINE))
    for line in re.findall(r"\$\(BIN\)/dsgd-.*", makefile):
        yield re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], ""), line)


def joined(name: str) -> str:
    return (ROOT / name).read_text().replace("\\\n", " ")


def in_settings() -> set[Key]:
    paths = [*(CONF / "experiment").glob("*.yaml"), *(CONF / "cluster").glob("*.yaml")]
    return {("", key) for path in paths if path != COMPLETE for key in in_file(path)}


def on_pages() -> set[Key]:
    keys = set[Key]()
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]:
        name = str(path.relative_to(ROOT))
        for passage in passages(joined(name)):
            keys |= told(passage, is_guide=name.startswith(GUIDES))
    return keys


def passages(text: str) -> Iterator[str]:
    """Yield the parts of a page that stand for themselves: a command, a row of a table, a point of a list, a
    paragraph. A row is preceded by the group of keys that the head of its table names."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.strip("\n").splitlines()
        if not lines or lines[0].startswith("    "):
            yield from lines
        elif lines[0].startswith("|"):
            head = re.search(r"\bkeys(?: of `(\w+)`)?", lines[0])
            group = (head[1] or "cluster") if head else None
            yield lines[0]
            for row in lines[2:]:
                words = re.findall(r"`([a-z_]+)[`=]", row.split("|")[2])
                yield row + ("".join(f" {group}.{word}=" for word in words) if group else "")
        else:
            yield from re.split(r"\n(?=- |\d+\. )", "\n".join(lines))


def told(passage: str, is_guide: bool) -> set[Key]:
    """Return the keys that a passage tells its reader to set: those with a value; in a guide all that it names.

    An option of an algorithm must stand beside the algorithm's name."""
    if passage.startswith("    "):
        return in_command(passage)
    names = given(passage)
    if is_guide:
        words = re.findall(r"(?<![\w.])[a-z_]+(?:\.\w+)+", passage)
        names |= {word.rsplit(".", cut)[0] for word in words for cut in range(word.count("."))}
    keys = {("", key) for key in names & OF_RUNS}
    for algorithm in ALGORITHMS:
        if re.search(rf"[`= ]{algorithm}\b", passage):
            keys |= {(algorithm, key) for key in names & OPTIONS[algorithm]}
    return keys


def unused() -> set[Key]:
    used = in_settings() | on_pages()
    for line in commands_of_studies():
        used |= in_command(line)
    return {key for key in KEYS - used if not key[1].startswith(tuple(PLUMBING))}


def test_every_key_has_a_user() -> None:
    lines = [f"algo={algorithm} {key}" if algorithm else key for algorithm, key in unused()]
    assert sorted(lines) == [], (
        "nobody sets these keys: no study, experiment, cluster file or page. Take a key away, or say on a page when "
        "to set it"
    )


def test_plumbing_is_what_there_is() -> None:
    assert [name for name in PLUMBING if name != "hydra." and not any(key.startswith(name) for key in OF_RUNS)] == []


def test_what_counts_as_a_use() -> None:
    """Guards the matching: one that finds a use everywhere would test nothing."""
    assert in_command("algo=gossip algo.tau=10 nodes=8") == {("gossip", "algo.tau"), ("", "nodes")}
    assert in_command("compare.contenders=[{algo: diloco, algo.tau: 10}, {algo: localsgd}]") == {
        ("diloco", "algo.tau"),
        ("", "compare.contenders"),
    }
    assert told("Set `algo.tau=4` for `localsgd`.", is_guide=False) == {("localsgd", "algo.tau")}
    assert told("`localsgd` has `algo.tau`; see `trace`.", is_guide=False) == set()
    assert list(passages("| a | keys of `cluster` |\n|---|---|\n| `x` | `loss`, `links` |"))[1:] == [
        "| `x` | `loss`, `links` | cluster.loss= cluster.links="
    ]
