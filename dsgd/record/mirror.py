"""Copy the record of a run to Weights & Biases, from its files and in a process of its own.

The record on disk is the truth. If wandb is absent, without network, broken or stuck, it neither stops nor delays the
run: the run only tells that process of new lines, and waits for it at the end, for a limited time.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dsgd.record.bounded import read_bounded
from dsgd.record.reader import name_of, read_config, read_summary
from dsgd.record.writer import CONFIG, METRICS, SUMMARY
from dsgd.record.written import check_inside, write_atomically

if TYPE_CHECKING:
    import wandb

INIT_TIMEOUT_S = 30.0
ID_BYTES = 100
RUN_ID = "wandb-id"  # file with the run's id in wandb, by which a resumed run goes on there
MODES = ("disabled", "offline", "online")


@dataclass(frozen=True)
class MirrorOptions:
    """The configuration keys `wandb.*`."""

    mode: str = "disabled"  # offline: files in the run folder, for `wandb sync`
    entity: str | None = None  # user or team; null: wandb's own default
    project: str = "dsgd"
    group: str | None = None  # null: a sweep's folder; of a single run, its model and data
    name: str | None = None  # null: like gossip-8-lr0.1-seed0
    tags: list[str] = field(default_factory=list)
    timeout_s: float = 60.0  # how long to wait for wandb when the run is over

    def __post_init__(self) -> None:
        if not 0 <= self.timeout_s < math.inf:
            raise ValueError(f"timeout_s must be finite and >= 0, got {self.timeout_s}")
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")


class Mirror:
    """Starts, wakes and awaits the copying process; does nothing with wandb.mode=disabled."""

    def __init__(self, options: MirrorOptions, folder: Path) -> None:
        """Start the copying process. folder: of a record that has begun."""
        self._timeout_s = options.timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        if options.mode != "disabled":
            command = [sys.executable, "-P", "-m", "dsgd.record.mirror", str(folder)]
            # in a session of its own, where a Ctrl-C at the terminal does not reach it
            try:
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
            except OSError as error:  # no more processes, or no memory
                print(f"wandb: {error.strerror}: {sys.executable}; going on without it", file=sys.stderr)
            else:
                os.set_blocking(self._pipe.fileno(), False)

    @property
    def _pipe(self) -> Any:
        assert self._process is not None
        return self._process.stdin

    def wake(self) -> None:
        """Tell the copying process that the record has new lines. Never blocks."""
        if self._process is not None:
            with contextlib.suppress(OSError):  # the pipe is full or broken: it reads the lines at the end, if ever
                self._pipe.write(b"\n")

    def finish(self) -> None:
        """Wait until everything is copied, or for wandb.timeout_s. Call it when the summary is written."""
        if self._process is None:
            return
        self._pipe.close()
        try:
            self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            print(f"wandb: not done {self._timeout_s:g} s after the run; going on without it", file=sys.stderr)
        finally:  # of a Ctrl-C, too
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()


def main(folder: Path) -> None:
    """Copy the record in a folder to wandb while it grows, until standard input ends."""
    import wandb

    run = begin(folder)
    run.define_metric("time_s")
    run.define_metric("*", step_metric="time_s")
    known = run.step  # lines that were copied before the run was interrupted
    for number, line in enumerate(new_lines(folder / METRICS, sys.stdin)):
        if number >= known:
            run.log({key: value for key, value in json.loads(line).items() if value is not None}, step=number)
    summary = read_summary(folder) or {"status": "killed"}
    run.summary.update(summary)
    record = wandb.Artifact(f"record-{run.id}", type="record")
    for file in (CONFIG, METRICS, SUMMARY):
        if (folder / file).exists():
            record.add_file(str(folder / file))
    run.log_artifact(record)
    place = Path(run.dir).parent
    offline = run.offline
    run.finish(exit_code=1 if summary["status"] in ("failed", "killed") else 0)
    if offline:
        print(f"wandb: kept offline; to copy it: {sync_command(place)}", file=sys.stderr, flush=True)


def sync_command(place: Path) -> str:
    """Return the command that copies an offline run to a server. place: its folder."""
    return shlex.join(["wandb", "sync", str(place)])


def begin(folder: Path) -> wandb.Run:
    """Begin a run in wandb, or go on with the one that the record began. Without a server it is kept in files."""
    import wandb
    from wandb.errors import CommError, UsageError

    config = read_config(folder)
    options = config["wandb"]
    kept = folder / RUN_ID
    before = read_bounded(kept, ID_BYTES).decode().strip() if kept.exists() else ""
    identity = before if re.fullmatch(r"[A-Za-z0-9_-]+", before) else secrets.token_hex(4)
    write_atomically(kept, f"{identity}\n".encode())
    check_inside(folder, "wandb")
    arguments: dict[str, Any] = {
        "id": identity,
        "entity": options["entity"],
        "project": options["project"],
        "group": options["group"] or f"{name_of(config['model'])}-{name_of(config['data'])}",
        "name": options["name"] or run_name(config),
        "tags": options["tags"],
        "dir": str(folder),
        "config": config,
        "settings": wandb.Settings(init_timeout=INIT_TIMEOUT_S, silent=True, console="off"),
    }
    if options["mode"] == "online":
        try:
            return wandb.init(mode="online", resume="allow", **arguments)
        except (CommError, UsageError) as error:
            line = " ".join(str(error).split())
            print(f"wandb: {line}; kept in {folder / 'wandb'} for `wandb sync`", file=sys.stderr, flush=True)
    return wandb.init(mode="offline", **arguments)


def run_name(config: Mapping[str, Any]) -> str:
    """Return the name of a run of this configuration in wandb, like `gossip-8-lr0.1-seed0`."""
    algo, rate = config["algo"]["name"], config["optimizer"]["lr"]
    return f"{algo}-{config['nodes']}-lr{rate:g}-seed{config['seed']}"


def new_lines(path: Path, wakes: TextIO) -> Iterator[bytes]:
    """Yield the whole lines of a file as it grows.

    wakes: anything read from it says that there may be new lines; its end, that the file is complete."""
    rest = b""
    with path.open("rb") as file:
        ended = False
        while not ended:
            ended = not os.read(wakes.fileno(), 4096)
            *whole, rest = (rest + file.read()).split(b"\n")
            yield from whole


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception as error:  # whatever wandb may raise, in one line
        print(f"wandb: {type(error).__name__}: {' '.join(str(error).split())}; going on without it", file=sys.stderr)
        sys.exit(1)
