"""Compare algorithms on sizes that grow: forecasts for the largest, and how wrong they were.

    python benchmarks/ladders.py run mlp        # outputs/ladders/mlp, then results/ladders/mlp; resumes after a stop
    python benchmarks/ladders.py run mlp --until-forecast          # stop when the forecast is written, to commit it
    python benchmarks/ladders.py page           # results/ladders/README.md, from the scores

The ladder of the text needs kjv.txt, as conf/experiment/real_text.yaml says.
"""

from __future__ import annotations

import argparse
import csv
import math
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from textwrap import wrap

sys.path.insert(0, str(Path(__file__).parents[1]))  # for studies

from dsgd.comparison.ladder import FORECAST, RungScores, outlook, ratios_of
from dsgd.comparison.ladder_report import SCORES
from dsgd.comparison.run_noise import SURE, noise_text, pooled_deviation
from dsgd.report.interval import t_quantile
from studies.evidence.tasks import TASKS
from studies.evidence.trial import MEASURE, TRIALS, Outcomes, read_trials

ROOT = Path(__file__).parents[1]
RESULTS, OUTPUTS = ROOT / "results" / "ladders", ROOT / "outputs" / "ladders"
KEPT = (SCORES, FORECAST, "ladder.csv", "ladder.png", "verdict.txt")
FASHION = "experiment=real_fashion nodes=8 compare.seeds=5 algo=sync,gossip,dpsgd,easgd,localsgd"
MLP = "model=mlp ~model.width model.hidden=[128]"


@dataclass(frozen=True)
class Asked:
    """A ladder: what it asks, and the arguments of dsgd-compare that answer."""

    title: str
    arguments: str


LADDERS = {
    "mlp": Asked(
        "Width of an MLP on Fashion-MNIST, loss after 1,280 steps of 8 workers",
        f"{FASHION} {MLP} budget.steps=1280 compare.ladder='{{model.hidden: [[16], [32], [64], [128], [256]]}}'",
    ),
    "resnet8": Asked(
        "Channels of a ResNet-8 on Fashion-MNIST, loss after 640 steps of 8 workers",
        f"{FASHION} budget.steps=640 eval.every_steps=64 compare.ladder='{{model.width: [2, 4, 8, 16]}}'",
    ),
    "text": Asked(
        "Width of a transformer on a book, loss after 1,280 steps of 4 workers, AdamW or Muon inside",
        "experiment=real_text data.path=kjv.txt data.test_share=0.02 nodes=4 compare.seeds=5 budget.steps=1280 "
        "eval.every_steps=320 "
        "compare.contenders='[{algo: sync}, {algo: diloco}, {algo: streaming}, {algo: diloco, optimizer: muon}]' "
        "compare.tune='{optimizer.lr: [0.002, 0.016]}' compare.ladder='{model.width: [16, 32, 64, 128]}'",
    ),
    "nodes": Asked(
        "Number of workers, time of an MLP of 128 to a test loss of 0.45 on Fashion-MNIST",
        f"{FASHION} {MLP} budget.steps=2560 eval.every_steps=32 target.loss=0.45 "
        "compare.ladder='{nodes: [4, 8, 16, 32, 64]}'",
    ),
}


def run(name: str, until_forecast: bool) -> int:
    """Climb a ladder, and keep what it wrote. until_forecast: stop it before the largest rung is run."""
    folder = OUTPUTS / name
    command = [Path(sys.executable).with_name("dsgd-compare"), *shlex.split(LADDERS[name].arguments)]
    climbing = subprocess.Popen([*command, f"--folder={folder}"], cwd=ROOT)
    while climbing.poll() is None:
        time.sleep(0.2)
        if until_forecast and (folder / FORECAST).exists():
            climbing.send_signal(signal.SIGINT)
            climbing.wait()
    (RESULTS / name).mkdir(parents=True, exist_ok=True)
    for kept in KEPT:
        if (folder / kept).exists():
            shutil.copy(folder / kept, RESULTS / name / kept)
    return 0 if until_forecast else climbing.returncode


