"""Folders of records, before they are made: tried out, and taken away again where nothing came of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from dsgd.run.values import ConfigError

TRIALS = 20  # of making a folder


def existing_ancestor(folder: Path) -> Path:
    """Return the folder itself, or the nearest one above it that exists."""
    return next((path for path in [folder, *folder.parents] if path.exists()), folder)


def check_writable(folder: Path, key: str) -> None:
    """Raise ConfigError unless the folder that `key` names could be made and written; leaves nothing behind."""
    for attempt in range(TRIALS):
        made: list[Path] = []
        try:
            for path in [*reversed(folder.parents), folder]:
                if not path.exists():
                    path.mkdir(exist_ok=True)
                    made.append(path)
            probe = folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
            return
        except OSError as error:
            # jobs that begin at the same time take away the folders above that they made for their trial
            if not isinstance(error, FileNotFoundError) or attempt == TRIALS - 1:
                reason = f"{folder} ({error.strerror})"
                raise ConfigError(f"{key} must be a folder that can be written, got {reason}") from error
        finally:
            for path in reversed(made):
                with contextlib.suppress(OSError):  # somebody else is using it by now
                    path.rmdir()


def remove_empty(folder: Path, standing: Path) -> None:
    """Take away a folder without content, and those above it up to one that stays."""
    for path in [folder, *folder.parents]:
        if path == standing:
            return
        try:
            path.rmdir()
        except OSError:  # there is something in it
            return
