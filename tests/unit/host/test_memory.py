"""How much memory this process may take."""

from __future__ import annotations

from pathlib import Path

from dsgd.host.resources import available_memory, total_memory
from tests.support.each_row import each_row


def test_this_machine_has_memory_and_some_is_left() -> None:
    assert 0 < available_memory() < total_memory()


@each_row(
    ("limits", "total", "available"),
    [
        ({}, 8 << 20, 4 << 20),
        ({"job": "max"}, 8 << 20, 4 << 20),
        ({"job": str(3 << 20)}, 3 << 20, 2 << 20),
        ({"": str(2 << 20), "job": str(3 << 20)}, 2 << 20, 1 << 20),
    ],
)
def test_the_nearest_limit_counts_without_cached_files(
    limits: dict[str, str], total: int, available: int, tmp_path: Path
) -> None:
    """A group uses 1.5 MiB here, of which half a MiB is cached files."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8192 kB\nMemFree: 1 kB\nMemAvailable: 4096 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    for group, limit in limits.items():
        folder = tmp_path / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{3 << 19}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {1 << 19}\n")
    assert (total_memory(tmp_path), available_memory(tmp_path)) == (total, available)
