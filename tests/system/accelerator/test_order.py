"""What emulated devices find: each kind of defect in the order of streams, copies, memory and host, and nothing in
correct programs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.emulated_devices import findings_in, with_devices
from tests.system.accelerator.programs.correct import CORRECT
from tests.system.accelerator.programs.defects import CRASHES, DEFECTS

PROGRAMS = ("-m", "tests.system.accelerator.programs")
NAMES = {
    "host_waits_in_a_capture": "operation not permitted when stream is capturing: the host waits in item",
    "default_stream_waits_in_a_capture": "the default stream of emu:1 depend on a stream that is being captured",
    "replay_on_a_stream_that_does_not_wait": "is not ordered after aten::add_ of Float[4] on the default stream",
    "read_without_event": "is not ordered after aten::fill_ of Float[4] on the default stream of emu:1, which wrote it",
    "written_while_read": "which reads it",
    "part_of_a_vector_that_overlaps": "is not ordered after aten::mul_ of Float[5]",
    "one_of_two_copies_is_not_waited_for": "host buffer changed: the non-blocking copy of Float[64] to emu:1",
    "event_recorded_too_early": "is not ordered after aten::add_",
    "event_of_the_wrong_stream": "is not ordered after aten::fill_",
    "default_stream_in_place_of_the_workers": "aten::mul_ on the default stream of emu:1 writes it",
    "memory_made_on_another_stream": "is not ordered after the allocation",
    "freed_without_record_stream": "record_stream or a wait is missing",
    "host_buffer_changed_under_a_copy": "host buffer changed: the non-blocking copy of Float[64] to emu:1",
    "host_buffer_written_while_a_copy_fills_it": "host buffer changed: the non-blocking copy of Float[8] from emu:1",
    "copy_of_pageable_memory_is_not_asynchronous": "not pinned",
    "two_devices_in_one_operator": "Expected all tensors to be on the same device",
    "wrong_device_in_a_thread": "Expected all tensors to be on the same device",
    "collective_without_wait": "is not ordered after allreduce",
    "changed_under_a_collective": "is not ordered after allreduce",
    "device_that_is_not_there": "there are 4 emu devices",
    "used_in_a_forked_process": "Cannot re-initialize emu in a forked subprocess",
    "host_reads_device_memory": "host access: the host touches memory of emu:1 (4096 bytes)",
    "host_writes_device_memory": "host access: the host touches memory of emu:1 (4096 bytes)",
    "host_reads_a_copy_too_early": "host access: pinned memory of 4096 bytes is used before a copy to it is done",
}


@cache
def results(folder: Path) -> dict[str, str]:
    environment = with_devices(folder, EMU_UNPINNED="1")
    ended = subprocess.run([sys.executable, *PROGRAMS], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="session")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("findings")


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_program_raises_nothing(name: str, findings: Path) -> None:
    assert results(findings)[name] == ""


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_and_named(name: str, findings: Path) -> None:
    assert NAMES[name] in results(findings)[name]


@pytest.mark.parametrize("name", CRASHES)
def test_the_host_cannot_touch_what_is_not_its_own(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "faulthandler", *PROGRAMS, name]
    ended = subprocess.run(command, env=with_devices(tmp_path), capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGSEGV, ended.stderr
    assert findings_in(tmp_path) == [NAMES[name]]
    assert f"in {name}" in ended.stderr  # the stack
