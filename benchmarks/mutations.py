"""Does a test fail when a line of the package is wrong? Single-line changes, and which suite of tests notices which.

    python benchmarks/mutations.py choose .                      # the changes: results/mutations
    python benchmarks/mutations.py run . --out outputs/new       # which test notices which; resumes after a stop
    python benchmarks/mutations.py table --old outputs/old --new outputs/new

Another checkout is tested by its Python, here only with the changes that no test of the first one notices:

    ../old/.venv/bin/python benchmarks/mutations.py run ../old --out outputs/old --lives-in outputs/new

`run` first runs each file of tests with a mark before every line that could be changed, so it knows which tests run
which lines. Then it makes one change at a time, and runs only files whose tests run the changed line: some quick tests
of the nearest files, the files of a minute, the remaining ones. A change is killed by the first test that fails with it
and passes without it, or takes much longer. A change that no test notices lives.

A change is known by file, function, line and text, so it is found again in a checkout whose files have moved. `choose`
keeps the changes of the table that are still possible. The next in the order that SEED gives replace the others. With
several checkouts it chooses what is possible in each of them.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import csv
import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from mutation_sites import Mutation, addresses, addresses_in, digest, is_possible, located, mutations, replaced, sites
from mutation_tests import Runner, in_processes

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "results" / "mutations" / "table.csv"
SEED = 54
PLACES = {  # 120; about equally many for each line of code, and at least 6
    "engines/sim": 27,
    "engines/rules": 6,
    "engines/dist/pairwise": 15,
    "engines/dist/coordinator": 17,
    "algorithms": 18,
    "topology": 6,
    "compression": 6,
    "comparison": 6,
    "record": 13,
    "report": 6,
}
ALONE = {
    "comparison": {"bisection.py", "derived.py", "options.py", "tuning.py"},
    "report": {"ratio.py", "interval.py"},
}
FIELDS = [field.name for field in fields(Mutation)]
NEAREST, EXAMPLES, MINUTE_S = 6, 3, 60  # files of the first step, tests of each of them, seconds of the second step
README = """\
# Which suite of tests notices a wrong line

Single-line changes in the package, chosen by [mutations.py](../../benchmarks/mutations.py) and tested one at a time. A
change is killed if a test fails with it and passes without it. [table.csv](table.csv) has each change, and the first
test that kills it. The old suite is that before the tests became fewer. Some changes alter nothing that can be
observed: no test kills them, and `why` says so.

| place | changes | killed by the new suite | killed by the old suite alone |
|---|---:|---:|---:|
"""
MARK = """
import os
SEEN = set()
def at(number):
    key = (number, os.environb.get(b"PYTEST_CURRENT_TEST", b"?"))
    if key not in SEEN:
        SEEN.add(key)
        try:
            with open(os.path.join(os.path.dirname(__file__), "reached.txt"), "ab", buffering=0) as file:
                file.write(b"%d\\t%s\\n" % key)
        except OSError:
            pass
"""


def choose(trees: Sequence[Path], kept: Sequence[Mutation]) -> list[Mutation]:
    """Return the changes of all places: those to keep first, then of each kind in turn, in an order that SEED gives."""
    chosen = []
    for place, number in PLACES.items():
        folder = trees[0] / "dsgd" / place
        paths = [path for path in folder.rglob("*.py") if path.name in ALONE.get(place, {path.name})]
        ranks, order = Counter[str](), []
        everything = [mutation for path in paths for mutation in mutations(trees[0], path)]
        for mutation in sorted(everything, key=lambda m: digest(SEED, m.address, m.kind, m.changed)):
            order.append((ranks[mutation.kind], digest(SEED, mutation.kind, place), mutation))
            ranks[mutation.kind] += 1
        ordered = [mutation for *_, mutation in sorted(order, key=lambda entry: entry[:2])]
        lines = set[str]()
        for mutation in [m for m in kept if m.file.startswith(f"dsgd/{place}/")] + ordered:
            if len(lines) < number and mutation.address not in lines and all(is_possible(t, mutation) for t in trees):
                lines.add(mutation.address)
                chosen.append(mutation)
    return chosen


def chosen_mutations() -> list[Mutation]:
    """Return the changes of the table."""
    texts = [{name: row[name] for name in FIELDS} for row in table_rows()]
    return [Mutation(**text) for text in texts]


def table_rows() -> list[dict[str, Any]]:
    """Return the rows of the table, with numbers where a change has them."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return [row | {"occurrence": int(row["occurrence"])} for row in csv.DictReader(file)]


