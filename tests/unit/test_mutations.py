"""The single-line changes of `benchmarks/mutations.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SOURCE = '''\
"""Add 1 + 1."""

LIMIT = 3


class Queue:
    def take(self, count: int = 2, kind: list[1] | None = None) -> str:
        """Return 1 < 2."""
        if not count:
            raise ValueError(f"count must be > {count - 1}")
        elif count < 5:
            print(count + 1)
        self.total += count
        await self.send(x.clone())
        return min(a, b) == "ä" and rest

    def __repr__(self) -> str:
        return str(1 + 1)
'''
CHANGED = {
    ("if not count:", "if count:"),
    ("elif count < 5:", "elif count >= 5:"),
    ("elif count < 5:", "elif count <= 5:"),
    ("elif count < 5:", "elif count < 6:"),
    ("elif count < 5:", "elif count < 4:"),
    ("self.total += count", "pass"),
    ("self.total += count", "self.total -= count"),
    ("await self.send(x.clone())", "pass"),
    ("await self.send(x.clone())", "await self.send(x)"),
    ('return min(a, b) == "ä" and rest', 'return max(a, b) == "ä" and rest'),
    ('return min(a, b) == "ä" and rest', 'return min(a, b) != "ä" and rest'),
    ('return min(a, b) == "ä" and rest', 'return min(a, b) == "ä" or rest'),
}


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "dsgd" / "topology").mkdir(parents=True)
    (tmp_path / "dsgd" / "topology" / "queue.py").write_text(SOURCE)
    return tmp_path


def test_changes_are_in_code_that_runs_and_not_in_messages_types_or_what_is_shown() -> None:
    from benchmarks.mutations import sites

    lines = SOURCE.splitlines()
    assert {(lines[site.number].strip(), site.changed) for site in sites(SOURCE)} == CHANGED


def test_the_choice_is_the_same_each_time_and_has_one_change_of_a_line(checkout: Path) -> None:
    from benchmarks.mutations import choose

    chosen = choose([checkout], [])
    assert chosen == choose([checkout], [])
    assert len({mutation.line for mutation in chosen}) == len(chosen) == 5


def test_a_line_is_located_in_a_file_that_has_moved(checkout: Path) -> None:
    from benchmarks.mutations import choose, located

    chosen = choose([checkout], [])
    moved = checkout / "dsgd" / "queue.py"
    moved.write_text(f"\n\n{SOURCE}")
    (checkout / "dsgd" / "topology" / "queue.py").unlink()
    lines = [line.strip() for line in moved.read_text().splitlines()]
    assert {located(checkout, mutation) for mutation in chosen} == {(moved, lines.index(m.line)) for m in chosen}


def test_changes_stay_chosen_but_for_those_of_withdrawn_lines(checkout: Path) -> None:
    from benchmarks.mutations import choose

    chosen = choose([checkout], [])
    after = checkout / "after" / "dsgd" / "topology" / "queue.py"
    after.parent.mkdir(parents=True)
    after.write_text(SOURCE.replace("self.total += count", "self.sum += count"))
    again = choose([checkout / "after"], chosen)
    assert [m for m in chosen if m.line != "self.total += count"] == again[:-1]
    assert again[-1].line == "self.sum += count"
