"""The yardstick: its page follows from its runs, and these from the model as it is."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from studies.cli.reproduce import main
from studies.cli.yardstick import predict
from studies.yardstick.measured_table import EXPLAINED, GRID, MeasuredTable, error, grid_steps, percentile, tables
from studies.yardstick.yardstick_page import PREDICTED, read
from tests.support.each_row import each_row
from tests.support.simulate import values_of

COMMITTED = Path(__file__).parents[3] / "results" / "yardstick"
MOST_FITTED = 6
TABLES = tables()
each_table = each_row("table", TABLES)


def committed() -> dict[str, list[float]]:
    predictions = read(COMMITTED, TABLES)
    assert predictions is not None, "the tables have changed since: dsgd-reproduce yardstick"
    return {key: list(values) for key, values in predictions.items()}


@each_table
def test_predictions_are_those_of_the_model_as_it_is(table: MeasuredTable) -> None:
    """The first and the last row of every table, run again as a user would."""
    values = committed()[table.key]
    for row, value in ((table.rows[0], values[0]), (table.rows[-1], values[-1])):
        program, *words = shlex.split(row.command)
        assert program == "dsgd-run"
        assert predict(row, values_of(*words)) == pytest.approx(value, rel=1e-9)


def test_the_median_row_is_within_five_percent_and_every_large_error_has_its_reason() -> None:
    predictions = committed()
    errors = []
    for table in TABLES:
        if table.kind != "measured":
            continue
        for row, value in zip(table.rows, predictions[table.key], strict=True):
            errors.append(error(row.measured, value))
            assert abs(errors[-1]) <= EXPLAINED or row.reason, f"{table.key}: {row.name}"
    assert percentile(errors, 0.5) <= 0.05
    assert sum(len(table.fitted) for table in TABLES) <= MOST_FITTED


def test_what_others_simulated_is_within_two_steps_of_their_grid() -> None:
    predictions = committed()
    for table in TABLES:
        pairs = zip(table.rows, predictions[table.key], strict=True)
        steps = [abs(grid_steps(row.measured, value)) for row, value in pairs if table.kind == "simulated"]
        assert sum(step <= 2 for step in steps) >= 0.95 * len(steps), table.key


def test_a_step_of_the_grid_is_a_factor() -> None:
    """Published bandwidths are rounded to two or three digits."""
    assert [grid_steps(1.4, bandwidth / 1e9) for bandwidth in GRID[13:16]] == [-1, 0, 1]


def test_a_percentile_is_the_error_that_so_many_rows_do_not_exceed() -> None:
    assert [percentile([0.4, -0.1, 0.2, -0.3], share) for share in (0.5, 0.75, 0.9, 1.0)] == [0.2, 0.3, 0.4, 0.4]


def test_the_page_follows_from_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As committed, byte for byte; no run is made."""
    shutil.copy(COMMITTED / PREDICTED, tmp_path)
    assert main(["yardstick", "--redraw", "--results", str(tmp_path)]) == 0
    for path in COMMITTED.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
    score = capsys.readouterr().out.strip()
    counted = sum(len(table.rows) for table in TABLES if table.kind == "measured")
    assert score.startswith(f"{counted} rows: relative error median")
    assert score in " ".join((COMMITTED.parents[1] / "README.md").read_text().split())


@each_row("text", ["[" * 3000, "[1]", "[{}]", "3", "x", '[{"command": []}]'])
def test_predictions_that_are_none_end_in_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / PREDICTED).write_text(text)
    assert main(["yardstick", "--redraw", "--results", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@each_row(
    ("line", "rule"),
    [
        ("yardstick --redraw", "--redraw needs the runs of these tables in"),
        ("yardstick --claim J1", "yardstick must be without --claim, which belongs to papers"),
        ("yardstick --on slurm", "yardstick must be without --on"),
    ],
)
def test_what_it_cannot_do_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, rule: str
) -> None:
    assert main([*line.split(), "--results", str(tmp_path / "new")]) == 2
    err = capsys.readouterr().err
    assert rule in err
    assert err.count("\n") == 1
    assert not any(tmp_path.iterdir())
