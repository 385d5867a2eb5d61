"""Write runs as one HTML file that needs nothing else: table, curves, differences, environments.

The template is page.html. All texts of users are escaped here, or are JSON that its script sets as text.
Figures become elements that take the page's width, its letters' colour and its colours in the dark."""

from __future__ import annotations

import colorsys
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.markers import MarkerStyle

from dsgd.record.reader import Run, read_env
from dsgd.record.safe_text import counted, for_html
from dsgd.report.curves import MANY, X_FIELDS, has_data, median_curve, x_axis
from dsgd.report.fields import LABELS
from dsgd.report.interval import Estimate
from dsgd.report.labels import Series, differing_settings, run_labels, series, status_note
from dsgd.report.setting import whole_setting
from dsgd.report.sheet import wants_log
from dsgd.report.style import common, styled
from dsgd.report.table import by_time, summary_table
from dsgd.report.table_layout import BAD, Cell, ReportTable

FIELDS = ("test_accuracy", "test_error", "train_loss", "test_loss")
MOST_POINTS = 2000  # of a curve: more than a screen has pixels
_MOST_DRAWN = 1e30  # a loss that explodes further leaves the panel all the same
_DIGITS = 6
_LONG = 24  # characters: a longer text may go over several lines
_BANDS = f"Lines are medians over seeds, bands their intervals; {MANY} lines or more have none."


def curves_of(runs: Sequence[Run]) -> list[Series]:
    """Return a curve for each configuration, in the order of the table, with its style in figures."""
    known = {group.label: group for group in styled(series(runs))}
    return [known[group.label] for group in by_time(runs)]


def page_text(
    runs: Sequence[Run], lead: str = "", figures: Sequence[str] = (), curves: Sequence[Series] | None = None
) -> str:
    """Return the page of the runs.

    lead: text above everything else, such as a verdict; its lines are paragraphs. figures: SVG documents drawn by this
    package; side by side if they fit. curves: series to draw; None: `curves_of`. Raises ValueError for an invalid
    env.json."""
    table = summary_table(runs)
    gathered = curves_of(runs) if curves is None else curves
    inlined = "".join(inline(svg, i) for i, svg in enumerate(figures))
    several, below = any(len(group.runs) > 1 for group in gathered), table.caption.split("\n")
    parts = {
        "title": for_html(common(runs) or "Runs"),
        "subtitle": f"{counted(len(runs), 'run')}, {counted(len(gathered), 'configuration')}",
        "lead": "".join(f"<p>{for_html(line)}</p>" for line in lead.splitlines() if line.strip() and line not in below),
        "figure": f'<div class="figure">{inlined}</div>' if inlined else "",
        "dark": dark_colours(inlined),
        "table": _table(table),
        "caption": "\n".join(map(for_html, below)),
        "bands": _BANDS if several else "",
        "differences": _configuration(runs) + _differences(runs),
        "environments": _environments(runs),
        # a script ends at the first </script in any context
        "data": json.dumps(curve_data(runs, gathered), allow_nan=False).replace("<", "\\u003c"),
    }
    template = files("dsgd.report").joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)  # one pass keeps inserted text


def curve_data(runs: Sequence[Run], gathered: Sequence[Series]) -> dict[str, Any]:
    """Return the data of the page's figures: axes, fields and, for each series, its curves by axis and field: x, median
    and both ends of the interval, each [marks]."""
    axes = {name: x_axis(name, runs) for name in X_FIELDS if has_data(runs, X_FIELDS[name], "samples")}
    fields = [field for field in FIELDS if has_data(runs, "samples", field)]
    aims = {(run.target_field, run.target) for run in runs}
    targets = _targets(*aims.pop()) if len(aims) == 1 else {}
    lines = []
    for group in gathered:
        light, line = to_hex(group.style["color"]), group.style["linestyle"]
        lines.append({
            "label": group.label,
            "note": status_note(group.runs),
            "diverged": any(run.outcome in ("diverged", "collapsed") for run in group.runs),
            "seeds": len(group.runs),
            "light": light,
            "dark": on_dark(light),
            "dash": "none" if line == "solid" else " ".join(f"{1.8 * length:g}" for length in line[1]),
            "marker": marker_path(group.style["marker"]),
            "curves": [
                {field: curve for field in fields if (curve := _curve(group.runs, axis.field, axis.unit, field))}
                for axis in axes.values()
            ],
        })  # fmt: skip
    drawn = [
        {
            "name": field,
            "label": LABELS[field],
            "log": field == "test_error" or (field.endswith("loss") and _spans_decades(lines, field)),
            "targets": targets.get(field, []),
        }
        for field in fields
    ]
    named = [{"label": axis.label} for axis in axes.values()]
    return {"axes": named, "fields": drawn, "series": lines, "many": MANY}


