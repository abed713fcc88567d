"""Explains why workers wait for each other: one is at another operation, is slower, or is silent.

Workers that train one model must call the same operations in the same order. Otherwise they would wait forever, or add
up unrelated numbers. So each worker numbers the operations that it begins (steps, and sums outside of graphs), and
labels each with its origin, such as "evaluate in callback Check". During a `fit` or `evaluate`, the chief compares its
operations with those of each other worker every few seconds, over a separate channel for each pair. If a worker does
not answer for a while, the other one reports it, with the length of the silence.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.tf_private import abort_collectives
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.settings.options import timeouts_divisor
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.task import Place

_SCALE = 1 / timeouts_divisor()
_TICK_S, _SILENT_S, _SLOW_S = 5.0 * _SCALE, 20.0 * _SCALE, 30.0 * _SCALE
_LEAVE_S = 10.0 * _SCALE
_LOOK_S = 1.0
_VERDICT = re.compile("the workers have come to different operations: .*")
_MESSAGE_BYTES = 2048
_NUM_RUNS, _MOST_LABEL_CHARS = 8, 100
_PAIR_KEYS = 500_000  # the first group key of channels between two workers; `group` uses lower ones


class Operations:
    """The operations that this worker has begun: their number, and the labels of the last ones."""

    def __init__(self) -> None:
        self.number = 0
        self.changed_at = time.monotonic()
        self._labels = ["the script"]
        self._runs: deque[tuple[int, str]] = deque(maxlen=_NUM_RUNS)  # the first operation of each label

    @contextmanager
    def within(self, label: str) -> Iterator[None]:
        """Label the operations of a block. All workers must use the same label."""
        self._labels.append(label[:_MOST_LABEL_CHARS])
        try:
            yield
        finally:
            self._labels.pop()

    def begin(self, kind: str = "") -> None:
        """Count an operation that all workers call."""
        label = f"{kind} of {self._labels[-1]}" if kind else self._labels[-1]
        self.number += 1
        self.changed_at = time.monotonic()
        if not self._runs or self._runs[-1][1] != label:
            self._runs.append((self.number, label))

    def history(self) -> tuple[int, list[tuple[int, str]]]:
        """Return the number of operations, and the last labels, each with the number of its first operation."""
        runs = list(self._runs)
        return self.number, runs


OPERATIONS = Operations()
"""Those of this process's main thread."""


def difference(
    own: tuple[int, Sequence[Sequence[Any]]], other: tuple[int, Sequence[Sequence[Any]]]
) -> tuple[int, str, str] | None:
    """Return the last operation that both workers have begun and its two labels, if the labels differ."""
    number = min(own[0], other[0])
    labels = [
        next((label for start, label in reversed(runs) if start <= number), None) for _, runs in (own, other)
    ]
    if None in labels or labels[0] == labels[1]:
        return None
    return number, str(labels[0]), str(labels[1])


class RollCall:
    """Compares this worker's operations with those of other workers during a `fit` or `evaluate`."""

    def __init__(self, group: WorkerGroup, say: Callable[[str], None]) -> None:
        self._place = group.place
        group.on_sum = OPERATIONS.begin
        self._say = say
        self._verdict = ""
        self._depth = 0
        self._pairs: list[_Pair] = []

    @contextmanager
    def during(self, label: str) -> Iterator[None]:
        """Compare operations while the block lasts. An error due to a difference becomes a ConfigError.

        Raises:
            ConfigError: The workers are at different operations. The message names them.
        """
        self._begin()
        try:
            with OPERATIONS.within(label):
                yield
        except BaseException as error:
            for pair in self._pairs:
                pair.is_quiet = True  # the script handles the error now, without the other workers
            # If another worker has aborted the operations, TensorFlow's error contains that worker's message.
            found = _VERDICT.search(self._verdict or str(error))
            if found and isinstance(error, tf.errors.OpError):
                raise ConfigError(found.group()) from error
            raise
        else:
            self._end()
        finally:
            self._depth -= 1

    def _begin(self) -> None:
        self._depth += 1
        if not self._pairs:
            others = range(1, self._place.size) if self._place.is_chief else (0,)
            self._pairs = [_Pair(self._place, other, self) for other in others]
        if self._depth == 1:
            for pair in self._pairs:
                pair.begin()

    def _end(self) -> None:
        if self._depth == 1:
            for pair in self._pairs:
                pair.leave()
            for pair in self._pairs:
                pair.await_left()
            if self._verdict:
                raise ConfigError(self._verdict)

    def judge(self, other: int, told: dict[str, Any]) -> None:
        """Abort this worker's operations if another worker is at a different one. The other does the same."""
        found = difference(OPERATIONS.history(), (told["number"], told["runs"]))
        if not found or self._verdict:
            return
        number, own, theirs = found
        self._verdict = (
            f"the workers have come to different operations: worker {self._place.index} to {own}, worker {other} to "
            f"{theirs} (operation {number} of each). All workers must call the same; a callback that only some of them "
            "have, or a condition that differs between workers, may be the cause. For what one worker does alone use "
            "`with ignite_tf_magic.independent():`"
        )
        abort_collectives(self._verdict)

    def report(self, line: str) -> None:
        """Write a line to this worker's output."""
        self._say(f"ignite_tf_magic: {line}")


