"""Keep the runs of a paper in one file: a line of JSON for each, compressed, which pandas reads in one line.

    pandas.read_json("results/papers/jin2016.jsonl.gz", lines=True)

A line has the study, its command line, the run's place in it, its configuration, with which commit and versions it was
made, the fields of its summary, and its marks as lists. The same runs make the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsgd.record.bounded import json_object, read_bounded
from dsgd.record.reader import Run, number, read_env
from dsgd.record.writer import CONFIG_SHA256
from dsgd.record.written import write_atomically
from dsgd.report.contest import Contender
from dsgd.reproduction.logged import Elsewhere, Logged

SUFFIX = ".jsonl.gz"
MEASURED, TUNING, ELSEWHERE = "measured", "tuning", "elsewhere"  # stages
OWN = ("study", "words", "stage", "contender", "chosen", "works", "spent", "conditions", "made_with", "config", "marks")
STAGES = (MEASURED, TUNING, ELSEWHERE)
TO_TARGET = ("time_s", "samples", "test_loss", "test_accuracy")  # what is kept of marks under other conditions
MADE_WITH = ("dsgd", "commit", "python", "torch", "numpy")
HOST_FIELDS = ("wall_s", "devices", "threads", CONFIG_SHA256)  # of a summary, which say nothing of the result
FOLD_FIELDS = (
    "test_fold_losses",
    "test_fold_accuracies",
)  # of a summary: lists, a number for each part of the test set
DIGITS = 7  # of what was measured; more than float32 holds of a loss
LONGEST, LONGEST_LINE = 2**28, 2**22  # bytes of a file and of a line, uncompressed

Row = dict[str, Any]


def path_of(paper: str, results: Path) -> Path:
    """Return the file of a paper, by its key."""
    return results / f"{paper}{SUFFIX}"


def rows_of(study: str, words: Sequence[str], logged: Logged) -> list[Row]:
    """Return the lines of a study, whose records are where its runs say. words: its command line."""
    rows = [_row(study, words, MEASURED, run, _owner(logged.contenders, run)) for run in logged.runs]
    rows += [_row(study, words, TUNING, run) for run in logged.tuning]
    for cell in logged.elsewhere:
        pairs = [(one, run) for one in cell.contenders for run in one.runs]
        rows += [_row(study, words, ELSEWHERE, run, one, cell.conditions) for one, run in pairs]
    return rows


def _owner(contenders: Sequence[Contender], run: Run) -> Contender | None:
    """Return the contender whose run this is; None in a study without contenders."""
    return next((one for one in contenders if any(run is other for other in one.runs)), None)


def _row(
    study: str,
    words: Sequence[str],
    stage: str,
    run: Run,
    one: Contender | None = None,
    conditions: Mapping[str, Any] | None = None,
) -> Row:
    env = read_env(run.folder)
    marks = _columns(run.metrics[-1:] if stage == TUNING else run.metrics)
    if stage == ELSEWHERE:
        marks = {name: values for name, values in marks.items() if name in TO_TARGET}
    return {
        "study": study,
        "words": list(words),
        "stage": stage,
        "contender": None if one is None else one.name,
        "chosen": None if one is None else dict(one.chosen),
        "works": None if one is None or one.works is None else list(one.works),
        "spent": None if one is None else one.spent,
        **({} if conditions is None else {"conditions": dict(conditions)}),
        "made_with": {key: env.get(key) for key in MADE_WITH},
        "config": _writable(run.config),
        **_summary(run, stage),
        "marks": marks,
    }


def _summary(run: Run, stage: str) -> Row:
    """Return the fields of a run's summary that say what it came to; of measured runs alone, parts of the test set."""
    left_out = HOST_FIELDS if stage == MEASURED else (*HOST_FIELDS, *FOLD_FIELDS)
    kept = {key: value for key, value in (run.summary or {}).items() if key not in left_out}
    lists = {key: kept[key] for key in FOLD_FIELDS if kept.get(key) is not None}
    return kept | {key: [_rounded(key, value) for value in values] for key, values in lists.items()}


