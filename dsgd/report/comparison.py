"""Compare runs: any field against any key of their configurations, a line per algorithm, panels by another key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsgd.record.reader import Run
from dsgd.report.fields import CENSORED, LABELS, field_value
from dsgd.report.interval import Estimate, estimate, interval_note
from dsgd.report.labels import Flat, Series, clock_text, flatten, gather, label, series, time_notes
from dsgd.report.quantities import assigned
from dsgd.report.ratio import PAIRED
from dsgd.report.selection import SpeedUpBase, best_over, find_key, in_order, is_rate, speed_up, speed_up_base
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.table_layout import Cell, ReportTable, exact
from dsgd.report.time_to_target import end_s

OF_MARKS = ("time", "epochs", "bytes", "samples")  # what --x may be besides a key


@dataclass(frozen=True)
class PlotPoint:
    """The runs of one line at one value of the key. value: median and interval over their seeds."""

    x: str
    value: Estimate
    runs: list[Run]


@dataclass(frozen=True)
class Panel:
    """One panel. title: like `nodes=8`; empty without a panel key, as is its value, whose text is that of the records.
    lines: of all panels, each with its runs here."""

    title: str
    value: str
    lines: list[Series]
    points: list[list[PlotPoint]]


@dataclass(frozen=True)
class Comparison:
    """Say what one figure shows. y: its field. x: a key, or one of OF_MARKS. label: of the vertical axis.

    series: the lines of all panels. notes: how runs were chosen, what intervals are, which runs have no number.
    speed_up: the values are ratios, in place of the field itself."""

    y: str
    x: str
    label: str
    runs: list[Run]
    series: list[Series]
    panels: list[Panel]
    notes: list[str]
    speed_up: bool


def compare(
    runs: Sequence[Run], y: str, x: str, lines: Sequence[str] = (), panels: str = "", best: str = "", base: str = ""
) -> Comparison:
    """Gather a field of runs by keys. x: a key or one of OF_MARKS. lines: keys; none: whatever else differs.

    best: a key of which each configuration keeps its best value. base: what values are divided by, `algo=sync,nodes=1`.
    Raises ValueError for keys that the runs do not have, and where runs that are no seeds of each other would be one
    point."""
    runs, notes, label_text = list(runs), list[str](), LABELS.get(y, y)
    x_key = "" if x in OF_MARKS else find_key(runs, x, "--x")
    line_keys = [find_key(runs, key, "--lines") for key in lines]
    panel_key = find_key(runs, panels, "--panels") if panels else ""
    if best:
        selection = best_over(runs, find_key(runs, best, "--best-over"), y)
        runs = selection.runs
        notes.append(selection.note)
    value: Callable[[Sequence[Run]], Estimate] = lambda some: _estimate_of(some, y)  # noqa: E731
    if base:
        if not x_key:
            raise ValueError(f"--base needs a key as --x, got {x}")
        reference = speed_up_base(runs, base, y)
        value, label_text = speed_up(reference, y), _speed_up_label(reference, y)
        notes.append(f"ratio: {PAIRED}")
    lined = _lines(runs, line_keys, [key for key in (x_key, panel_key) if key])
    flats = {id(run): flat for run, flat in zip(runs, flatten(runs), strict=True)}
    all_panels = []
    for title in in_order(flat[panel_key] for flat in flats.values()) if panel_key else [""]:
        shown = [
            Series(line.label, [run for run in line.runs if not panel_key or flats[id(run)][panel_key] == title])
            for line in lined
        ]
        shown = [line for line in shown if line.runs]
        points = [_points(line, x_key, flats, value) for line in shown]
        all_panels.append(
            Panel(assigned(_short(panel_key), panel_key, title) if panel_key else "", title, shown, points)
        )
    every = [point for panel in all_panels for points in panel.points for point in points]
    note = interval_note([point.value.count for point in every])
    without = sum(value([run]).count == 0 for run in runs)
    notes += [note] * bool(note) + [f"{without} of {len(runs)} runs have no number for it"] * bool(without)
    if len({run.clock for run in runs} - {None}) > 1 and (y.endswith("_s") or x == "time"):
        notes.append(f"times: {clock_text(runs)} time")
    return Comparison(y, x_key or x, label_text, runs, lined, all_panels, notes, bool(base))


def comparison_table(comparison: Comparison) -> ReportTable:
    """Return a row per point; in the CSV file median and interval are columns of their own."""
    panel_key = comparison.panels[0].title.partition("=")[0]
    heads = [head for head in (_short(comparison.x), panel_key) if head]
    heading = comparison.label.replace("\n", " ")
    rows: list[list[Cell]] = []
    csv_rows: list[list[str]] = [
        ["line", comparison.x, *([panel_key] if panel_key else []), "median", "low", "high", "seeds"]
    ]
    for panel in comparison.panels:
        where = [panel.value] if panel_key else []
        for line, points in zip(panel.lines, panel.points, strict=True):
            for point in points:
                value = point.value
                rows.append([line.label, point.x, *where, value, value.count])
                numbers = [exact(number) for number in (value.median, value.low, value.high)]
                csv_rows.append([line.label, point.x, *where, *numbers, str(value.count)])
    caption = "\n".join([*comparison.notes, *time_notes(comparison.runs), setting_text(comparison.runs)])
    texts = frozenset({"run", *heads})
    return ReportTable(
        ["run", *heads, heading, "seeds"],
        texts,
        rows,
        csv_rows,
        caption,
        len(heads) + 2,
        whole_setting(comparison.runs),
    )


def _lines(runs: Sequence[Run], keys: Sequence[str], apart_from: Sequence[str]) -> list[Series]:
    """Gather the runs of a line: equal in the keys given, or in all that differ apart from x and panels."""
    if not keys:
        return series(runs, apart_from=apart_from)
    flats = [{key: flat[key] for key in keys} for flat in flatten(runs)]
    gathered = gather(zip(runs, flats, strict=True))
    names = label([flat for flat, _ in gathered])
    return [Series(name or group[0].algorithm, group) for name, (_, group) in zip(names, gathered, strict=True)]


def _estimate_of(runs: Sequence[Run], field: str) -> Estimate:
    """Return median and interval of a field; a time to target that was not reached is censored."""
    censored = list(map(end_s, runs)) if field in CENSORED else None
    return estimate([field_value(run, field) for run in runs], censored=censored)


def _points(
    line: Series, x_key: str, flats: dict[int, Flat], value: Callable[[Sequence[Run]], Estimate]
) -> list[PlotPoint]:
    """Gather the runs of a line by the key. Raises ValueError where those of one point differ in more than the seed."""
    by_x: dict[str, list[Run]] = {}
    for run in line.runs:
        by_x.setdefault(flats[id(run)].get(x_key, ""), []).append(run)
    for x, members in by_x.items():
        texts = [{key: text for key, text in flats[id(run)].items() if key != "seed"} for run in members]
        differing = sorted({key for flat in texts for key in flat if flat[key] != texts[0].get(key)})
        if differing:
            where = f" at {_short(x_key)}={x}" if x_key else ""
            keys = ", ".join(differing)
            raise ValueError(
                f"runs of {line.label}{where} differ in {keys}: name it in --lines, --panels or --best-over"
            )
    return [PlotPoint(x, value(by_x[x]), by_x[x]) for x in in_order(by_x)]


def _speed_up_label(base: SpeedUpBase, field: str) -> str:
    what = LABELS.get(field, field).removesuffix(" (s)")
    return f"{what}\n{'over' if is_rate(field) else 'speed-up over'} {base.label}"


def _short(key: str) -> str:
    """Return the last part of a key, or its group for a name."""
    return key.removesuffix(".name").rpartition(".")[2]
