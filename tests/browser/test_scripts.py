"""Tests of the widgets' scripts in a browser, without a kernel: what they draw from given data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from ignite_tf_magic.ui.assets import joined

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
# A replacement for the model that anywidget passes to a script. The test sends its events.
DRAW = """async ([script, values]) => {
    const {default: {render}} = await import(URL.createObjectURL(new Blob([script], {type: "text/javascript"})));
    const calls = [];
    const model = {
        get: (name) => values[name],
        on: (name, call) => calls.push([name, call]),
        off: () => {},
        send: (message) => window.sent.push(message),
    };
    window.sent = [];
    window.change = (name, value) => { values[name] = value; window.tell("change:" + name); };
    window.tell = (event, content) => calls.filter(([name]) => name === event).forEach(([, call]) => call(content));
    window.place = document.createElement("div");
    document.body.replaceChildren(window.place);
    render({model, el: window.place});
}"""


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
    """Return the computed style of the last span in a line of output."""
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
        ("1;38;2;0;0;0", {"weight": "700"}),  # explicit black, not a reset
        ("38;2;10;20;30", {"colour": "rgb(10, 20, 30)"}),
        ("38:2::10:20:30", {"colour": "rgb(10, 20, 30)"}),
        ("38;5;4", {"colour": "rgb(30, 136, 229)"}),  # and no underline
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
        ("31;", {}),  # an empty code means 0
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
    # Sent before the page drew anything, and still on its way then.
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
    words = "no longer connected to a kernel: %ignite_tf attach a1b-digits shows the run again"
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
    # The kernel was busy, and now responds.
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
    "num_ended": 0,
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
    expect(page.get_by_role("alert")).to_have_text("no longer connected to a kernel: run the cell again")
    expect(profile).to_be_disabled()


RUN = {
    "id": "zd5-digits",
    "mark": "zd5",
    "state": "running",
    "state_text": "running",
    "colour": "green",
    "live": True,
    "stop": "Stop",
    "words": "running",
    "share": None,
    "cache": "DIGITS",
    "hosts": ["a"],
    "workers": 2,
    "restarts": 1,
    "tags": [],
    "duration": "3 s",
    "metric": "",
    "spark": [],
    "last": "",
    "measures": [],
    "can_stop": True,
    "can_resume": False,
}


def ended_run(number: int) -> dict[str, Any]:
    return RUN | {"id": f"e{number}-old", "mark": f"e{number}", "state": "succeeded", "live": False}


def draw_panel(
    page: Page, runs: list[dict[str, Any]], told: dict[str, Any] | None = None, num_ended: int | None = None
) -> Locator:
    page.evaluate(DRAW, [joined(*PANEL), {"seen": seen_of(runs, num_ended), "told": told or {}}])
    return page.locator(".itm-panel")


def seen_of(runs: list[dict[str, Any]], num_ended: int | None = None) -> dict[str, Any]:
    told = sum(not run["live"] for run in runs)
    return SEEN | {"runs": runs, "num_ended": told if num_ended is None else num_ended}


def see_anew(page: Page, runs: list[dict[str, Any]]) -> None:
    """Send the panel its regular update, with something new in it."""
    page.evaluate("seen => window.change('seen', seen)", seen_of(runs) | {"warnings": ["new"]})


def test_a_search_that_leaves_nothing_says_so(page):
    panel = draw_panel(page, [RUN, ended_run(1), ended_run(2)])
    search, none = page.get_by_role("searchbox"), "nothing matches the search"
    expect(panel).not_to_contain_text("restarts")
    expect(panel).to_contain_text("1 restart")
    search.fill("xyz")
    expect(panel).to_contain_text(none)
    expect(panel).not_to_contain_text("No run is live")
    search.fill("old")
    expect(panel).to_contain_text("No live run matches the search. \u00b7 2 have ended")
    page.get_by_label("ended runs").check()
    expect(panel.locator(".itm-row")).to_have_count(2)
    search.fill("xyz")
    page.get_by_role("tab", name="caches").click()
    expect(panel).to_contain_text(none)
    expect(panel).not_to_contain_text("No caches")
    search.fill("c")
    expect(panel.locator(".itm-row")).to_have_count(1)


def test_where_nothing_is_live_the_search_and_the_box_are_told_apart(page):
    panel = draw_panel(page, [ended_run(1)])
    hint = "No run is live. A cell starts one: %%ignite_tf start CACHE \u00b7 1 has ended"
    expect(panel).to_contain_text(hint)
    page.get_by_role("searchbox").fill("e1")
    expect(panel).to_contain_text(hint)
    draw_panel(page, [])
    page.get_by_role("searchbox").fill("e1")
    expect(panel).to_contain_text("No run is live. A cell starts one: %%ignite_tf start CACHE")


def test_of_many_runs_that_ended_the_panel_says_where_all_are(page):
    words = "The newest 100 of 250 that have ended are here. All: %ignite_tf ps --all"
    runs = [ended_run(number) for number in range(100)]
    panel = draw_panel(page, runs)
    page.get_by_label("ended runs").check()
    expect(panel.locator(".itm-row")).to_have_count(100)
    expect(panel).not_to_contain_text("that have ended are here")
    panel = draw_panel(page, runs, num_ended=250)
    expect(panel).to_contain_text("250 have ended")
    expect(panel).not_to_contain_text(words)
    page.get_by_role("searchbox").fill("no such run")
    expect(panel).to_contain_text(words)
    page.get_by_role("searchbox").fill("")
    page.get_by_label("ended runs").check()
    expect(panel.locator(".itm-row")).to_have_count(100)
    expect(panel).to_contain_text(words)


def test_search_and_ended_runs_stand_where_they_do_something(page):
    draw_panel(page, [RUN])
    search, ended = page.get_by_role("searchbox"), page.get_by_label("ended runs")
    for tab, has_search, has_ended in (
        ("cluster", False, False),
        ("caches", True, False),
        ("runs", True, True),
    ):
        page.get_by_role("tab", name=tab).click()
        expect(search).to_be_visible(visible=has_search)
        expect(ended).to_be_visible(visible=has_ended)


@pytest.mark.parametrize("is_refused", [False, True])
def test_what_was_copied_is_said_until_something_else_is_done(page, is_refused):
    draw_panel(page, [RUN])
    page.evaluate(
        """isRefused => Object.defineProperty(navigator, "clipboard", {value: {
            writeText: async (text) => { if (isRefused) throw new Error("not allowed"); window.copied = text; }}})""",
        is_refused,
    )
    page.get_by_role("button", name="zd5-digits", exact=True).click()
    page.get_by_role("button", name="Attach").click()
    note, code = page.get_by_role("status"), "%ignite_tf attach zd5"
    expect(note).to_have_text(code if is_refused else f"copied: {code}")
    assert page.evaluate("window.copied") == (None if is_refused else code)
    see_anew(page, [RUN])
    expect(page.get_by_role("alert")).to_have_text("new")
    expect(note).to_contain_text(code)
    page.get_by_role("button", name="Logs").click()
    see_anew(page, [RUN])
    expect(note).to_have_text("")


def test_an_answer_stands_in_the_tab_that_asked_and_can_be_closed(page):
    draw_panel(page, [RUN])
    text, close = page.get_by_text("rows: 7"), page.get_by_role("button", name="close the answer")
    page.get_by_role("tab", name="caches").click()
    profile = page.get_by_role("button", name="profile of C")
    profile.click()
    told = {"detail": "rows: 7", "note": "of all rows"}
    page.evaluate("told => window.change('told', told)", told)
    expect(text).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("of all rows")
    page.get_by_role("tab", name="runs").click()
    expect(text).to_be_hidden()
    expect(page.get_by_role("status")).to_have_text("")
    page.get_by_role("tab", name="caches").click()
    expect(text).to_be_visible()
    close.focus()
    page.keyboard.press("Enter")
    expect(text).to_be_hidden()
    expect(close).to_be_hidden()
    expect(page.get_by_role("tab", name="caches")).to_be_focused()
    assert page.evaluate("window.sent.map(({action}) => action)") == ["profile", "close"]
    profile.click()
    page.evaluate("told => window.change('told', told)", told)
    expect(text).to_be_visible()
    close.click()
    expect(text).to_be_hidden()
    expect(profile).to_be_focused()


def test_a_cell_that_was_written_is_told_beside_its_cache_alone(page):
    page.evaluate(
        """async ([script, seen]) => {
            const {igniteTfPanel} = await import(URL.createObjectURL(new Blob([script], {type: "text/javascript"})));
            const root = document.createElement("div");
            document.body.replaceChildren(root);
            let told = {}, draw = () => {};
            window.cells = [];
            igniteTfPanel(root, {seen: () => seen, told: () => told, onChange: (call) => { draw = call; },
                act: (action) => { told = {cell: "print(1)", about: action}; draw(); },
                insert: (code) => Boolean(window.cells.push(code))});
        }""",
        [joined("panel.js") + "\nexport {igniteTfPanel};", SEEN],
    )
    page.get_by_role("tab", name="caches").click()
    page.get_by_role("button", name="train on C").click()
    expect(page.get_by_role("status")).to_have_text("written: a cell below the current one")
    page.get_by_role("tab", name="runs").click()
    expect(page.get_by_role("status")).to_have_text("")
    assert page.evaluate("window.cells") == ["print(1)"]


BLUE = (30, 136, 229)
# Returns positions from left to right, as fractions of the chart's width, where a line's colour appears below a
# given fraction of its height.
INKED = """([number, colour, below]) => {
    const canvas = document.querySelectorAll(".itm-panels canvas")[number];
    const {width, height} = canvas, {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
    const isInk = (x, y) => colour.every((part, i) => Math.abs(data[4 * (y * width + x) + i] - part) < 40)
        && data[4 * (y * width + x) + 3] > 100;
    const inked = [];
    for (let x = 0; x < width; x++) {
        for (let y = Math.round(below * height); y < height; y++) if (isInk(x, y)) { inked.push(x); break; }
    }
    const box = canvas.getBoundingClientRect();
    const over = canvas.closest(".u-wrap").querySelector(".u-over").getBoundingClientRect();
    return inked.map((x) => (box.left + x * box.width / width - over.left) / over.width);
}"""


def series(*runs: dict[str, list[Any]], epochs: int | None = None) -> dict[str, Any]:
    """Return chart data for the values of runs by metric, one value per step."""
    made = []
    for number, values in enumerate(runs):
        steps = list(range(epochs or max(map(len, values.values()))))
        bad = {name: sum(isinstance(each, str) for each in told) for name, told in values.items()}
        name = f"run{number}" if len(runs) > 1 else ""
        places = {"step": steps, "epoch": [step / 10 for step in steps], "time": steps}
        made.append({"name": name, **places, "values": values, "not_finite": bad})
    return {"runs": made, "metrics": list(dict.fromkeys(name for values in runs for name in values))}


def draw_chart(page: Page, given: dict[str, Any]) -> None:
    page.evaluate(
        DRAW, [joined(*RUN_VIEW), {"state": STATE, "series": given, "tail": {"all": lines(), "tasks": {}}}]
    )
    page.add_style_tag(content=joined("uPlot.min.css", "run_view.css"))


def inked(page: Page, number: int = 0, below: float = 0.0) -> list[float]:
    found: list[float] = page.evaluate(INKED, [number, BLUE, below])
    return found


def widest_gap(places: list[float]) -> float:
    return max((b - a for a, b in pairwise(places)), default=1.0)


def test_values_that_are_told_seldom_are_seen(page):
    once = [None] * 60
    once[30] = 0.5
    draw_chart(page, series({"acc": once, "loss": [1.0] * 60}))
    assert inked(page, 0)
    # An isolated point is drawn as a point in a chart whose lines have no points.
    many: list[Any] = [1.0] * 60
    many[40:50] = ["nan"] * 5 + [1.0] + ["nan"] * 4
    draw_chart(page, series({"loss": many}))
    assert any(abs(place - 45 / 59) < 0.02 for place in inked(page))


def test_a_line_breaks_where_a_value_is_not_finite_and_not_where_none_was_told(page):
    told: list[Any] = [1.0, 2.0] * 30
    draw_chart(page, series({"loss": [*told[:20], *[None] * 20, *told[40:]]}))
    assert widest_gap(inked(page)) < 0.05
    expect(page.locator(".itm-remark")).to_have_text("")
    broken = [*told[:20], *["nan"] * 20, *told[40:]]
    draw_chart(page, series({"loss": broken}))
    assert 0.3 < widest_gap(inked(page)) < 0.4
    expect(page.locator(".itm-remark")).to_have_text("20 values are not finite")
    # Also with smoothing, and everything after the gap is drawn.
    page.get_by_label("smooth").fill("0.5")
    assert 0.3 < widest_gap(inked(page)) < 0.4
    assert max(inked(page)) > 0.98


def test_a_break_reaches_past_the_places_of_other_lines(page):
    # The loss exists before step 20, at 30 and from 41 on; the validation loss in between.
    loss = [*[1.0] * 20, *[None] * 10, "inf", *[None] * 10, *[1.0] * 19]
    validation = [*[None] * 20, *[3.0] * 21, *[None] * 19]
    given = series({"loss": loss, "val_loss": validation})
    draw_chart(page, given)
    expect(page.locator(".itm-remark")).to_have_text("loss: 1 value is not finite")
    assert 0.3 < widest_gap(inked(page, below=0.5)) < 0.45


def test_a_chart_without_a_line_says_why(page):
    draw_chart(page, series({"loss": ["nan", "inf"], "r2": [-1.0, -2.0], "acc": [0.0, 0.5, 0.75]}))
    empty, remarks = page.locator(".itm-empty"), page.locator(".itm-remark")
    expect(empty).to_have_text(["no finite values", "", ""])
    expect(empty.first).to_be_visible()
    expect(remarks).to_have_text(["2 values are not finite", "", ""])
    page.get_by_label("log").check()
    expect(empty).to_have_text(["no finite values", "no values above 0", ""])
    expect(remarks).to_have_text(
        ["2 values are not finite", "2 values are not above 0", "1 value is not above 0"]
    )
    page.get_by_label("log").uncheck()
    page.evaluate(
        "series => window.change('series', series)",
        series({"loss": ["nan", "inf", 1.0], "r2": [-1.0], "acc": [0.0]}),
    )
    expect(empty).to_have_text(["", "", ""])


def zoom_in(page: Page, number: int) -> None:
    box = page.locator(".u-over").nth(number).bounding_box()
    assert box
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 62, steps=3)
    page.mouse.up()


def test_a_zoom_stays_when_other_metrics_go_and_come(page):
    told = {"loss": [5.0] * 40 + [1.0] * 20, "acc": [1.0, 2.0] * 30}
    draw_chart(page, series(told))
    zoom_in(page, 1)
    drawn = "() => document.querySelectorAll('.itm-panels canvas')[{}].toDataURL()"
    whole = page.evaluate(drawn.format(0))
    zoomed = page.evaluate(drawn.format(1))
    page.get_by_label("loss", exact=True).uncheck()
    page.get_by_label("loss", exact=True).check()
    assert page.evaluate(drawn.format(1)) == zoomed
    assert page.evaluate(drawn.format(0)) == whole
    late = series(told | {"val_acc": [None] * 60})
    page.evaluate("series => window.change('series', series)", late)
    assert page.evaluate(drawn.format(1)) == zoomed
    page.locator(".u-over").nth(1).dblclick()
    assert page.evaluate(drawn.format(1)) != zoomed


def test_what_was_chosen_holds_for_the_chart_that_is_kept_of_the_same_training(page):
    given = series({"loss": [3.0, 2.0, 1.0], "acc": [0.1, 0.2, 0.3]})
    draw_chart(page, given)
    page.get_by_label("log").check()
    page.get_by_label("acc", exact=True).uncheck()
    page.get_by_title("what the metrics are drawn over").select_option("epoch")
    page.get_by_label("smooth").fill("0.5")
    draw_chart(page, given)
    expect(page.get_by_label("log")).to_be_checked()
    expect(page.get_by_label("smooth")).to_have_value("0.5")
    expect(page.get_by_title("what the metrics are drawn over")).to_have_value("epoch")
    expect(page.get_by_label("acc", exact=True)).not_to_be_checked()
    expect(page.locator(".u-title")).to_have_text(["loss"])
    # The setting does not apply to another chart.
    draw_chart(page, series({"loss": [4.0, 2.0, 1.0], "acc": [0.1, 0.2, 0.3]}))
    expect(page.get_by_label("log")).not_to_be_checked()
    expect(page.locator(".u-title")).to_have_text(["loss", "acc"])


def test_of_many_metrics_the_first_are_drawn_and_all_or_none_at_a_click(page):
    names = [f"m{number}" for number in range(7)]
    draw_chart(page, series({name: [1.0, 2.0] for name in [*names, "loss"]}))
    titles = page.locator(".u-title")
    expect(titles).to_have_text([*names, "loss"])
    choices = page.get_by_role("group", name="metrics")
    expect(choices.get_by_role("button")).to_have_count(0)
    names += [f"m{number}" for number in range(7, 10)]
    draw_chart(page, series({name: [1.0, 2.0] for name in [*names, "loss"]}))
    expect(titles).to_have_text(["loss", *names[:7]])
    expect(choices.get_by_role("checkbox", checked=True)).to_have_count(8)
    choices.get_by_role("button", name="draw none of the metrics").click()
    expect(titles).to_have_count(0)
    expect(choices.get_by_role("checkbox", checked=True)).to_have_count(0)
    choices.get_by_role("button", name="draw all of the metrics").click()
    expect(titles).to_have_text(["loss", *names])
    expect(choices.get_by_role("checkbox", checked=True)).to_have_count(11)
