"""Compile the emulated accelerator: once for a source and a version of torch, kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("order.cpp", "memory.cpp", "device.cpp", "operators.cpp", "graph.cpp", "module.cpp")
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-fvisibility=hidden")
NAME = f"native{sysconfig.get_config_var('EXT_SUFFIX')}"


def compiler() -> str | None:
    """Return the C++ compiler's command, or None without one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def cache() -> Path:
    """Return the folder of compiled modules: EMU_CACHE, else the user's own, which tests do not replace."""
    return Path(os.environ.get("EMU_CACHE") or Path.home() / ".cache" / "dsgd-emulated-accelerator")


def library(torch_version: str) -> Path:
    """Return the module's path for this torch; it need not be there yet."""
    key = hashlib.sha256(repr((FLAGS, torch_version, NAME)).encode())
    for path in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")]):
        key.update(path.name.encode() + path.read_bytes())
    return cache() / key.hexdigest()[:16] / NAME


def build(torch_folder: Path, torch_version: str) -> Path:
    """Return the compiled module's path, compiling it where it is not there. Raises RuntimeError where that fails."""
    made = library(torch_version)
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    with (made.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            partial = made.with_suffix(".partial")
            _compile(torch_folder, partial)
            partial.replace(made)
    return made


def _compile(torch_folder: Path, made: Path) -> None:
    command = compiler()
    if command is None:
        raise RuntimeError("the emulated accelerator needs a C++ compiler: g++, or the one that CXX names")
    include, libraries = torch_folder / "include", torch_folder / "lib"
    arguments = [
        command,
        *FLAGS,
        *(f"-I{folder}" for folder in (include, include / "torch/csrc/api/include", sysconfig.get_paths()["include"])),
        *(str(HERE / source) for source in SOURCES),
        f"-L{libraries}",
        *(f"-l{name}" for name in ("c10", "torch", "torch_cpu", "torch_python")),
        "-o",
        str(made),
    ]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"the emulated accelerator does not compile:\n{ended.stderr[:4000]}")