class _FitBlock:
    """The events of one `fit` or `evaluate`, for its threads alone."""

    def __init__(self) -> None:
        self.wakes = threading.Event()
        self.has_left = threading.Event()
        self.is_leaving = False


class _Pair:
    """The channel between the chief and another worker, and the threads that use it.

    The chief asks every few seconds, and once more when it exits its block. The other worker answers until the chief
    has exited the block that this worker is in. Both number their blocks, so both make the same number of calls.
    """

    def __init__(self, place: Place, other: int, roll_call: RollCall) -> None:
        self._other = other
        self._asks = place.is_chief
        self._roll_call = roll_call
        worker = max(place.index, other)
        addresses = (place.addresses[0], place.addresses[worker])
        self._group = WorkerGroup(
            Place(addresses, 0 if place.is_chief else 1), key=_PAIR_KEYS + worker, way="auto"
        )
        self._block: _FitBlock | None = None
        self._num_blocks = 0
        self._leaving = threading.Lock()
        self._asked_at: float | None = None
        self._slow_from = 0.0
        self.is_quiet = False

    def begin(self) -> None:
        self.is_quiet = False
        with self._leaving:
            self._num_blocks += 1
            if self._block is not None and not self._block.has_left.is_set():
                return  # the threads of the block before still run: it failed, or the chief has not exited it yet
        self._block = _FitBlock()
        for name, work in (("roll-call", self._work), ("roll-call-silence", self._watch)):
            threading.Thread(
                target=work, args=(self._block,), name=f"{name}-{self._other}", daemon=True
            ).start()

    def leave(self) -> None:
        if self._block is not None:
            self._block.is_leaving = True
            self._block.wakes.set()

    def await_left(self) -> None:
        if self._block is not None:
            self._block.has_left.wait(_LEAVE_S)

    def _work(self, block: _FitBlock) -> None:
        with suppress(tf.errors.OpError):  # the other worker is gone, or this one has aborted its operations
            while not block.has_left.is_set():
                if self._asks:
                    block.wakes.wait(_TICK_S)
                self._exchange(block)
        block.has_left.set()

    def _exchange(self, block: _FitBlock) -> None:
        number, runs = OPERATIONS.history()
        left = self._num_blocks if self._asks and block.is_leaving else 0
        message = {"number": number, "runs": runs, "left": left}
        self._asked_at = time.monotonic()
        told = self._swapped(message)
        self._asked_at = None
        self._roll_call.judge(self._other, told)
        self._report_slow(told)
        with self._leaving:
            if left or told["left"] >= self._num_blocks:
                block.has_left.set()

    def _swapped(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send the other worker a message, and return the message that it sends."""
        rows = np.zeros((2, _MESSAGE_BYTES // 8), np.int64)
        data = json.dumps(message).encode()[:_MESSAGE_BYTES]
        rows[self._group.place.index] = np.frombuffer(data.ljust(_MESSAGE_BYTES, b" "), np.int64)
        (both,) = self._group.sum_arrays([rows])
        told: dict[str, Any] = json.loads(both[1 - self._group.place.index].tobytes())
        return told

    def _report_slow(self, told: dict[str, Any]) -> None:
        """Report the other worker after this one has waited for it for a long time."""
        now = time.monotonic()
        waited_s = now - max(OPERATIONS.changed_at, self._slow_from)
        if told["number"] < OPERATIONS.number and waited_s > _SLOW_S:
            self._slow_from = now
            label = told["runs"][-1][1] if told["runs"] else "its start"
            self._roll_call.report(
                f"waits for worker {self._other}, which has come to {label} (its operation {told['number']}, and "
                f"{OPERATIONS.number} here)"
            )

    def _watch(self, block: _FitBlock) -> None:
        """Report the other worker while it does not answer. A worker that is only busy does answer."""
        next_s = _SILENT_S
        looked_at = awake_since = time.monotonic()
        while not block.has_left.wait(_LOOK_S):
            asked_at, now = self._asked_at, time.monotonic()
            if now - looked_at > 2 * _LOOK_S:
                awake_since = now  # this process itself was suspended
            looked_at = now
            silent_s = 0.0 if asked_at is None else now - max(asked_at, awake_since)
            if silent_s < next_s or self.is_quiet:
                if next_s > _SILENT_S and silent_s < _SILENT_S:
                    next_s = _SILENT_S
                    self._roll_call.report(f"worker {self._other} answers again")
                continue
            next_s = 2 * silent_s
            self._roll_call.report(
                f"worker {self._other} has been silent for {silent_s:.0f} s: its process is stopped, "
                "hangs, or gets no CPU time; the others wait for it"
            )


def calling_callback(callback_class: type) -> str:
    """Return " in callback `NAME`" if a callback of the script calls this, else ""."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        owner = type(found).__module__.partition(".")[0]
        if isinstance(found, callback_class) and owner not in ("keras", "tf_keras", "ignite_tf_magic"):
            return f" in callback `{type(found).__name__}`"
        frame = frame.f_back
    return ""


_roll_calls: dict[str, RollCall] = {}


def roll_call(group: WorkerGroup) -> RollCall:
    """Return the one `RollCall` of this process."""
    if "own" not in _roll_calls:
        _roll_calls["own"] = RollCall(group, say)
    return _roll_calls["own"]


def say(line: str) -> None:
    """Write a line to standard error in a single write."""
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())
