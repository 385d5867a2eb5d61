"""Try random training loops around `dsgd.torch.distribute`: each equals its reference, or one line refuses it.

    python benchmarks/random_loops.py --loops 500 --out results/own_loops   # goes on where it was stopped
    python benchmarks/random_loops.py --only 137                            # one again, with all that it printed

A loop is drawn from its number: a small module, an optimiser, a method, two or three gloo ranks, and what the loop does
besides (benchmarks/user_loops). `sync` must equal DistributedDataParallel bit for bit. Every other method must equal
plain loops in one process that exchange by a board: bit for bit with two ranks, else to 1e-8. The processes of a group
live for many loops.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support and benchmarks

from benchmarks.user_loops.random_loops import BROKEN, DIFFERENT, EQUAL, OUTCOMES, draw

ROOT = Path(__file__).resolve().parents[1]
CASES = "cases.jsonl"
AT_A_TIME = 40  # loops that one group of processes tries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first loop")
    parser.add_argument("--only", type=int, help="try this one")
    parser.add_argument("--out", type=Path, help="folder for cases.jsonl and README.md")
    options = parser.parse_args()
    if options.only is not None:
        cases = tried([options.only], is_shown=True)
        sys.exit(is_wrong(cases[0]))
    cases = read(options.out / CASES) if options.out else []
    done = {case["number"] for case in cases}
    numbers = [n for n in range(options.first, options.first + options.loops) if n not in done]
    for nodes in (2, 3):
        here = [number for number in numbers if draw(number).nodes == nodes]
        while here:
            new = tried(here[:AT_A_TIME])
            cases += new
            here = here[len(new) :]
            if options.out:
                options.out.mkdir(parents=True, exist_ok=True)
                with (options.out / CASES).open("a") as file:
                    file.writelines(json.dumps(case) + "\n" for case in new)
            print(f"{len(cases)} loops, of {nodes} ranks: {Counter(case['outcome'] for case in new)}", flush=True)
    cases.sort(key=lambda case: case["number"])
    page = report(cases)
    print(page)
    if options.out:
        (options.out / CASES).write_text("".join(json.dumps(case) + "\n" for case in cases))
        (options.out / "README.md").write_text(page)
    sys.exit(any(map(is_wrong, cases)))


def tried(numbers: Sequence[int], is_shown: bool = False) -> list[dict[str, Any]]:
    """Try loops of as many ranks in one group of processes. Returns at least the first one's case.

    A loop that breaks the group is the last of those returned."""
    with tempfile.TemporaryDirectory() as folder:
        call = ("benchmarks.user_loops.random_loops:try_all", json.dumps(numbers))
        line = [sys.executable, "-m", "tests.support.own_loops", folder, str(draw(numbers[0]).nodes), *call]
        ended = subprocess.run(line, cwd=ROOT, capture_output=not is_shown, text=True, check=False)
        cases = read(Path(folder) / CASES)
    if ended.returncode and len(cases) < len(numbers):
        number = numbers[len(cases)]
        cases.append(draw(number).described() | {"outcome": BROKEN, "line": "the processes ended"})
    return cases


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def is_wrong(case: dict[str, Any]) -> bool:
    return case["outcome"] in (DIFFERENT, BROKEN)


def report(cases: Sequence[dict[str, Any]]) -> str:
    """Return the page about all cases."""
    count = Counter(case["outcome"] for case in cases)
    what = "a small module, an optimizer, a method of `dsgd.torch.distribute`, two or three ranks, and what a loop does"
    return (
        "\n\n".join(
            (
                "# Random training loops",
                f"{len(cases)} loops ([benchmarks/random_loops.py](../../benchmarks/random_loops.py)), each {what}. "
                f"{count[EQUAL]} loops equalled their reference. One line refused {count['refused']} loops. "
                f"{count[DIFFERENT]} loops differed. {count[BROKEN]} loops broke.",
                "The reference of `sync` is DistributedDataParallel, bit for bit. Others are compared with plain "
                "loops in one process: bit for bit with two ranks, else to 1e-8.",
                *(table(cases, key) for key in ("method", "optimizer", "habits", "blocks")),
                "| refused because | loops |\n|---|---:|\n"
                + "\n".join(f"| {why} | {n} |" for why, n in sorted(reasons(cases).items())),
            )
        )
        + "\n"
    )


def table(cases: Sequence[dict[str, Any]], key: str) -> str:
    """Return a table of outcomes by a field of the cases, which may have several values."""
    names = sorted({name for case in cases for name in values(case, key)})
    rows = [
        (name, *(sum(case["outcome"] == kind and name in values(case, key) for case in cases) for kind in OUTCOMES))
        for name in names
    ]
    head = f"| {key} | {' | '.join(OUTCOMES)} |\n|---|{'---:|' * len(OUTCOMES)}\n"
    return head + "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def values(case: dict[str, Any], key: str) -> set[str]:
    value = case[key]
    return {value} if isinstance(value, str) else set(value) or {"none"}


def reasons(cases: Sequence[dict[str, Any]]) -> Counter[str]:
    return Counter(case["line"].partition(", got ")[0] for case in cases if case["outcome"] == "refused")


if __name__ == "__main__":
    main()
