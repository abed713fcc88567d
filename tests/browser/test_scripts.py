"""The widgets' scripts in a browser, without a kernel: what they draw of what they are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ignite_tf_magic.ui.assets import joined
from tests.browser.lab import browser

RUN_VIEW = ("uPlot.iife.min.js", "chart.js", "ansi.js", "connection.js", "run_view.js")
PANEL = ("connection.js", "panel.js", "panel_widget.js")
STATE = {
    "run": "run a1b-digits",
    "words": "running",
    "colour": "green",
    "live": True,
    "hears": True,
    "can_stop": True,
    "can_leave": True,
}
# What anywidget hands to a script: a model whose events the test sends.
DRAW = """async ([script, values]) => {
    const {default: {render}} = await import(URL.createObjectURL(new Blob([script], {type: "text/javascript"})));
    const calls = [];
    const model = {
        get: (name) => values[name],
        on: (name, call) => calls.push([name, call]),
        off: () => {},
        send: () => {},
    };
    window.tell = (event, content) => calls.filter(([name]) => name === event).forEach(([, call]) => call(content));
    window.place = document.createElement("div");
    document.body.replaceChildren(window.place);
    render({model, el: window.place});
}"""


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("scripts")) as context:
        yield context


@pytest.fixture
def page(context) -> Iterator[Page]:
    page = context.new_page()
    page.clock.install()
    yield page
    page.close()


def draw_run(page: Page, tail: dict[str, Any], **state: Any) -> None:
    values = {"state": {**STATE, **state}, "series": {}, "tail": tail}
    page.evaluate(DRAW, [joined(*RUN_VIEW), values])


def lines(*texts: str, end: int | None = None) -> dict[str, Any]:
    return {"end": len(texts) if end is None else end, "lines": list(texts)}


def looks(page: Page, text: str) -> dict[str, Any]:
    """Return the computed style of the last piece of a line of output."""
    draw_run(page, {"all": lines(text), "tasks": {}})
    return page.evaluate(
        """() => {
            const style = getComputedStyle([...document.querySelectorAll(".itm-output pre span span")].at(-1));
            return {colour: style.color, ground: style.backgroundColor, weight: style.fontWeight,
                    style: style.fontStyle, line: style.textDecorationLine};
        }"""
    )


PLAIN = {
    "colour": "rgb(0, 0, 0)",
    "ground": "rgba(0, 0, 0, 0)",
    "weight": "400",
    "style": "normal",
    "line": "none",
}
RED = "rgb(229, 57, 53)"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ("1;3;4;31", {"weight": "700", "style": "italic", "line": "underline", "colour": RED}),
        ("91", {"colour": RED}),
        ("1;38;2;0;0;0", {"weight": "700"}),  # black by name: nothing is reset
        ("38;2;10;20;30", {"colour": "rgb(10, 20, 30)"}),
        ("38:2::10:20:30", {"colour": "rgb(10, 20, 30)"}),
        ("38;5;4", {"colour": "rgb(30, 136, 229)"}),  # and no line below it
        ("38;5;196", {"colour": "rgb(255, 0, 0)"}),
        ("38;5;67", {"colour": "rgb(95, 135, 175)"}),
        ("38;5;232", {"colour": "rgb(8, 8, 8)"}),
        ("38;5;4;1", {"colour": "rgb(30, 136, 229)", "weight": "700"}),
        ("31;38;5;999", {"colour": RED}),
        ("38;2;1", {}),
        ("38", {}),
        ("58;5;1", {}),
        ("31;48;5;4;39", {"ground": "color(srgb 0.117647 0.533333 0.898039 / 0.35)"}),
        ("41", {"ground": "color(srgb 0.898039 0.223529 0.207843 / 0.35)"}),
        ("101", {"ground": "color(srgb 0.898039 0.223529 0.207843 / 0.35)"}),
        ("41;49", {}),
        ("31;39", {}),
        ("1;22", {}),
        ("3;23", {}),
        ("4;24", {}),
        ("4:3", {"line": "underline"}),
        ("4;4:0", {}),
        ("1;3;4;31;41;0", {}),
        ("31;", {}),  # an empty one is 0
        ("98;108;130;140;7;1000", {}),
    ],
)
def test_colours_are_those_of_a_terminal(page, codes, expected):
    assert looks(page, f"a \x1b[{codes}mb") == PLAIN | expected


def test_lines_are_shown_once_in_the_tab_of_their_worker(page):
    tail = {
        "all": lines("w0 | 8", "w0 | 9", "w1 | 0", end=11),
        "tasks": {"w0": lines("8", "9", end=10), "w1": lines("0")},
    }
    draw_run(page, tail)
    # Sent before the page drew anything, and on its way while it did.
    late = {"all": lines("w1 | 0", "w1 | 1", end=12), "tasks": {"w1": lines("0", "1", end=2)}}
    page.evaluate("late => window.tell('msg:custom', {kind: 'output', last: '', ...late})", late)
    page.get_by_role("tab", name="w0").click()
    expect(page.get_by_role("log", name="output of w0")).to_have_text("8\n9\n")
    page.get_by_role("tab", name="w1").click()
    expect(page.get_by_role("log", name="output of w1")).to_have_text("0\n1\n")
    expect(page.get_by_role("log", name="output of w0")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    everything = page.get_by_role("log", name="output of all workers")
    expect(everything).to_have_text("w0 | 8\nw0 | 9\nw1 | 0\nw1 | 1\n")


def test_tabs_are_in_the_order_of_the_workers_not_of_their_first_words(page):
    tasks = {f"worker {number}": lines("x") for number in (10, 2, 0)}
    draw_run(page, {"all": lines(), "tasks": tasks})
    page.evaluate(
        "late => window.tell('msg:custom', {kind: 'output', last: '', ...late})",
        {"all": lines(), "tasks": {"worker 1": lines("x")}},
    )
    expect(page.get_by_role("tab")).to_have_text(["all", "worker 0", "worker 1", "worker 2", "worker 10"])
    page.get_by_role("tab", name="worker 1", exact=True).click()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("log", name="output of worker 2")).to_be_visible()


def test_a_kernel_of_which_nothing_is_heard_is_given_up(page):
    draw_run(page, {"all": lines(), "tasks": {}})
    words = "not connected to a kernel any more: %ignite_tf attach a1b-digits shows the run again"
    detach = page.get_by_role("button", name="Detach")
    for _ in range(10):
        page.clock.run_for(10_000)
        page.evaluate("window.tell('msg:custom', {kind: 'alive'})")
    page.clock.run_for(25_000)
    expect(detach).to_be_enabled()
    page.clock.run_for(15_000)
    expect(page.locator(".itm-note")).to_have_text(words)
    for name in ("Stop", "Detach", "TensorBoard"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    # It was busy, and is there.
    page.evaluate("window.tell('msg:custom', {kind: 'alive'})")
    expect(page.locator(".itm-note")).to_have_text("")
    expect(detach).to_be_enabled()


def test_a_run_that_has_ended_waits_for_no_kernel(page):
    draw_run(page, {"all": lines(), "tasks": {}}, live=False, note="all is said")
    page.clock.run_for(100_000)
    expect(page.locator(".itm-note")).to_have_text("all is said")
    expect(page.get_by_role("button")).to_have_count(0)


SEEN = {
    "runs": [],
    "cluster": "a:1",
    "trouble": "",
    "warnings": [],
    "nodes": [
        {"id": "1", "name": "a:1", "host": "a", "memory": "1 MiB of 2 MiB", "share": 0.5},
        {"id": "2", "name": "a:2", "host": "a", "memory": "", "share": None},
        {"id": "3", "name": "b:1", "host": "b", "memory": "", "share": None},
    ],
    "caches": [
        {"name": "C", "rows": 7, "backups": "0", "tables": [], "primaries": {"1": 500, "2": 12, "3": 512}}
    ],
}


def test_partitions_stand_under_their_nodes_and_those_under_their_hosts(page):
    page.evaluate(DRAW, [joined(*PANEL), {"seen": SEEN, "told": {}}])
    page.get_by_role("tab", name="cluster").click()
    heat = page.get_by_role("table", name="partitions by host and node").locator("tr")
    expect(heat).to_have_count(3)
    assert [row.locator("th, td").all_inner_texts() for row in heat.all()] == [
        ["partitions of", "a", "b"],
        ["a:1", "a:2", "b:1"],
        ["C", "500", "12", "512"],
    ]
    spans = heat.first.locator("th").evaluate_all("heads => heads.map((head) => head.colSpan)")
    assert spans == [1, 2, 1]
    nodes = page.get_by_role("table", name="nodes").locator("tr")
    assert [row.locator("th, td").all_inner_texts()[:2] for row in nodes.all()] == [
        ["host", "node"],
        ["a", "a:1"],
        ["a:2", ""],
        ["b", "b:1"],
    ]


def test_a_panel_whose_kernel_is_gone_does_nothing_more(page):
    page.evaluate(DRAW, [joined(*PANEL), {"seen": SEEN, "told": {}}])
    page.get_by_role("tab", name="caches").click()
    profile = page.get_by_role("button", name="profile of C")
    expect(profile).to_be_enabled()
    page.evaluate(
        "window.place.classList.add('jupyter-widgets-disconnected'), window.tell('comm_live_update')"
    )
    page.clock.run_for(1)
    expect(page.get_by_role("alert")).to_have_text("not connected to a kernel any more: run the cell again")
    expect(profile).to_be_disabled()
