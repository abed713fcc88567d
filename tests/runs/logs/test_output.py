from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic.launch.agent.spawning import can_punch, punch
from ignite_tf_magic.launch.log_files import tail
from ignite_tf_magic.runs.logs.output import Segment, follow
from tests.runs.light_runs import COME_UP, text_of

BLOCK = 4096


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=8), max_size=20), st.text(max_size=30))
def test_characters_cut_anywhere_come_out_whole(tmp_path_factory, pieces, text):
    """The log is written in small pieces and read after each. The text must equal a single decoding of all bytes."""
    path = tmp_path_factory.mktemp("log") / "worker.log"
    data = b"".join(pieces) + text.encode()
    cuts = [data[i : i + 3] for i in range(0, len(data), 3)]

    def write_next() -> bool:
        with path.open("ab") as log:
            log.write(cuts.pop(0) if cuts else b"")
        return not cuts

    chunks = list(follow(lambda: [Segment(4, path)], write_next))
    assert "".join(chunk.text for chunk in chunks) == data.decode("utf-8", "replace")
    assert all(chunk.worker == 4 and chunk.text for chunk in chunks)


def test_a_log_that_never_comes(tmp_path):
    segments = [Segment(0, tmp_path / "missing.log", "a title of nothing\n")]
    assert list(follow(lambda: segments, lambda: True)) == []


def test_later_logs_of_a_worker_follow_earlier_ones_and_begin_with_their_title(tmp_path):
    """The second log exists from the start, and is longer than one chunk."""
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_bytes(b"x" * 150_000 + b"\n")
    second.write_bytes(b"y" * 150_000 + b"\n")
    segments = [Segment(0, first), Segment(0, second, "--- again\n")]
    chunks = list(follow(lambda: segments, lambda: True))
    assert "".join(chunk.text for chunk in chunks) == f"{'x' * 150_000}\n--- again\n{'y' * 150_000}\n"


@pytest.mark.parametrize("title", ["", "--- again\n"])
def test_a_line_that_was_never_finished_does_not_swallow_the_next_one(tmp_path, title):
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_text("one\ntw")
    second.write_text("three\n")
    chunks = list(follow(lambda: [Segment(0, first), Segment(0, second, title)], lambda: True))
    assert "".join(chunk.text for chunk in chunks) == f"one\ntw\n{title}three\n"


def test_logs_may_appear_while_reading(tmp_path):
    paths = [tmp_path / f"{i}.log" for i in range(3)]
    segments = []

    def has_ended() -> bool:
        for path in paths[len(segments) : len(segments) + 1]:
            path.write_text(f"{path.name}\n")
            segments.append(Segment(0, path))
        return len(segments) == len(paths)

    chunks = follow(lambda: segments, has_ended)
    assert "".join(chunk.text for chunk in chunks) == "0.log\n1.log\n2.log\n"


def test_pauses_are_given_when_they_are_asked_for(tmp_path):
    looks = iter([False, False, True])
    chunks = list(follow(list, lambda: next(looks), with_pauses=True))
    assert [(chunk.worker, chunk.text) for chunk in chunks] == [(0, ""), (0, "")]


def test_tail_shows_what_a_terminal_shows(tmp_path):
    path = tmp_path / "worker.log"
    assert tail(path, 3) == ()
    path.write_bytes(b"")
    assert tail(path, 3) == ()
    path.write_bytes(b"one\ntwo\r\n 10%\r 50%\r100%\nbad \xff\n\n")
    assert tail(path, 3) == ("two", "100%", "bad �")
    path.write_bytes(b"x" * 200_000 + b"\nlast\n")
    assert tail(path, 1) == ("last",)


def deleted(count: int) -> str:
    return f"[ignite_tf_magic: {count} bytes of output were deleted here, at the log's size bound]\n"


@pytest.mark.parametrize("read_first", [0, 1])
def test_the_head_that_its_shim_has_deleted_is_told_and_not_shown_as_zeros(tmp_path, read_first):
    """The shim deletes the head either before the first read, or while the reader is in the middle of it."""
    path = tmp_path / "worker.log"
    path.write_bytes(b"a" * 100 if read_first else b"a" * 40 * BLOCK + b"end\n")
    steps = iter(range(3))

    def go_on() -> bool:
        step = next(steps)
        if step == read_first:
            with path.open("r+b") as file:
                assert can_punch(file.fileno())
                file.seek(100 * read_first)
                file.write(b"a" * (40 * BLOCK - 100 * read_first) + b"end\n")
                file.flush()
                punch(file.fileno(), 33 * BLOCK)
        return step == 2

    text = "".join(chunk.text for chunk in follow(lambda: [Segment(0, path)], go_on))
    begin = 100 * read_first
    assert text == "a" * begin + deleted(33 * BLOCK - begin) + "a" * 7 * BLOCK + "end\n"
    assert tail(path, 1) == ("a" * 7 * BLOCK + "end",)


def test_zeros_that_a_script_writes_are_its_output(tmp_path):
    path = tmp_path / "worker.log"
    path.write_bytes(bytes(3 * BLOCK) + b"end\n")
    chunks = list(follow(lambda: [Segment(0, path)], lambda: True))
    assert "".join(chunk.text for chunk in chunks) == "\0" * 3 * BLOCK + "end\n"


def test_output_comes_while_the_script_runs(start, work_dir):
    script = (
        "import os, time\nprint('first')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('second')"
    )
    chunks = start(script).follow()
    assert next(chunks).text == "first\n"
    (work_dir / "go").touch()
    assert "".join(chunk.text for chunk in chunks) == "second\n"


def test_output_of_several_workers_is_told_apart(start):
    run = start(COME_UP + "for i in range(100): print(f'{index}:{i}')", 2)
    for worker in range(2):
        assert text_of(run, worker).split() == [f"{worker}:{i}" for i in range(100)]
    seen = {0: "", 1: ""}
    for chunk in run.follow():
        seen[chunk.worker] += chunk.text
    assert {worker: len(text.split()) for worker, text in seen.items()} == {0: 100, 1: 100}


def test_fifty_megabytes_arrive_whole_while_others_read_too(start):
    script = (
        "import sys\n"
        "line = 'x' * 90\n"
        "for i in range(5_000):\n"
        "    sys.stdout.write(''.join(f'{100 * i + k:08d}{line}\\n' for k in range(100)))"
    )
    run = start(script)
    sizes = []
    other = threading.Thread(target=lambda: sizes.append(sum(len(chunk.text) for chunk in run.follow())))
    other.start()
    expected, rest = 0, ""
    for chunk in run.follow():
        assert len(chunk.text) <= 64 << 10
        *lines, rest = (rest + chunk.text).split("\n")
        for line in lines:
            assert int(line[:8]) == expected
            expected += 1
    other.join()
    assert (expected, rest) == (500_000, "")
    assert sizes == [500_000 * 99]


def test_invalid_utf8_harms_nothing(start):
    script = "import os\nos.write(1, b'good \\xff\\xfe bad\\n')\nos.write(2, b'\\xe2\\x82')"
    run = start(script)
    assert text_of(run) == "good �� bad\n�"
    assert run.wait(300).exit_code == 0


def test_a_progress_bar_is_passed_on_as_it_was_written(start):
    run = start("import sys\nfor i in range(3): sys.stdout.write(f'\\r{i}/2')\nprint()")
    assert text_of(run) == "\r0/2\r1/2\r2/2\n"
