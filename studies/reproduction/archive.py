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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsgd.record.bounded import json_object, read_bounded
from dsgd.record.reader import Run, number, read_env
from dsgd.record.writer import CONFIG_SHA256
from dsgd.record.written import write_atomically
from dsgd.report.contest import Contender
from studies.reproduction.logged import Elsewhere, Logged

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

ArchiveRow = dict[str, Any]


def path_of(paper: str, results: Path) -> Path:
    """Return the file of a paper, by its key."""
    return results / f"{paper}{SUFFIX}"


def rows_of(study: str, overrides: Sequence[str], logged: Logged) -> list[ArchiveRow]:
    """Return the lines of a study, whose records are where its runs say. overrides: its command line."""
    rows = [_row(study, overrides, MEASURED, run, _owner(logged.contenders, run)) for run in logged.runs]
    rows += [_row(study, overrides, TUNING, run) for run in logged.tuning]
    for cell in logged.elsewhere:
        pairs = [(contender, run) for contender in cell.contenders for run in contender.runs]
        rows += [_row(study, overrides, ELSEWHERE, run, contender, cell.conditions) for contender, run in pairs]
    return rows


def _owner(contenders: Sequence[Contender], run: Run) -> Contender | None:
    """Return the contender whose run this is; None in a study without contenders."""
    return next((contender for contender in contenders if any(run is other for other in contender.runs)), None)


def _row(
    study: str,
    overrides: Sequence[str],
    stage: str,
    run: Run,
    contender: Contender | None = None,
    conditions: Mapping[str, Any] | None = None,
) -> ArchiveRow:
    env = read_env(run.folder)
    marks = _columns(run.metrics[-1:] if stage == TUNING else run.metrics)
    if stage == ELSEWHERE:
        marks = {name: values for name, values in marks.items() if name in TO_TARGET}
    return {
        "study": study,
        "words": list(overrides),
        "stage": stage,
        "contender": None if contender is None else contender.name,
        "chosen": None if contender is None else dict(contender.chosen),
        "works": None if contender is None or contender.works is None else list(contender.works),
        "spent": None if contender is None else contender.spent,
        **({} if conditions is None else {"conditions": dict(conditions)}),
        "made_with": {key: env.get(key) for key in MADE_WITH},
        "config": _writable(run.config),
        **_summary(run, stage),
        "marks": marks,
    }


def _summary(run: Run, stage: str) -> ArchiveRow:
    """Return the fields of a run's summary that say what it came to; of measured runs alone, parts of the test set."""
    left_out = HOST_FIELDS if stage == MEASURED else (*HOST_FIELDS, *FOLD_FIELDS)
    kept = {key: value for key, value in (run.summary or {}).items() if key not in left_out}
    lists = {key: kept[key] for key in FOLD_FIELDS if kept.get(key) is not None}
    return kept | {key: [_rounded(key, value) for value in values] for key, values in lists.items()}


def logged_of(rows: Sequence[ArchiveRow]) -> Logged:
    """Return what the lines of one study say."""
    runs: dict[str, list[Run]] = {stage: [] for stage in (MEASURED, TUNING)}
    measured: list[tuple[ArchiveRow, Run]] = []
    elsewhere: dict[str, list[tuple[ArchiveRow, Run]]] = {}
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


def _contenders(pairs: Iterable[tuple[ArchiveRow, Run]]) -> tuple[Contender, ...]:
    """Return the contenders of runs that come with their lines."""
    members: dict[str, list[tuple[ArchiveRow, Run]]] = {}
    for row, run in pairs:
        members.setdefault(row["contender"], []).append((row, run))
    contenders = []
    for name, group in members.items():
        first, run = group[0]
        works = None if first["works"] is None else tuple(first["works"])
        runs = [member for _, member in group]
        contenders.append(
            Contender(name, run.algorithm, run.nodes or 0, runs, first["chosen"] or {}, works, first["spent"] or 0)
        )
    return tuple(contenders)


def read(path: Path) -> dict[str, list[ArchiveRow]]:
    """Read the lines of a paper's file, by their study; nothing if there is no file.

    Raises ValueError, in one line, for a file that is no such archive, or not a whole one."""
    if not path.exists():
        return {}
    by_study: dict[str, list[ArchiveRow]] = {}
    for line_number, line in enumerate(_lines(path), start=1):
        row = json_object(line)
        if row is None or not _is_row(row):
            raise ValueError(f"{path} line {line_number} must be a run of a study, got {line[:60]!r}")
        by_study.setdefault(row["study"], []).append(row)
    if not by_study:
        raise ValueError(f"{path} must be a whole archive of runs, got an empty one")
    return by_study


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise ValueError, in one line, for whatever goes wrong inside of the block with values that no run has."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path} must have runs with values as dsgd writes them, got: {error!r}") from error


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


def write(path: Path, rows: Mapping[str, Iterable[ArchiveRow]]) -> None:
    """Write the lines of a paper's studies, in their order, in one step."""
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for of_study in rows.values() for row in of_study)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as file:
        file.write(text.encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, packed.getvalue())


def _is_row(row: ArchiveRow) -> bool:
    kinds = {"study": str, "words": list, "config": dict, "marks": dict}
    if row.get("stage") == ELSEWHERE:
        kinds["conditions"] = dict
    whole = all(isinstance(row.get(key), kind) for key, kind in kinds.items()) and row.get("stage") in STAGES
    columns = row["marks"].values() if whole else ()
    return whole and all(isinstance(column, list) for column in columns) and len({len(c) for c in columns}) <= 1


def _run(row: ArchiveRow) -> Run:
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
