"""Inject faults at random moments of real runs: each run must end as docs/explanation/real_processes.md says.

    python benchmarks/faults.py --first 1000 --out results/faults          # goes on where it was stopped
    python benchmarks/faults.py --only 137                                 # one again, with all that it printed

A schedule is drawn from its number: algorithm, options, and one or two faults between the first moment and the very
end: killed, stopped or cut-off processes, signals, a full disk. From number 2000 on, the lines of the record or its
checkpoint are changed before it is gone on with, or a second command is typed for its folder. The rules by which it is
judged stand in benchmarks/injected_faults/schedules.py and tests/support/valid_record.py. A run that did not complete
is resumed, to its end, while another fault may happen. Needs Linux and root: a disk of its own is mounted and filled,
connections of other processes are broken.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support and benchmarks

from benchmarks.injected_faults.schedules import ALGORITHMS, KINDS, draw
from benchmarks.injected_faults.trial import Baselines, Trial, carry_out
from tests.support.prefork import Prefork

CASES = "cases.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first schedule")
    parser.add_argument("--at-once", type=int, default=3 * (os.cpu_count() or 1), help="runs at a time; most only wait")
    parser.add_argument("--only", type=int, help="carry out this one and keep its record")
    parser.add_argument("--out", type=Path, help="folder for cases.jsonl and README.md")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.only is not None:
        sys.exit(again(options.only))
    cases = read(options.out / CASES) if options.out else []
    done = {case["number"] for case in cases}
    numbers = [n for n in range(options.first, options.first + options.schedules) if n not in done]
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    waiting: multiprocessing.Queue[int | None] = multiprocessing.Queue()
    results: multiprocessing.Queue[dict[str, Any]] = multiprocessing.Queue()
    for number in [*numbers, *[None] * options.at_once]:
        waiting.put(number)
    for place in range(options.at_once):
        multiprocessing.Process(target=work, args=(folder / str(place), waiting, results), daemon=True).start()
    for count in range(1, len(numbers) + 1):
        case = results.get()
        cases.append(case)
        if options.out:
            with (options.out / CASES).open("a") as file:
                file.write(json.dumps(case) + "\n")
        found = "; ".join(case["found"])
        print(
            f"[{count}/{len(numbers)}] {case['number']:4} {case['algo']:<18} {' '.join(case['ends']):<24} {found}",
            flush=True,
        )
    table = report(sorted(cases, key=lambda case: case["number"]))
    print(table)
    if options.out:
        (options.out / "README.md").write_text(table)
    sys.exit(any(case["found"] for case in cases))


def work(folder: Path, waiting: multiprocessing.Queue[int | None], results: multiprocessing.Queue[Any]) -> None:
    """Carry out schedules, one after the other, until None comes."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a shell's background and nohup have them ignored, in runs as well
        signal.signal(number, signal.SIG_DFL)
    folder.mkdir(parents=True)
    prefork = Prefork()
    baselines = Baselines(prefork, folder)
    while (number := waiting.get()) is not None:
        schedule = draw(number)
        try:
            trial = carry_out(schedule, folder / f"case{number:05}", prefork, baselines)
        except (OSError, AssertionError, ValueError, KeyError) as error:
            trial = Trial(schedule, found=[f"the campaign failed: {type(error).__name__}: {error}"])
        results.put(described(trial))
    prefork.close()


def described(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain values."""
    schedule = trial.schedule
    drawn = (*schedule.faults, *schedule.later, *([schedule.damage] if schedule.damage else []))
    faults = [asdict(fault) | {"happened": fault in trial.happened} for fault in drawn]
    return {
        "number": schedule.number,
        "algo": schedule.algo,
        "options": list(schedule.options),
        "faults": faults,
        "ends": trial.ends,
        "status": trial.status,
        "ended_after_s": None if trial.ended_after_s is None else round(trial.ended_after_s, 2),
        "found": trial.found,
    }


def again(number: int) -> int:
    """Carry out one schedule and show what happened. Returns 1 if something is not as it should be."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    prefork = Prefork()
    try:
        schedule = draw(number)
        print(schedule)
        trial = carry_out(schedule, folder / f"case{number:05}", prefork, Baselines(prefork, folder))
    finally:
        prefork.close()
    print(json.dumps(described(trial), indent=2))
    for said in sorted(folder.glob(f"case{number:05}.*")):
        if said.suffix.startswith(".err"):
            print(f"--- {said}\n{said.read_text(errors='replace')}")
    return int(bool(trial.found))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(cases: list[dict[str, Any]]) -> str:
    """Return the counts by algorithm and by fault, and every case that is not as it should be, as Markdown."""
    wrong = [case for case in cases if case["found"]]
    faults = [(case, fault) for case in cases for fault in case["faults"]]
    happened = [(case, fault) for case, fault in faults if fault["happened"]]
    hung = sum(case["status"] is None for case in cases)
    names = [case["algo"] for case in cases]
    gone_on = sum(len(case["ends"]) - 1 for case in cases)
    lines = [
        "# Faults at random moments",
        "",
        f"{len(cases)} schedules ([benchmarks/faults.py](../../benchmarks/faults.py)), {len(faults)} faults. "
        f"{len(happened)} faults reached their victim. {hung} runs hung. {len(wrong)} runs broke the rules. "
        f"Runs were resumed {gone_on} times.",
        "",
        *_table("algorithm", list(dict.fromkeys([*ALGORITHMS, *names])), [(case["algo"], case) for case in cases]),
        "",
        *_table(
            "fault",
            [f"{victim}: {kind}" for victim, kinds in KINDS.items() for kind in kinds],
            [(f"{fault['name'].split()[0]}: {fault['kind']}", case) for case, fault in happened],
        ),
    ]
    if wrong:
        lines += ["", "Not as the rules say:", ""]
        lines += [f"- {case['number']} ({case['algo']}): {'; '.join(case['found'])}" for case in wrong]
    return "\n".join(lines) + "\n"


def _table(title: str, rows: list[str], cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    ends = ("completed", "failed", "interrupted", "lost", "none")
    counts = Counter((name, end) for name, case in cases for end in case["ends"][:1])
    wrong = Counter(name for name, case in cases if case["found"])
    lines = [f"| {title} | {' | '.join(ends)} | not as it should be |", f"|---|{'---:|' * (len(ends) + 1)}"]
    for name in rows:
        lines.append(f"| {name} | {' | '.join(str(counts[name, end]) for end in ends)} | {wrong[name]} |")
    return lines


if __name__ == "__main__":
    main()
