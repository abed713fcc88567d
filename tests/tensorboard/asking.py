"""Requests to a TensorBoard for the data that it shows."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from urllib.parse import urlencode

from ignite_tf_magic.tensorboard.record import TensorBoardInfo
from tests.waiting import until


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
    """Return the steps for which TensorBoard has a value."""
    points = ask(board, "data/plugin/scalars/scalars", run=run, tag=tag)
    return [step for _, step, _ in points] if isinstance(points, list) else []


def until_right(question, is_right) -> object:
    """Ask until the answer is right, and return it."""
    answers = []

    def ask_once() -> bool:
        answers[:] = [question()]
        return is_right(answers[0])

    until(ask_once, what=lambda: f"another answer than {answers[0]!r}")
    return answers[0]