@dataclass(frozen=True)
class Climbed:
    """A ladder's scores: of each contender on each rung, and the late slopes of the largest rung, [seeds] each."""

    key: str
    sizes: Sequence[float]
    scores: Sequence[RungScores]
    slopes: Sequence[Sequence[float]]

    @property
    def ratios(self) -> list[RungScores]:
        return ratios_of(self.scores)


def read_scores(path: Path) -> Climbed:
    """Read scores.csv."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    key = list(rows[0])[1]
    sizes = sorted({int(row[key]) for row in rows})
    names = list(dict.fromkeys(row["contender"] for row in rows))

    def column(name: str, size: int, field: str) -> list[float]:
        texts = [row[field] for row in rows if row["contender"] == name and int(row[key]) == size]
        return [float(text or "nan") for text in texts]

    timed = "samples" in rows[0]  # the first ladder was of losses
    scores = [
        RungScores(
            name,
            [column(name, size, "score") for size in sizes],
            [column(name, size, "samples") for size in sizes] if timed else (),
        )
        for name in names
    ]
    return Climbed(key, sizes, scores, [column(name, sizes[-1], "slope") for name in names])


def page() -> str:
    """Return results/ladders/README.md."""
    known = {name: read_scores(RESULTS / name / SCORES) for name in LADDERS if (RESULTS / name / SCORES).exists()}
    lines = ["# Ladders: does it hold when it is larger?", "", INTRODUCTION, ""]
    lines += [
        "| ladder | forecasts | no law | within the interval | worst miss | median | of ratios | of unchanged ratios "
        "| pairs: stay | may flip | open |",
        f"|---|{'---:|' * 10}",
    ]
    lines += [_misses(name, climbed) for name, climbed in known.items()]
    for name, climbed in known.items():
        lines += ["", f"## {LADDERS[name].title}", "", f"![scores and ratios over size]({name}/ladder.png)", ""]
        lines += ["    " + line for line in wrap(f"dsgd-compare {LADDERS[name].arguments}", 112)]
        lines += ["", *_rows(climbed), ""]
        for scores in climbed.ratios:
            lines += wrap(f"- {outlook(scores, climbed.sizes)}", 118, subsequent_indent="  ")
        if "target." not in LADDERS[name].arguments:  # else the scores are times
            slopes = [slope for of_one in climbed.slopes for slope in of_one]
            noise = noise_text([scores.by_rung[-1] for scores in climbed.scores], slopes)
            lines += ["", *wrap(f"On the largest size: {noise}.", 118)]
    lines += ["", "## Noise of one run", "", NOISE, "", *noise_of_tasks(read_trials(ROOT / "results/papers" / TRIALS))]
    return "\n".join(lines) + "\n"


INTRODUCTION = """\
dsgd-compare tunes each contender on each size, and fits a law to all sizes but the largest. We committed its forecast
for the largest size before the first run there ([ladder.md](../../docs/howto/ladder.md)). `benchmarks/ladders.py` makes
the ladders again.

