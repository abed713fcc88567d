"""How to ask a TensorBoard for what it shows."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection
from urllib.parse import urlencode

from ignite_tf_magic.tensorboard.record import TensorBoardInfo


def ask(board: TensorBoardInfo, path: str, **query: str):
    connection = HTTPConnection("127.0.0.1", board.port, timeout=300)
    try:
        connection.request("GET", f"/{path}?{urlencode(query)}")
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    return json.loads(body) if response.status == 200 else response.status


def runs(board: TensorBoardInfo) -> list[str]:
    return sorted(ask(board, "data/runs"))


def steps(board: TensorBoardInfo, run: str, tag: str = "loss") -> list[int]:
    """Steps at which TensorBoard has a value."""
    points = ask(board, "data/plugin/scalars/scalars", run=run, tag=tag)
    return [step for _, step, _ in points] if isinstance(points, list) else []


def until(what, is_right) -> object:
    """Ask again and again, until it is right."""
    deadline = time.monotonic() + 120
    while not is_right(answer := what()):
        assert time.monotonic() < deadline, f"it stays at {answer!r}"
        time.sleep(0.05)
    return answer
