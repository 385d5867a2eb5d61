"""Folders of records, and other outputs, before they are made: tested, locked for one command, and removed if empty."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dsgd.record.lock import COMMAND_LOCK, FolderInUse, locked, owner_has_died
from dsgd.record.safe_files import check_inside
from dsgd.runner.values import ConfigError

TRIALS = 20  # of making a folder
KILLED_S = 60.0  # that runs of a killed command may take to end


def existing_ancestor(folder: Path) -> Path:
    """Return the folder itself, or the nearest one above it that exists."""
    return next((path for path in [folder, *folder.parents] if os.path.exists(path)), folder)


def check_writable(folder: Path, key: str, file: Path | None = None) -> None:
    """Raise ConfigError unless the folder that `key` names could be made and written; leaves nothing behind. file: a
    file in the folder, if `key` names the file instead.

    Tests a folder of another name next to it: two commands with the same folder must not remove each other's."""
    for attempt in range(TRIALS):
        standing = existing_ancestor(folder)
        trial = standing / f".probe-{os.getpid()}"
        inner = trial / folder.relative_to(standing)
        try:
            inner.mkdir(parents=True)
            (inner / "file").touch()
            if file is not None and file.exists() and not os.access(file, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        except OSError as error:
            # others that begin at the same time may take away a folder that they had made
            if not isinstance(error, FileNotFoundError) or attempt == TRIALS - 1:
                what, path = ("folder", folder) if file is None else ("file", file)
                raise ConfigError(
                    f"{key} must be a {what} that can be written, got {path} ({error.strerror})"
                ) from error
        finally:
            shutil.rmtree(trial, ignore_errors=True)


def check_file(path: Path, key: str) -> None:
    """Raise ConfigError unless the file that `key` names could be written or replaced; leaves nothing behind."""
    if path.is_dir():
        raise ConfigError(f"{key} must be a file, got the folder {path}")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{key} must be a file, got {path}, which is not a regular one")
    check_writable(path.absolute().parent, key, path)


def new_folder(folder: Path, key: str) -> Path:
    """Make a folder, and return it: under its name or, if that is taken, the first free one with a number behind it.

    Raises ConfigError if the folder that `key` names cannot be made."""
    check_writable(folder, key)
    for number in itertools.count(1):
        path = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        for attempt in range(TRIALS):
            try:
                path.mkdir(parents=True)
                return path
            except FileExistsError:
                break
            except OSError as error:
                if not isinstance(error, FileNotFoundError) or attempt == TRIALS - 1:  # as above
                    raise ConfigError(
                        f"{key} must be a folder that can be made, got {path} ({error.strerror})"
                    ) from error
    raise AssertionError("no number is the last")


def refuse_links(folder: Path, inner: str | Path, key: str) -> None:
    """Raise ConfigError if the folder that `key` names has a link on the path to its files."""
    try:
        check_inside(folder, inner)
    except OSError as error:
        raise ConfigError(
            f"{key} must be a folder without links to elsewhere, got {folder} ({error.strerror})"
        ) from error


def remove_empty(folder: Path, standing: Path) -> None:
    """Remove an empty folder, and empty folders above it, up to one that stays."""
    for path in [folder, *folder.parents]:
        if path == standing:
            return
        try:
            path.rmdir()
        except OSError:  # there is something in it
            return


@contextmanager
def folder_lock(folder: Path, key: str) -> Iterator[None]:
    """Keep other commands out of the folder that `key` names, which is made if it is not there and goes if it is empty.

    Waits for the runs that a killed command has left behind: they end by themselves. Raises ConfigError if another
    command works in the folder, or it cannot be written."""
    standing, deadline = existing_ancestor(folder), time.monotonic() + KILLED_S
    with ExitStack() as stack:
        stack.callback(remove_empty, folder, standing)
        while True:
            try:
                stack.enter_context(locked(folder, COMMAND_LOCK))
                break
            except FolderInUse as error:
                if not owner_has_died(folder, COMMAND_LOCK) or time.monotonic() > deadline:
                    raise ConfigError(f"{key} must not be in use by another command, got {folder}") from error
                time.sleep(0.05)
            except OSError as error:
                reason = f"{folder} ({error.strerror})"
                raise ConfigError(f"{key} must be a folder that can be written, got {reason}") from error
        yield