def logged_of(rows: Sequence[Row]) -> Logged:
    """Return what the lines of one study say."""
    runs: dict[str, list[Run]] = {stage: [] for stage in (MEASURED, TUNING)}
    measured: list[tuple[Row, Run]] = []
    elsewhere: dict[str, list[tuple[Row, Run]]] = {}
    for row in rows:
        run = _run(row)
        if row["stage"] == ELSEWHERE:
            elsewhere.setdefault(json.dumps(row["conditions"]), []).append((row, run))
            continue
        runs[row["stage"]].append(run)
        if row["contender"] is not None:
            measured.append((row, run))
    cells = tuple(Elsewhere(json.loads(text), _contenders(pairs)) for text, pairs in elsewhere.items())
    return Logged(tuple(runs[MEASURED]), tuple(runs[TUNING]), _contenders(measured), cells)


def _contenders(pairs: Iterable[tuple[Row, Run]]) -> tuple[Contender, ...]:
    """Return the contenders of runs that come with their lines."""
    members: dict[str, list[tuple[Row, Run]]] = {}
    for row, run in pairs:
        members.setdefault(row["contender"], []).append((row, run))
    contenders = []
    for name, own in members.items():
        first, run = own[0]
        works = None if first["works"] is None else tuple(first["works"])
        runs = [one for _, one in own]
        contenders.append(
            Contender(name, run.algorithm, run.nodes or 0, runs, first["chosen"] or {}, works, first["spent"] or 0)
        )
    return tuple(contenders)


def read(path: Path) -> dict[str, list[Row]]:
    """Read the lines of a paper's file, by their study; nothing if there is no file.

    Raises ValueError, in one line, for a file that is no such archive, or not a whole one."""
    if not path.exists():
        return {}
    found: dict[str, list[Row]] = {}
    for place, line in enumerate(_lines(path), start=1):
        row = json_object(line)
        if row is None or not _is_row(row):
            raise ValueError(f"{path} line {place} must be a run of a study, got {line[:60]!r}")
        found.setdefault(row["study"], []).append(row)
    if not found:
        raise ValueError(f"{path} must be a whole archive of runs, got an empty one")
    return found


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of an archive, unpacked one at a time. Raises ValueError."""
    total = 0
    try:
        with gzip.open(io.BytesIO(read_bounded(path, LONGEST))) as file:
            while line := file.readline(LONGEST_LINE + 1):
                total += len(line)
                if len(line) > LONGEST_LINE or total > LONGEST:
                    raise ValueError(f"{path} must hold at most {LONGEST} bytes in lines of {LONGEST_LINE}, got more")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a whole archive of runs, got: {error}") from error


def write(path: Path, rows: Mapping[str, Iterable[Row]]) -> None:
    """Write the lines of a paper's studies, in their order, in one step."""
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for of_study in rows.values() for row in of_study)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as file:
        file.write(text.encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, packed.getvalue())


def _is_row(row: Row) -> bool:
    kinds = {"study": str, "words": list, "config": dict, "marks": dict}
    if row.get("stage") == ELSEWHERE:
        kinds["conditions"] = dict
    whole = all(isinstance(row.get(key), kind) for key, kind in kinds.items()) and row.get("stage") in STAGES
    columns = row["marks"].values() if whole else ()
    return whole and all(isinstance(column, list) for column in columns) and len({len(c) for c in columns}) <= 1


def _run(row: Row) -> Run:
    names, columns = list(row["marks"]), zip(*row["marks"].values(), strict=True)
    marks = [dict(zip(names, values, strict=True)) for values in columns]
    summary = {key: value for key, value in row.items() if key not in OWN}
    return Run(Path(row["study"]), _restored(row["config"]), marks, summary)


def _writable(value: Any) -> Any:
    """Return a configuration without infinities, which JSON does not have: an ideal network's bandwidth is `inf`."""
    if isinstance(value, dict):
        return {key: _writable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_writable(inner) for inner in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _restored(value: Any) -> Any:
    """Return a configuration with what JSON has made texts: infinities, and integers as keys (`cluster.slow_nodes`)."""
    if isinstance(value, dict):
        return {int(key) if key.isdecimal() else key: _restored(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restored(inner) for inner in value]
    return math.inf if value == "inf" else value


def _columns(marks: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return marks as lists, a list for each field."""
    names = dict.fromkeys(name for mark in marks for name in mark if name not in HOST_FIELDS)
    return {name: [_rounded(name, mark.get(name)) for mark in marks] for name in names}


def _rounded(name: str, value: Any) -> Any:
    exact = name.endswith("_s") or not isinstance(value, float) or number(value) != value
    return value if exact else float(f"{value:.{DIGITS}g}")
