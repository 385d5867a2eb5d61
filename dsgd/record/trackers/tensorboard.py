"""Copy a run to an event file of TensorBoard, in the run's own folder."""

# pyright: reportAttributeAccessIssue=false
# protobuf makes the classes of events when it is imported: no type checker sees them

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from dsgd.record.safe_files import make_inside, open_kept
from dsgd.record.trackers import numbers
from dsgd.record.writer import CONFIG

FOLDER = "tensorboard"


def begin(folder: Path) -> TensorboardTracker:
    """Begin an event file for the record in a folder. A resumed run replaces the events from before."""
    return TensorboardTracker(folder)


class TensorboardTracker:
    """An event file. The step of an event is the number of samples; its time is the run's clock.

    So TensorBoard's horizontal axis STEP shows samples, and RELATIVE shows `time_s`, which is virtual in a simulation.
    Events are written one by one and without a thread, unlike `SummaryWriter`: an error belongs to its line."""

    copied = 0  # all lines are written again: the start of a session hides the events from before

    def __init__(self, folder: Path) -> None:
        configuration = (folder / CONFIG).read_text(encoding="utf-8")
        name = f"events.out.tfevents.{time.time_ns():020d}.{os.getpid()}"
        self._file = os.fdopen(open_kept(make_inside(folder, FOLDER) / name, os.O_WRONLY), "wb")
        self._writer = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        self._write(Event(step=0, summary=Summary(value=[_text("configuration", configuration)])))
        self._last = 0

    def log(self, number: int, mark: Mapping[str, Any]) -> None:
        """Write the numbers of one line of metrics.jsonl."""
        self._last = int(mark["samples"])
        self._write_numbers(mark)

    def end(self, summary: Mapping[str, Any]) -> str:
        """Write the numbers of the summary, each as a chart of one point."""
        self._write_numbers(summary, "summary/")
        self._file.close()
        return ""

    def _write_numbers(self, fields: Mapping[str, Any], prefix: str = "") -> None:
        values = [Summary.Value(tag=prefix + key, simple_value=value) for key, value in numbers(fields).items()]
        time_s = float(fields.get("time_s", 0.0))
        self._write(Event(step=self._last, wall_time=time_s, summary=Summary(value=values)))

    def _write(self, event: Event) -> None:
        """Append an event. Raises OSError, for example if the disk is full."""
        self._writer.write(event.SerializeToString())
        self._file.flush()


def _text(tag: str, text: str) -> Summary.Value:
    """Return a text for TensorBoard's tab TEXT, which reads Markdown: indented, it is shown literally."""
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    indented = "    " + text.replace("\n", "\n    ")
    tensor = TensorProto(dtype=DT_STRING, string_val=[indented.encode()], tensor_shape=shape)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
