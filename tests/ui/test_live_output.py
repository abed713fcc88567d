"""Tests of the output that users see while workers write."""

from __future__ import annotations

import random

import pytest

from ignite_tf_magic.ui.live_output import LiveOutput
from tests.ui.notebook.kernels import screen


def names(num_workers):
    return [f"worker {number}" for number in range(num_workers)]


def shown(num_workers: int, *chunks: tuple[int, str]) -> list[str]:
    output = LiveOutput(names(num_workers))
    stream = ""
    for worker, text in chunks:
        output.feed(worker, text)
        stream += output.take()
    return screen(stream + output.finish())


def test_one_worker_has_no_prefix():
    assert shown(1, (0, "a\nb"), (0, "c\n")) == ["a", "bc", ""]


def test_lines_of_several_workers_never_mix():
    assert shown(2, (0, "hel"), (1, "one\n"), (0, "lo\n"), (1, "tail")) == [
        "worker 1 | one",
        "worker 0 | hello",
        "worker 1 | tail",
        "",
    ]


def test_progress_bars_rewrite_one_line():
    output = LiveOutput(names(2))
    stream = ""
    for percent in (5, 50, 95):
        for worker in (0, 1):
            output.feed(worker, f"\r{percent}% of worker {worker}")
        stream += output.take()
        assert screen(stream) == [f"worker 0 | {percent}% of worker 0   worker 1 | {percent}% of worker 1"]
    output.feed(0, "\rdone\n")
    stream += output.take()
    assert screen(stream) == ["worker 0 | done", "worker 1 | 95% of worker 1"]


def test_shorter_text_leaves_no_remains():
    assert shown(1, (0, "a long progress bar"), (0, "\rend\n"), (0, "x")) == ["end", "x", ""]


def test_lines_can_be_taken_with_their_workers():
    output = LiveOutput(names(2))
    output.feed(0, "one\nhalf")
    output.feed(1, "\x1b[32mtwo\x1b[0m\n")
    output.say("beside")
    assert output.take_lines() == (
        [(0, "one"), (1, "\x1b[32mtwo\x1b[0m"), (None, "beside")],
        "worker 0 | half",
    )
    assert output.take_lines() == ([], "worker 0 | half")
    assert (output.named(1, "two"), output.named(None, "beside")) == ("worker 1 | two", "beside")
    output.end_lines()
    assert output.take_lines() == ([(0, "half")], "")


TRACEBACK = "Traceback (most recent call last):\n  File 'x'\nValueError: boom"


def test_the_traceback_that_is_told_elsewhere_is_left_out():
    output = LiveOutput(names(3), holds_tracebacks=True)
    output.feed(0, f"one\n{TRACEBACK}\n")
    output.feed(1, TRACEBACK.replace("'x'", "'y'"))
    output.feed(2, "Traceback (most recent call last):\n  File 'x'\nTypeError\n")
    assert output.take_lines()[0] == [(0, "one")]
    assert output.holds
    output.end_lines()
    output.release(TRACEBACK)
    assert not output.holds
    assert output.take_lines()[0] == [
        (1, "[it failed for the same reason: ValueError: boom]"),
        (2, "Traceback (most recent call last):"),
        (2, "  File 'x'"),
        (2, "TypeError"),
    ]


def test_nothing_but_the_traceback_at_the_end_is_left_out():
    output = LiveOutput(names(1), holds_tracebacks=True)
    survived = TRACEBACK.replace("boom", "survived")
    chained = (
        f"{TRACEBACK}\n\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}"
    )
    output.feed(0, f"{survived}\nloss 0.5\nloss 0.4\n{chained}\n")
    output.release(f"{chained}\n")
    assert [line for _, line in output.take_lines()[0]] == [*survived.split("\n"), "loss 0.5", "loss 0.4"]
    output.feed(0, f"{survived}\nloss 0.3\n")
    output.release(TRACEBACK)
    assert [line for _, line in output.take_lines()[0]] == [*survived.split("\n"), "loss 0.3"]


def test_a_traceback_that_a_script_survives_is_let_go():
    output = LiveOutput(names(1), holds_tracebacks=True)
    output.feed(0, f"{TRACEBACK}\ngoes on\n")
    assert output.take() == ""
    output.release()
    output.feed(0, "more\n")
    assert output.take() == f"{TRACEBACK}\ngoes on\nmore\n"


def test_keras_progress_bar_with_backspaces():
    assert shown(1, (0, "1/9 [>...]"), (0, "\b" * 10 + "\r9/9 [====]"), (0, "\n")) == ["9/9 [====]", ""]


def test_windows_line_ends_split_over_chunks():
    assert shown(1, (0, "a\r"), (0, "\nb\r\n")) == ["a", "b", ""]


def test_blank_lines_stay():
    assert shown(1, (0, "a\n\n"), (0, "\nb\n")) == ["a", "", "", "b", ""]


def test_nothing_new_is_nothing_to_write():
    output = LiveOutput(names(1))
    output.feed(0, "\r10%")
    assert output.take()
    assert output.take() == ""
    output.feed(0, "\r11%")
    assert output.take(with_progress=False) == ""
    assert output.take() == "\r11%"


def test_native_start_up_messages_are_left_out():
    noise = "I0000 00:00:1795236347.692572   12602 cudart_stub.cc:31] Could not find cuda drivers\n"
    first = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    assert shown(1, (0, first + noise + "epoch 1\n")) == ["epoch 1", ""]


def test_of_a_flood_no_line_is_lost():
    output = LiveOutput(names(1))
    for number in range(100_000):
        output.feed(0, f"line {number}\n")
    assert output.take() == "".join(f"line {number}\n" for number in range(100_000))
    assert output.take() == ""


def test_a_file_gets_whole_lines_alone():
    output = LiveOutput(names(2), is_screen=False)
    output.feed(0, "one\ntw")
    assert output.take() == "worker 0 | one\n"
    output.feed(1, "10 %\r20 %")
    assert output.take() == ""
    output.feed(0, "o\n")
    assert output.take() == "worker 0 | two\n"
    assert output.finish() == "worker 1 | 20 %\n"


def test_a_line_without_end_is_cut_into_pieces():
    output = LiveOutput(names(1))
    output.feed(0, "x" * 1_000_000)
    assert max(map(len, output.take().splitlines())) == 8192


@pytest.mark.parametrize("seed", range(20))
def test_chunk_borders_change_nothing(seed):
    """The final lines do not depend on where chunks are split or when output is taken."""
    dice = random.Random(seed)
    text = "".join(dice.choice(["a", "bc", "\n", "\r", "\x1b[1m"]) for _ in range(200)) + "\n"
    expected = LiveOutput(names(1))
    expected.feed(0, text)
    cut = LiveOutput(names(1))
    stream, rest = "", text
    while rest:
        size = dice.randint(1, 9)
        cut.feed(0, rest[:size])
        rest = rest[size:]
        if dice.random() < 0.5:
            stream += cut.take(with_progress=dice.random() < 0.5)
    assert screen(stream + cut.finish()) == screen(expected.finish())
