"""Tests of output with terminal colours in a cell, shown without a script."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.serialization.terminal_text import plain
from ignite_tf_magic.session import RunState
from ignite_tf_magic.ui.assets import joined
from ignite_tf_magic.ui.coloured_html import _COLOURS, coloured_html
from ignite_tf_magic.ui.progress import Progress
from ignite_tf_magic.ui.run_html import RunPicture

DONE = Progress("succeeded", 1.0, RunState.SUCCEEDED)


class Seen(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags = "", set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add((tag, *(name for name, _ in attributes)))

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize(
    ("line", "html"),
    [
        ("loss < 1 \t& falls", "loss &lt; 1 \t&amp; falls"),
        (
            "\x1b[1m3/3\x1b[0m \x1b[32m==\x1b[0m done",
            '<span style="font-weight:bold">3/3</span> <span style="color:#43a047">==</span> done',
        ),
        ("worker 1 | \x1b[90mold\x1b[39mnew", 'worker 1 | <span style="color:#808080">old</span>new'),
        ("\x1b[38;5;208mo\x1b[38;2;1;2;3;4mp", '<span style="color:#ff8700">o</span>'
         '<span style="text-decoration:underline;color:#010203">p</span>'),
        ("\x1b]8;;https://example.org\x1b\\a link\x1b]8;;\x1b\\ \x1b[2J", "a link "),
    ],
)  # fmt: skip
def test_colours_and_shapes_stay_other_orders_go(line, html):
    assert coloured_html(line) == html


@given(
    st.lists(
        st.sampled_from(
            ["\x1b[1m", "\x1b[31m", "\x1b[0m", "\x1b[", "\x1b", "<b>", "&", "m", "\r", "\x9b", "é"]
        )
    )
)
def test_whatever_is_written_is_text_and_nothing_else(pieces):
    line = "".join(pieces)
    seen = Seen(coloured_html(line))
    assert seen.text == plain(line)
    assert seen.tags <= {("span", "style")}


def test_a_rainbow_of_many_letters_is_kept_without_colours():
    line = "".join(f"\x1b[38;5;{number % 256}mx" for number in range(200))
    whole = RunPicture("run k3f", DONE, tail=[line]).bundle()["text/html"]
    assert "color:#ff0000" in whole
    many = RunPicture("run k3f", DONE, tail=[line] * 200).bundle()["text/html"]
    assert "x" * 200 in many and "color:#ff0000" not in many


def test_a_colour_is_the_same_while_a_run_goes_on_and_afterwards():
    assert f"COLOURS = {json.dumps(list(_COLOURS))};" in joined("ansi.js")
