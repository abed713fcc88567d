"""The data that an open TensorBoard shows: real processes, real event files, its own data API."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import psutil
import pytest

from ignite_tf_magic.tensorboard.record import STATUS_PATH
from ignite_tf_magic.tensorboard.server import Watch
from tests.tensorboard.asking import ask, runs, steps, until_right
from tests.tensorboard.event_files import EventFile

FLAKY = {"flaky": "tests.tensorboard.flaky_files.FlakyFileSystem"}


def troubles(board):
    return ask(board, STATUS_PATH[1:])["troubles"]


def test_runs_are_compared_under_their_names(show, tmp_path):
    for run, value in [("first", 0.5), ("second", 0.25)]:
        file = EventFile(f"{tmp_path}/{run}/train")
        file.scalar("loss", value, 0)
        file.scalar("loss", value / 2, 1)
    EventFile(f"{tmp_path}/second").scalar("lr", 0.1, 0)
    board = show({"mnist-1": tmp_path / "first", "mnist-2": tmp_path / "second"})
    until_right(lambda: runs(board), lambda found: found == ["mnist-1/train", "mnist-2", "mnist-2/train"])
    for run, value in [("mnist-1/train", 0.5), ("mnist-2/train", 0.25)]:
        until_right(lambda run=run: steps(board, run), lambda found: found == [0, 1])
        points = ask(board, "data/plugin/scalars/scalars", run=run, tag="loss")
        assert [point for _, _, point in points] == [value, value / 2]
    assert board.notes == ()


def test_a_growing_file_shows_new_points(show, tmp_path):
    workers = [EventFile(f"{tmp_path}/logs", number) for number in range(2)]
    board = show({"run": tmp_path / "logs"})
    for step in range(4):  # two files of one directory grow alternately
        tag = f"loss-{step % 2}"
        workers[step % 2].scalar(tag, 1.0, step)
        until_right(lambda tag=tag: steps(board, "run", tag)[-1:], [step].__eq__)


def test_a_record_that_is_half_written_shows_when_it_is_whole(show, tmp_path):
    file = EventFile(f"{tmp_path}/logs")
    whole = Path(file.uri)
    size = whole.stat().st_size
    file.scalar("loss", 1.0, 7)
    record = whole.read_bytes()
    with whole.open("r+b") as cut:
        cut.truncate(size + 11)
    EventFile(f"{tmp_path}/logs", 1).scalar("other", 1.0, 0)
    board = show({"run": tmp_path / "logs"})
    until_right(lambda: steps(board, "run", "other"), lambda found: found == [0])
    assert steps(board, "run") == []
    whole.write_bytes(record)
    until_right(lambda: steps(board, "run"), lambda found: found == [7])


def test_what_several_places_hold_of_a_run_is_one_run(show, tmp_path):
    EventFile(f"{tmp_path}/here/train").scalar("loss", 1.0, 0)
    EventFile(f"{tmp_path}/there/train", 1).scalar("accuracy", 1.0, 0)
    board = show({"run": [tmp_path / "missing", tmp_path / "here", tmp_path / "there"]})
    until_right(lambda: steps(board, "run/train", "loss"), lambda found: found == [0])
    until_right(lambda: steps(board, "run/train", "accuracy"), lambda found: found == [0])
    assert runs(board) == ["run/train"]


def test_runs_that_come_and_go(show, tmp_path):
    (tmp_path / "runs").mkdir()
    board = show({"": tmp_path / "runs" / "*" / "files"})
    assert runs(board) == []
    assert "nothing to show yet" in board.notes[0]
    EventFile(f"{tmp_path}/runs/new/files/train").scalar("loss", 1.0, 0)
    EventFile(f"{tmp_path}/runs/other/elsewhere").scalar("loss", 1.0, 0)
    until_right(lambda: runs(board), lambda found: found == ["new/train"])
    (tmp_path / "runs" / "new").rename(tmp_path / "runs" / "renamed")
    until_right(lambda: runs(board), lambda found: found == ["renamed/train"])


def test_a_run_whose_directory_goes_and_comes_again(show, tmp_path):
    EventFile(f"{tmp_path}/logs").scalar("loss", 1.0, 0)
    board = show({"run": tmp_path / "logs"})
    until_right(lambda: runs(board), lambda found: found == ["run"])
    (tmp_path / "logs").rename(tmp_path / "away")
    until_right(lambda: runs(board), lambda found: found == [])
    EventFile(f"{tmp_path}/logs").scalar("loss", 1.0, 5)
    until_right(lambda: steps(board, "run"), lambda found: found == [5])


def test_one_directory_takes_tensorboards_own_names(show, tmp_path):
    EventFile(f"{tmp_path}/logs/a, b: c/#1").scalar("loss", 1.0, 0)
    EventFile(f"{tmp_path}/elsewhere").scalar("loss", 1.0, 0)
    (tmp_path / "logs" / "link").symlink_to(tmp_path / "elsewhere")
    board = show({"": tmp_path / "logs"})
    until_right(lambda: runs(board), lambda found: found == ["a, b: c/#1", "link"])


def test_an_outage_is_told_and_survived(show, tmp_path, monkeypatch):
    """TensorBoard's own reader would stop forever."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    files = tmp_path / "files"
    growing = EventFile(f"{files}/run")
    growing.scalar("loss", 1.0, 0)
    EventFile(f"{tmp_path}/local").scalar("loss", 1.0, 0)
    board = show({"far": f"flaky://{files}/run", "near": tmp_path / "local"}, protocols=FLAKY)
    until_right(lambda: (steps(board, "far"), steps(board, "near")), lambda found: found == ([0], [0]))

    (files / "down").touch()
    growing.scalar("loss", 1.0, 1)
    told = until_right(lambda: troubles(board), bool)
    assert told == [f"cannot read flaky://{files}/run: the files are down"]
    EventFile(f"{tmp_path}/local/more").scalar("loss", 1.0, 0)
    until_right(lambda: runs(board), lambda found: "near/more" in found)  # it continues with the others
    assert steps(board, "far") == [0]

    (files / "down").unlink()
    until_right(lambda: steps(board, "far"), lambda found: found == [0, 1])
    until_right(lambda: troubles(board), lambda found: not found)


def test_what_cannot_be_read_at_all_is_told(show, tmp_path):
    EventFile(f"{tmp_path}/local").scalar("loss", 1.0, 0)
    board = show({"far": "nosuch://files", "near": tmp_path / "local"})
    assert board.notes == ("cannot read nosuch://files: Protocol not known: nosuch",)
    until_right(lambda: steps(board, "near"), lambda found: found == [0])


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="nothing to be kept out")
def test_tensorflow_stays_out_of_its_process(show, tmp_path):
    EventFile(f"{tmp_path}/logs").scalar("loss", 1.0, 0)
    board = show({"run": tmp_path / "logs"})
    until_right(lambda: steps(board, "run"), lambda found: found == [0])
    assert isinstance(ask(board, "data/plugins_listing"), dict)  # loads the plugins; one could import it
    loaded = {Path(each.path).name for each in psutil.Process(board.pid).memory_maps()}
    assert any("numpy" in name or "multiarray" in name for name in loaded)
    assert not [name for name in loaded if "tensorflow" in name]


def test_nothing_is_read_while_nobody_looks():
    watch = Watch(pause_after_s=0)
    reader = threading.Thread(target=watch.wait_for_look)
    reader.start()
    watch.look()
    assert reader.is_alive()  # with pause_after_s=0, any look is too old
    watch._pause_after_s = 3600
    watch.look()
    reader.join(300)
    assert not reader.is_alive()
