"""Remember measured gradient times on this machine, so that a command gives the same virtual times tomorrow.

One small file for each kind of gradients in the user's cache folder. Deleting it has the time measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from dsgd.record.bounded import json_object

FILE_BYTES = 1 << 16
DATE = re.compile(r"\d{4}-\d\d-\d\d")


class CacheUnusable(Exception):
    """Raised where times cannot be kept or read: one line."""


@dataclass(frozen=True)
class KeptTime:
    """seconds: of one gradient. measured: the date, as 2026-11-25. path: of the file."""

    seconds: float
    measured: str
    path: Path


def kept_time(key: Mapping[str, str]) -> KeptTime | None:
    """Return the time that was measured for this key, None if none was. Raises CacheUnusable."""
    path = _path(key)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            content = json_object(file.read(FILE_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CacheUnusable(f"{path} cannot be read: {error.strerror}") from error
    content = content or {}
    seconds, measured = content.get("seconds"), content.get("measured")
    if not isinstance(seconds, float) or not 0 < seconds < math.inf or content.get("of") != dict(key):
        raise CacheUnusable(f"{path} is no gradient time of this version")
    if not isinstance(measured, str) or not DATE.fullmatch(measured):
        raise CacheUnusable(f"{path} is no gradient time of this version")
    return KeptTime(seconds, measured, path)


def keep_time(key: Mapping[str, str], seconds: float) -> None:
    """Keep a time that was measured today. Another process finds the whole file or none. Raises CacheUnusable."""
    path = _path(key)
    content = {"seconds": seconds, "measured": date.today().isoformat(), "of": dict(key)}
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, partial = tempfile.mkstemp(prefix=path.name, dir=path.parent)  # follows no link, and overwrites nothing
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")
        os.replace(partial, path)
    except OSError as error:
        if partial is not None:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        raise CacheUnusable(f"{path.parent} cannot be written: {error.strerror}") from error


def machine() -> str:
    """Return the name of this machine and of its processor."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):  # a system without /proc
        names = re.findall(
            r"^model name\s*:\s*(.+)$",
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"),
            re.MULTILINE,
        )
        processor = names[0] if names else processor
    return f"{platform.node()}, {processor}"


def _path(key: Mapping[str, str]) -> Path:
    """Return the file for a key. Raises CacheUnusable if this user has no cache folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        raise CacheUnusable("there is neither XDG_CACHE_HOME nor a home folder")
    name = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]
    return Path(base, "dsgd", f"gradient_{name}.json")