def _curve(runs: Sequence[Run], x: str, unit: float, y: str) -> list[list[float]] | None:
    curve = median_curve(runs, x, y)
    if curve is None:
        return None
    count = len(curve.x)
    kept = range(count) if count <= MOST_POINTS else [i * (count - 1) // (MOST_POINTS - 1) for i in range(MOST_POINTS)]
    columns = (curve.x / unit, curve.median, curve.low, curve.high)
    return [[_rounded(float(column[i])) for i in kept] for column in columns]


def _targets(field: str | None, level: float | None) -> dict[str, list[float]]:
    """Return the levels to draw in each panel."""
    if field is None or level is None:
        return {}
    return {field: [level]} | ({"test_error": [1 - level]} if field == "test_accuracy" and level < 1 else {})


def _rounded(value: float) -> float:
    return float(f"{max(-_MOST_DRAWN, min(_MOST_DRAWN, value)):.{_DIGITS}g}")


def _spans_decades(lines: Sequence[Mapping[str, Any]], field: str) -> bool:
    calm = [line for line in lines if not line["diverged"]] or lines
    values = [value for line in calm for curves in line["curves"][:1] for value in curves.get(field, [[], []])[1]]
    return wants_log(np.array(values))


def _table(table: ReportTable) -> str:
    kept = [i for i, heading in enumerate(table.headings) if heading not in table.headings[:i]]  # status occurs twice
    texts = {i for i in kept if table.headings[i] in table.texts}
    heads = {table.headings[i]: i in texts for i in kept}
    rows = [
        "".join(_cell(cells[i], _sort_value(values[i]), i in texts) for i in kept)
        for values, cells in zip(table.rows, table.cells, strict=True)
    ]
    return _sortable(heads, rows, "configurations")


def _sortable(headings: Mapping[str, bool], rows: Sequence[str], name: str) -> str:
    """Return a table that its headings sort. headings: {heading: whether its column has text}. rows: cells of the
    rows."""
    heads = "".join(
        f'<th scope="col"{_class(text=is_text)}><button>{for_html(text)}</button></th>'
        for text, is_text in headings.items()
    )
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return f'<table class="sortable" id="{name}"><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table>'


def _cell(text: str, value: str, is_text: bool) -> str:
    bad, long = is_text and any(word in text.split() for word in BAD), is_text and len(text) > _LONG
    return f'<td{_class(text=is_text, bad=bad, long=long)} data-value="{for_html(value)}">{for_html(text)}</td>'


def _class(**names: bool) -> str:
    classes = " ".join(name for name, wanted in names.items() if wanted)
    return f' class="{classes}"' if classes else ""


def _sort_value(cell: Cell) -> str:
    """Return the sorting key of a cell: the median of an estimate, `never` as the last; empty without a number."""
    value = cell.median if isinstance(cell, Estimate) else cell
    return (
        str(value) if not isinstance(value, float) else "" if value != value else repr(value).replace("inf", "Infinity")
    )


def _configuration(runs: Sequence[Run]) -> str:
    """Return the keys that the configurations of all runs share, with their values, folded."""
    shared = whole_setting(runs)["shared"]
    rows = _rows({key: [text] for key, text in shared.items()})
    line = f"{counted(len(shared), 'key')} that all runs share"
    table = f'<table id="configuration"><tbody>{rows}</tbody></table>'
    return f'<details><summary>{line}</summary><div class="wide">{table}</div></details>\n'


def _differences(runs: Sequence[Run]) -> str:
    """Return the table of the keys in which the configurations differ, a row for each run."""
    settings = differing_settings(runs)
    heads = dict.fromkeys(("run", "status", *settings, "folder"), True)
    columns = [run_labels(runs), [run.outcome for run in runs], *settings.values(), [str(run.folder) for run in runs]]
    rows = ["".join(_cell(text, text, True) for text in texts) for texts in zip(*columns, strict=True)]
    line = f"{counted(len(settings), 'key')} in which runs differ"
    opened = " open" if len(runs) <= 30 else ""
    return (
        f'<details{opened}><summary>{line}</summary><div class="wide">{_sortable(heads, rows, "runs")}</div></details>'
    )


def _environments(runs: Sequence[Run]) -> str:
    """Return the contents of env.json, a column for each environment of some runs; each run has its command."""
    shared: dict[str, tuple[dict[str, str], list[str]]] = {}
    for name, run in zip(run_labels(runs), runs, strict=True):
        values = {key: _plain(value) for key, value in read_env(run.folder).items() if key != "command"}
        shared.setdefault(json.dumps(values, sort_keys=True), (values, []))[1].append(name)
    environments = list(shared.values())
    keys = list(dict.fromkeys(key for values, _ in environments for key in values))
    if not keys:
        return '<p class="note">No run has recorded one.</p>'
    names = (labels[0] if len(labels) == 1 else counted(len(labels), "run") for _, labels in environments)
    whose = "".join(f'<th class="text">{for_html(name)}</th>' for name in names)
    rows = _rows({key: [values.get(key, "") for values, _ in environments] for key in keys})
    head = f"<thead><tr><th></th>{whose}</tr></thead>"
    return f'<div class="wide"><table id="environment">{head}<tbody>{rows}</tbody></table></div>'


def _rows(texts: Mapping[str, Sequence[str]]) -> str:
    """Return a row for each key, with its texts."""
    cells = {key: "".join(f'<td class="text">{for_html(text)}</td>' for text in row) for key, row in texts.items()}
    return "".join(f'<tr><th class="text" scope="row">{for_html(key)}</th>{cells[key]}</tr>\n' for key in texts)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)


