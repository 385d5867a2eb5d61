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

from dsgd.record.reader import Run, number, read_env
from dsgd.record.safe_files import json_object, read_bounded, write_atomically
from dsgd.record.writer import CONFIG_SHA256
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Study

SUFFIX = ".jsonl.gz"
OWN = ("study", "words", "made_with", "config", "marks")  # fields of a line that are not of the summary
MADE_WITH = ("dsgd", "commit", "python", "torch", "numpy")
HOST_FIELDS = ("wall_s", "devices", "threads", CONFIG_SHA256)  # of a summary, which say nothing of the result
DIGITS = 7  # of what was measured; more than float32 holds of a loss
LONGEST, LONGEST_LINE = 2**28, 2**22  # bytes of a file and of a line, uncompressed

ArchiveRow = dict[str, Any]


def path_of(paper: str, results: Path) -> Path:
    """Return the file of a paper, by its key."""
    return results / f"{paper}{SUFFIX}"


def rows_of(study: str, overrides: Sequence[str], runs: Sequence[Run]) -> list[ArchiveRow]:
    """Return the lines of a study, whose records are where its runs say. overrides: its command line."""
    return [
        {
            "study": study,
            "words": list(overrides),
            "made_with": {key: env.get(key) for key in MADE_WITH},
            "config": _writable(run.config),
            **{key: value for key, value in (run.summary or {}).items() if key not in HOST_FIELDS},
            "marks": _columns(run.metrics),
        }
        for run, env in ((run, read_env(run.folder)) for run in runs)
    ]


def logged_of(rows: Sequence[ArchiveRow]) -> Logged:
    """Return what the lines of one study say."""
    return Logged(tuple(map(_run, rows)))


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


def rows_made_by(studies: Iterable[Study], path: Path) -> dict[str, list[ArchiveRow]]:
    """Read the lines of studies, without those of another command line, which say nothing. Raises what `read` does."""
    rows = read(path)
    return {
        study.name: rows[study.name]
        for study in studies
        if study.name in rows and all(row["words"] == list(study.overrides) for row in rows[study.name])
    }


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
    whole = all(isinstance(row.get(key), kind) for key, kind in kinds.items())
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