def key(row: dict[str, Any]) -> str:
    return digest(*(row[name] for name in FIELDS))


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def mark_lines(tree: Path, folder: Path) -> list[str]:
    """Copy the package, with a mark before each line that could be changed. Return each mark's addresses."""
    shutil.copytree(tree / "dsgd", folder, ignore=shutil.ignore_patterns("__pycache__"))
    marks = []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text()
        lines, where, marked = source.splitlines(keepends=True), addresses(source), defaultdict[int, set[str]](set)
        for site in sites(source):
            marked[site.statement].add(digest(path.name, *where[site.number]))
        for number in sorted(marked, reverse=True):
            lines.insert(number, re.sub(r"\S.*", f"_reached_at({len(marks)})", lines[number]))
            marks.append(" ".join(marked[number]))
        if marked:
            body = ast.parse(source).body  # after the docstring, and the import that must be the first
            first = next(n for n in body if not isinstance(n, ast.Expr) and getattr(n, "module", "") != "__future__")
            lines.insert(first.lineno - 1, "from dsgd.reached import at as _reached_at\n")
            path.write_text("".join(lines))
    (folder / "reached.py").write_text(MARK)
    compileall.compile_dir(folder, quiet=1)
    return marks


def reach(runner: Runner, files: Sequence[str], record: Path, jobs: int) -> None:
    """Write which lines each file of tests runs, and some quick tests that run each of them."""
    texts = {file: digest((runner.tree / file).read_text()) for file in files}
    known = {(row["file"], row["text"]) for row in rows(record)}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        marked = Path(folder, "dsgd")
        marks = mark_lines(runner.tree, marked)

        def work(file: str) -> None:
            copy = Path(folder, digest(file))
            shutil.copytree(marked, copy, copy_function=os.link)
            outcome = runner.run([file], over=(copy, runner.tree / "dsgd"), first=False)
            tests = defaultdict[str, set[str]](set)
            log = copy / "reached.txt"
            for line in log.read_text().splitlines() if log.exists() else ():
                number, test = line.split("\t")
                for name in marks[int(number)].split():
                    tests[name].add(test.removesuffix(" (call)"))
            index = {test: i for i, test in enumerate(sorted(outcome.seconds, key=lambda t: outcome.seconds[t]))}
            reached = {name: sorted(index[t] for t in by if t in index)[:EXAMPLES] for name, by in tests.items()}
            used = {i for by in reached.values() for i in by}
            row = {"file": file, "text": texts[file], "seconds": round(sum(outcome.seconds.values()), 2)}
            row |= {"failed": outcome.failed, "reached": reached}
            append(record, row | {"tests": {i: test for test, i in index.items() if i in used}})
            shutil.rmtree(copy)

        in_processes(jobs, [file for file in files if (file, texts[file]) not in known], work)