_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_PLACE = re.compile(r'\bid="([^"]+)"|(href="#|url\(#)')


def inline(svg: str, number: int) -> str:
    """Return an SVG document as an element: without its prolog and its metadata, which name addresses, and with its
    colours as variables of the page. number: unique number of the figure in the page, put before its names."""
    element = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    element = _PLACE.sub(lambda match: f'id="f{number}-{match[1]}"' if match[1] else f"{match[2]}f{number}-", element)

    def themed(style: re.Match[str]) -> str:
        return _COLOUR.sub(lambda match: f"var(--c-{match[0][1:]}, {match[0]})", style[0])

    return re.sub(r'style="[^"]*"', themed, element)


def dark_colours(elements: str) -> str:
    """Return the variables of all colours of inlined figures for a dark page, as CSS declarations."""
    colours = sorted(set(re.findall(r"var\(--c-([0-9a-f]{6}),", elements)))
    return " ".join(f"--c-{colour}: {_dark(f'#{colour}')};" for colour in colours)


def on_dark(colour: str) -> str:
    """Return the colour for a dark ground: the same hue, as light as the ground is dark. colour: `#rrggbb`."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    return to_hex(colorsys.hls_to_rgb(hue, max(lightness, min(0.9, max(0.62, 1 - lightness))), saturation))


def marker_path(marker: str) -> str:
    """Return a marker of matplotlib as a path of SVG, from -0.5 to 0.5."""
    style = MarkerStyle(marker)
    polygons = style.get_path().transformed(style.get_transform()).to_polygons()
    return "".join("M" + "L".join(f"{x:.3g} {-y:.3g}" for x, y in np.asarray(polygon)) + "Z" for polygon in polygons)


def _dark(colour: str) -> str:
    """Return a colour for a dark background: white becomes the background, greys keep their distance from it."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    if colour == "#ffffff":
        return "var(--back)"
    if saturation == 0:
        return to_hex(colorsys.hls_to_rgb(hue, min(0.9, 1.08 - lightness), 0.0))
    return on_dark(colour)
