"""Writes event files as TensorBoard's own writer does, without TensorFlow, through fsspec."""

from __future__ import annotations

import time

import fsspec
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.record_writer import RecordWriter


class EventFile:
    """A growing event file. A value is visible to readers once `scalar` returns."""

    def __init__(self, directory: str, number: int = 0) -> None:
        self.uri = f"{directory}/events.out.tfevents.{1700000000 + number}.host"
        files, path = fsspec.core.url_to_fs(directory)
        files.makedirs(path, exist_ok=True)
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalar(self, tag: str, value: float, step: int) -> None:
        event = Event(wall_time=time.time(), step=step)
        event.summary.CopyFrom(scalar_pb(tag, value))
        self._append(event)

    def _append(self, event: Event) -> None:
        with fsspec.open(self.uri, "ab") as file:
            RecordWriter(file).write(event.SerializeToString())