def judge(runner: Runner, mutation: Mutation, reached: Sequence[dict[str, Any]], record: Path, at_most: float) -> None:
    """Make a change, run the tests that run its line, and write what came of it."""
    row: dict[str, Any] = asdict(mutation) | {"verdict": "absent", "by": "", "why": "", "files": 0, "of_files": 0}
    begun = time.monotonic()
    if where := located(runner.tree, mutation):
        path, number = where
        name = digest(path.name, *addresses_in(path)[number])
        files = [file for file in reached if name in file["reached"]]
        files.sort(key=lambda file: (distance(mutation, file["file"]), file["seconds"]))
        examples = [file["tests"][str(i)] for file in files[:NEAREST] for i in file["reached"][name]]
        minute, others, seconds = list[str](), list[str](), 0.0
        for file in files:
            seconds += file["seconds"]
            if not minute or seconds <= at_most:
                (minute if not minute or seconds < MINUTE_S else others).append(file["file"])
        row |= {"verdict": "lives", "files": len(minute) + len(others), "of_files": len(files)}
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            changed = Path(folder, path.name)
            changed.write_text(replaced(path.read_text(), number, mutation.changed))
            stamp = int(key(asdict(mutation))[:7], 16)
            os.utime(changed, (stamp, stamp))  # one for each change: bytecode is known by it
            for tests in filter(None, (examples, minute, others)):
                slowest_s = max(f["seconds"] for f in files if any(test.startswith(f["file"]) for test in tests))
                patient = replace(runner, limit_s=min(runner.limit_s, 30 + 20 * slowest_s))
                if failed := notice(patient, tests, (changed, path), record):
                    row |= {"verdict": "killed", "by": failed[0], "why": " ".join(failed[1].split())[:160]}
                    break
    append(record, row | {"wall_s": round(time.monotonic() - begun, 1)})
    print(f"{row['verdict']:6}  {mutation.file}: {mutation.changed}  {row['by']}", flush=True)