The table counts the forecasts whose interval of 95 % holds the measured mean. The forecasts of one ladder come from the
same runs, and each interval holds by itself: all of them together hold less often. The last miss is of a forecast
without a law: each ratio stays as it was on the size before. Of two contenders the ranking at ten times the
largest size *stays* where the interval of their ratio does not hold 1, and *may flip* where it does. It is *open* where
the ratios follow no law, or the largest size does not decide."""  # fmt: skip


NOISE = """\
The deviation σ of the test loss of one run about the mean over seeds, for the tasks of the repository: all-reduce with
8 workers, from `results/papers/trials.csv`. Each seed has the rate that its own tuning chose, so σ contains tuning. A
method is better, beyond noise, if (its loss is lower by + fall × the steps it saves) / (σ √(1/n₁ + 1/n₂)) is above the
threshold, with n₁ and n₂ seeds. The fall is the mean one of a step since the row above. Chance exceeds the threshold, a
quantile of Student's t, as often as three deviations of a normal distribution. dsgd-compare prints this rule for its
own runs, with the fall in the last quarter of a run."""  # fmt: skip


def noise_of_tasks(outcomes: Outcomes) -> list[str]:
    """Return a table: for each task and number of steps the mean of the test loss, its deviation, and its fall a step
    since the row before."""
    losses = defaultdict[tuple[str, int], list[float]](list)
    for trial, outcome in outcomes.items():
        if (trial.stage, trial.contender, trial.nodes) == (MEASURE, "sync", 8):
            losses[trial.task, trial.steps].append(outcome.loss)
    rows = [
        "| task | steps | seeds | test loss | σ of one run | fall a step | threshold |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for task in TASKS:
        known = [(steps, of_one) for (name, steps), of_one in sorted(losses.items()) if name == task]
        for number, (steps, of_one) in enumerate(known):
            before = known[number - 1] if number else None
            fall = f"{(fmean(before[1]) - fmean(of_one)) / (steps - before[0]):.2g}" if before else ""
            deviation = pooled_deviation([of_one])
            cells = (task, f"{steps:,}", str(len(of_one)), f"{fmean(of_one):.4f}", f"{deviation:.2g}", fall)
            rows.append(f"| {' | '.join(cells)} | {t_quantile(SURE, len(of_one) - 1):.1f} |")
    return rows


def _misses(name: str, climbed: Climbed) -> str:
    """Return the row of a ladder in the table of misses."""
    every = [*climbed.scores, *climbed.ratios]
    laws = [(scores, scores.law(climbed.sizes[:-1])) for scores in every]
    held = [(scores, law) for scores, law in laws if law is not None and not law.bends]
    of_laws, of_ratios, unchanged, within = list[float](), list[float](), list[float](), 0
    for scores, law in held:
        *_, before, measured = (scores.mean(rung).median for rung in range(len(climbed.sizes)))
        ahead = law.forecast(climbed.sizes[-1])
        if math.isnan(measured):  # a seed has no score
            continue
        of_laws.append(abs(measured / ahead.median - 1))
        within += ahead.low <= measured <= ahead.high
        if scores in climbed.ratios:
            of_ratios.append(of_laws[-1])
            unchanged.append(abs(measured / before - 1))
    said = [outlook(scores, climbed.sizes) for scores in climbed.ratios]
    ends = [sum(end in line for line in said) for end in ("the ranking stays", "the ranking may flip")]
    cells = [f"[{name}](#{_anchor(LADDERS[name].title)})", len(laws), len(laws) - len(held)]
    cells += [f"{within} of {len(of_laws)}", _share(max, of_laws)]
    cells += [_share(median, misses) for misses in (of_laws, of_ratios, unchanged)]
    return f"| {' | '.join(map(str, [*cells, *ends, len(said) - sum(ends)]))} |"


def _share(of: Callable[[list[float]], float], misses: list[float]) -> str:
    return f"{of(misses):.1%}" if misses else ""


def _rows(climbed: Climbed) -> list[str]:
    heads = ["contender", *(f"{climbed.key.rpartition('.')[2]} {size:g}" for size in climbed.sizes), "forecast", "miss"]
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for scores in climbed.scores:
        means, law = [scores.mean(rung).median for rung in range(len(climbed.sizes))], scores.law(climbed.sizes[:-1])
        row = [scores.label, *("unknown" if math.isnan(mean) else f"{mean:.4g}" for mean in means)]
        if law is None or law.bends:
            rows.append([*row, "none" if law is None else "it bends", ""])
            continue
        ahead = law.forecast(climbed.sizes[-1])
        miss = "" if math.isnan(means[-1]) else f"{means[-1] / ahead.median - 1:+.1%}"
        rows.append([*row, f"{ahead.median:.4g} [{ahead.low:.4g}, {ahead.high:.4g}]", miss])
    return [f"| {' | '.join(row)} |" for row in rows]


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "page"])
    parser.add_argument("name", nargs="?", choices=LADDERS)
    parser.add_argument("--until-forecast", action="store_true")
    options = parser.parse_args()
    if options.what == "page":
        (RESULTS / "README.md").write_text(page())
        return 0
    if options.name is None:
        parser.error(f"run needs a ladder, one of {', '.join(LADDERS)}")
    return run(options.name, options.until_forecast)


if __name__ == "__main__":
    sys.exit(main())
