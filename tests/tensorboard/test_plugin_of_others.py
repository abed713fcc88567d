"""A TensorBoard that a user starts with its own command, with this package installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import fsspec
import pytest

from tests.tensorboard.event_files import EventFile
from tests.waiting import until

TENSORBOARD = Path(sys.executable).with_name("tensorboard")


@pytest.fixture
def events(ignite):
    uri = f"igfs://{ignite.nodes[0].host}:{ignite.nodes[0].port}/of-others"
    fsspec.register_implementation("igfs", "ignite_tf_magic.igfs.filesystem.IgfsFileSystem", clobber=True)
    files, path = fsspec.core.url_to_fs(uri)
    files.makedirs(path, exist_ok=True)
    EventFile(f"{uri}/first/train").scalar("loss", 0.5, 3)
    yield uri
    files.rm(path, recursive=True)
    files.volume.close()


def test_the_command_of_tensorboard_itself_reads_igfs(ignite, events, tmp_path):
    env = {**os.environ, "IGNITE_TF_CLUSTER": ",".join(map(str, ignite.connect_options.endpoints))}
    command = [
        TENSORBOARD,
        "--logdir",
        events,
        "--port",
        "0",
        "--host",
        "127.0.0.1",
        "--reload_interval",
        "1",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
    try:
        said = tmp_path / "log"
        until(
            lambda: re.search(r"http://127\.0\.0\.1:\d+", said.read_text()) or process.poll() is not None, 300
        )
        address = re.search(r"http://127\.0\.0\.1:\d+", said.read_text())
        assert address, said.read_text()
        opener = build_opener(ProxyHandler({}))

        def runs():
            with opener.open(f"{address[0]}/data/runs", timeout=60) as answer:
                return json.load(answer)

        until(runs, 120, what=lambda: said.read_text())
        assert runs() == ["first/train"]
    finally:
        process.terminate()
        process.wait(60)