def notice(runner: Runner, tests: Sequence[str], over: tuple[Path, Path], record: Path) -> tuple[str, str] | None:
    """Return the first test that fails with the change and not without it, and why."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    only = [test for test in tests if "::" in test]
    unfit = [row["unfit"] for row in rows(record) if "unfit" in row]
    while failed := runner.run([*files, *(f"--deselect={test}" for test in unfit)], only, over).failed:
        test = failed[0]
        file = test.partition("::")[0]
        again = runner.run([file], [test]) if file != test else runner.run(files if test == "collection" else [file])
        if not again.failed:
            return failed
        if test in unfit or file == test:
            return None
        unfit.append(test)
        append(record, {"unfit": test})
    return None


def distance(mutation: Mutation, file: str) -> int:
    """Return how near the name of a file of tests is: 0 if the changed file's name is in it, 1 if its folder's is."""
    path = Path(mutation.file)
    return 0 if path.stem in file else 1 if path.parent.name in file else 2


def run(options: argparse.Namespace) -> None:
    """Find which tests of a checkout notice which change."""
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    runner = Runner(options.tree.resolve(), options.limit, ("-m", options.mark))
    suite = options.suite or [runner.tree / "tests"]
    tests = [path for top in suite for path in (sorted(top.rglob("test_*.py")) if top.is_dir() else [top])]
    files = list(dict.fromkeys(str(path.resolve().relative_to(runner.tree)) for path in tests))
    if options.step != "kill":
        reach(runner, files, out / "reached.jsonl", options.jobs)
    if options.step != "reach":
        record = out / "verdicts.jsonl"
        reached = list({row["file"]: row for row in rows(out / "reached.jsonl") if row["file"] in files}.values())
        done = {
            key(row)
            for row in rows(record)
            if row.get("verdict") in ("killed", "absent", None if options.again else "lives")
        }
        left = [m for m in chosen_mutations() if options.only in m.file and key(asdict(m)) not in done]
        if options.lives_in:
            alive = {name for name, row in verdicts(options.lives_in).items() if row["verdict"] == "lives"}
            left = [mutation for mutation in left if key(asdict(mutation)) in alive]
        in_processes(options.jobs, left, lambda mutation: judge(runner, mutation, reached, record, options.at_most))


def verdicts(folder: Path | None) -> dict[str, dict[str, Any]]:
    """Return the last verdict about each change."""
    return {key(row): row for row in (rows(folder / "verdicts.jsonl") if folder else ()) if "verdict" in row}


def shown(row: dict[str, Any]) -> str:
    """Return a verdict as the table has it, with the number of files of tests where not all were run."""
    if row.get("verdict") != "lives":
        return row.get("verdict", "")
    if row["files"] < row["of_files"]:
        return f"lives in {row['files']} of {row['of_files']} files"
    return "lives" if row["files"] else "runs in no test"


def write_table(chosen: Sequence[Mutation], old: Path | None, new: Path | None) -> None:
    """Write the changes with the verdicts of two suites, and how many of each place are killed.

    What the table has of a change stays where a suite was not tried again."""
    in_old, in_new, in_table = verdicts(old), verdicts(new), {key(row): row for row in table_rows()}
    counts = defaultdict[str, Counter[str]](Counter)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    alive = []
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*FIELDS, "old_suite", "new_suite", "killed_by", "why"], lineterminator="\n")
        writer.writeheader()
        for mutation in chosen:
            row = asdict(mutation)
            before, after, known = (of.get(key(row), {}) for of in (in_old, in_new, in_table))
            row |= {name: known.get(name, "") for name in ("old_suite", "new_suite", "killed_by", "why")}
            row |= {name: shown(of) for name, of in (("old_suite", before), ("new_suite", after)) if of}
            row["killed_by"] = after.get("by") or before.get("by") or row["killed_by"]
            row["why"] *= row["new_suite"] != "killed"
            writer.writerow(row)
            killed = [row[suite] == "killed" for suite in ("old_suite", "new_suite")]
            place = next(place for place in PLACES if mutation.file.startswith(f"dsgd/{place}/"))
            counts[place].update(changes=1, new=killed[1], only_old=killed[0] and not killed[1])
            if not killed[1]:
                alive.append(f"- {mutation.file}, {mutation.function}: {row['why'] or row['new_suite'] or 'not tried'}")
    lines = [
        f"| {place} | {count['changes']} | {count['new']} | {count['only_old']} |"
        for place, count in [*counts.items(), ("all", sum(counts.values(), Counter[str]()))]
    ]
    page = README + "\n".join([*lines, "", "Not killed:", "", *alive]) + "\n"
    TABLE.with_name("README.md").write_text(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    choosing = commands.add_parser("choose", help="choose the changes")
    choosing.add_argument("trees", type=Path, nargs="+", help="checkouts")
    running = commands.add_parser("run", help="find which tests of a checkout notice which change")
    running.add_argument("tree", type=Path, help="checkout, with its own .venv")
    running.add_argument("--out", type=Path, required=True, help="folder of reached.jsonl and verdicts.jsonl")
    running.add_argument("--suite", type=Path, nargs="+", help="folders and files of tests; all if not given")
    running.add_argument("--mark", default="", help="as pytest -m, where a suite has marks")
    running.add_argument("--step", choices=("reach", "kill"), help="only this step")
    running.add_argument("--jobs", type=int, default=1, help="processes")
    running.add_argument(
        "--limit", type=float, default=120, help="most seconds of a test; less for files of quick tests"
    )
    running.add_argument(
        "--at-most", type=float, default=float("inf"), help="processor seconds of tests for one change"
    )
    running.add_argument("--again", action="store_true", help="judge once more what lives")
    running.add_argument("--only", default="", help="only changes of files with this in their path")
    running.add_argument("--lives-in", type=Path, help="only changes that live with the tests of this folder")
    tabling = commands.add_parser("table", help="write the table of two suites")
    tabling.add_argument("--old", type=Path, help="folder of the old suite")
    tabling.add_argument("--new", type=Path, help="folder of the new suite")
    options = parser.parse_args()
    if options.command == "run":
        run(options)
    elif options.command == "choose":
        write_table(choose([tree.resolve() for tree in options.trees], chosen_mutations()), None, None)
    else:
        write_table(chosen_mutations(), options.old, options.new)


if __name__ == "__main__":
    main()
