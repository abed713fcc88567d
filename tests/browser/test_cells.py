"""Tests of user actions in cells: attach, interrupt, kernel restart, completion, floods of output, dark mode."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.session import RunRequest, load, open_session
from tests.browser.lab import id_in, stop_in
from tests.waiting import until

CACHE = "CELLS"
COUNT = (
    "import itertools, time\nfor step in itertools.count(): print('step', step, flush=True); time.sleep(0.2)"
)
FIT = """
import keras, numpy as np
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
model.fit(np.arange(64.0), 1e6 * np.arange(64.0), epochs=3, verbose=2)
"""
# A loss that falls by decades on each worker, and then a pause to look at it.
TRAIN_AND_WAIT = """
import json, os, time, keras, numpy as np
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.3), "mse", metrics=["mae"])
x = np.linspace(-1, 1, 64)
model.fit(x, 100 * x + 5, epochs=40, batch_size=64, verbose=0)
print("worker", json.loads(os.environ["TF_CONFIG"])["task"]["index"], "has trained", flush=True)
time.sleep(3600)
"""
KERNEL_IS_KNOWN = "() => window.jupyterapp?.shell.currentWidget?.context?.sessionContext?.session?.kernel"
NOTE_DRAWN_TEXTS = """() => {
    window.drawn = [];
    const write = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
        window.drawn.push(text);
        return write.call(this, text, ...where);
    };
}"""
# Text colour as seen: with all opacities, blended with the layers below.
DIM = """(output, least) => {
    const parse = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return {rgb: [r, g, b], a}; };
    const over = (top, a, below) => top.map((value, i) => a * value + (1 - a) * below[i]);
    const contrast = (element) => {
        const layers = [];
        let opacity = 1;
        for (let each = element; each; each = each.parentElement) {
            const style = getComputedStyle(each), ground = parse(style.backgroundColor);
            opacity *= Number(style.opacity);
            layers.push(ground);
            if (ground.a === 1) break;
        }
        const ground = layers.reverse().reduce((below, {rgb, a}) => over(rgb, a, below), [255, 255, 255]);
        const ink = parse(getComputedStyle(element).color);
        const light = rgb => rgb.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const [a, b] = [light(over(ink.rgb, ink.a * opacity, ground)), light(ground)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    // What cannot be used may be faint; prompts, and the colours of IPython's errors, are JupyterLab's own.
    const dim = [];
    for (const each of output.querySelectorAll("*:not(option, .jp-OutputPrompt, [class^=ansi-])")) {
        const said = [...each.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join("").trim();
        if (!said || said === "\u25cf" || each.disabled || !each.checkVisibility()) continue;
        if (contrast(each) < least) dim.push([said.slice(0, 60), each.className, contrast(each)]);
    }
    return dim;
}"""
LEGIBLE = 4.5  # contrast of WCAG 2.2, 1.4.3


@pytest.fixture(scope="module", autouse=True)
def cache(ignite) -> Iterator[None]:
    load(CACHE, {"x": np.arange(100)}, options=ignite.connect_options, replace=True, report=str)
    yield
    with connect(ignite.connect_options) as client:
        client.destroy_cache(CACHE)


def test_a_run_from_elsewhere_is_attached_by_the_sidebar_interrupted_and_stopped(desk):
    notebook = desk.open("attach", "")
    page = notebook.page
    with open_session(report=str) as session:
        run = session.start_run(RunRequest(CACHE, COUNT, detach=True))
        page.get_by_role("tab", name="Ignite").click()
        sidebar = page.locator("#ignite-tf-magic")
        row = sidebar.locator(".itm-row", has_text=run.id)
        row.get_by_role("button", name=run.id, exact=True).click()
        notebook.cell(1).locator(".cm-content").click()
        row.get_by_role("button", name="Attach").click()
        attach = page.locator(".jp-Notebook .jp-Cell", has_text="%ignite_tf attach")
        expect(attach).to_be_visible()
        number = int(attach.get_attribute("data-windowed-list-index"))
        notebook.run(number)
        expect(notebook.output(number)).to_contain_text("step 9")

        # An interrupt by the user ends the watching, not the run.
        page.get_by_role("button", name="Interrupt the kernel").click()
        expect(notebook.prompt(number)).not_to_have_text("[*]:")
        expect(notebook.output(number)).to_contain_text("goes on")
        assert not run.info().state.has_ended
        run.stop()
        expect(row).to_contain_text("stopped")


def test_a_kernel_that_is_restarted_takes_its_run_over(desk):
    cells = [f"%%ignite_tf start {CACHE} --workers 1\n{COUNT}", "%ignite_tf attach", "%ignite_tf panel"]
    notebook = desk.open("restart", *cells)
    page = notebook.page
    notebook.run(3)
    panel = notebook.output(3)
    panel.get_by_role("tab", name="caches").click()
    expect(panel.get_by_role("button", name=f"profile of {CACHE}")).to_be_enabled()
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("step 3")
    run_id = id_in(notebook.output(1))
    page.get_by_role("button", name="Restart the kernel", exact=True).click()
    page.locator(".jp-Dialog .jp-mod-accept").click()
    expect(notebook.prompt(1)).not_to_have_text("[*]:")
    gone = "no longer connected to a kernel: "
    expect(notebook.output(1)).to_contain_text(f"{gone}%ignite_tf attach {run_id} shows the run again")
    for name in ("Stop", "Detach", "TensorBoard"):
        expect(notebook.output(1).get_by_role("button", name=name)).to_be_disabled()
    expect(panel).to_contain_text(f"{gone}run the cell again")
    expect(panel.get_by_role("button", name=f"profile of {CACHE}")).to_be_disabled()
    notebook.wait_until_idle()
    notebook.cell(0).locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    notebook.wait_until_idle()
    notebook.run(2)
    attached = notebook.output(2)
    expect(attached.locator(".itm-id")).to_have_text(f"run {run_id}")
    attached.get_by_role("button", name="Stop").click()
    attached.get_by_role("button", name="Confirm").click()
    expect(attached).to_contain_text(f"run {run_id}: stopped")


def test_who_detaches_has_the_cell_back_and_attaches_again(desk):
    cells = [f"%%ignite_tf start {CACHE} --workers 1\n{COUNT}", "%ignite_tf attach"]
    notebook = desk.open("detach", *cells)
    notebook.run(1)
    cell = notebook.output(1)
    expect(cell).to_contain_text("step 3")
    run_id = id_in(cell)
    cell.get_by_role("button", name="Detach").click()
    expect(notebook.prompt(1)).not_to_have_text("[*]:")
    expect(cell).to_contain_text(f"no longer watching; run {run_id} goes on")
    expect(cell).not_to_contain_text("stopped")
    notebook.run(2)
    attached = notebook.output(2)
    expect(attached.locator(".itm-id")).to_have_text(f"run {run_id}")
    expect(attached).to_contain_text("step 30")
    stop_in(attached)
    expect(attached).to_contain_text(f"run {run_id}: stopped")


def test_a_page_that_is_loaded_anew_knows_its_panel_and_how_to_see_its_run(desk):
    """JupyterLab requests widgets when the kernel has time. It forgets the other outputs of a cell that was busy."""
    cells = ["%ignite_tf panel", f"%%ignite_tf start {CACHE} --workers 2\n{COUNT}", "%ignite_tf attach"]
    notebook = desk.open("reload", *cells)
    page = notebook.page
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("ended runs")
    notebook.run(2)
    expect(notebook.output(2)).to_contain_text("worker 1 | step 3")
    run_id = id_in(notebook.output(2))
    page.keyboard.press("Control+s")
    path = desk.directory / "notebooks" / "reload.ipynb"
    until(lambda: path.read_text().count("widget-view") == 2, 300)
    page.reload()
    page.wait_for_function(KERNEL_IS_KNOWN)
    page.get_by_role("button", name="Interrupt the kernel").click()

    cell = notebook.output(2)
    expect(cell.locator(".itm-id")).to_have_text(f"run {run_id}")
    expect(cell).to_contain_text(f"no longer watching: %ignite_tf attach {run_id} shows the run again")
    expect(cell.get_by_role("button", name="Stop")).to_have_count(0)
    cell.get_by_role("tab", name="worker 1").click()
    expect(cell.get_by_role("log", name="output of worker 1")).to_contain_text("step 3")
    notebook.wait_until_idle()
    notebook.run(3)
    attached = notebook.output(3)
    expect(attached).to_contain_text("worker 1 | step 30")
    row = notebook.output(1).locator(".itm-row", has_text=run_id)
    row.get_by_role("button", name=run_id, exact=True).click()
    expect(notebook.output(1).locator(".itm-detail")).to_contain_text(run_id)
    stop_in(attached)
    expect(attached).to_contain_text(f"run {run_id}: stopped")
    expect(row).to_contain_text("stopped")


def test_the_chart_the_tabs_and_the_tensorboard_of_a_training(desk):
    start = f"%%ignite_tf start {CACHE} --workers 2{TRAIN_AND_WAIT}"
    notebook = desk.open("chart", start, "%ignite_tf tensorboard --stop")
    page = notebook.page
    page.evaluate(NOTE_DRAWN_TEXTS)
    notebook.run(1)
    cell = notebook.output(1)
    cell.get_by_role("tab", name="worker 1").click()
    own = cell.get_by_role("log", name="output of worker 1")
    expect(own).to_contain_text("worker 1 has trained")
    expect(own).not_to_contain_text("worker 0 has trained")
    cell.get_by_role("tab", name="all").click()
    expect(cell.get_by_role("log", name="output of all workers")).to_contain_text("worker 0 has trained")
    expect(cell.get_by_role("log", name="output of worker 1")).to_be_hidden()

    titles = cell.locator(".u-title")
    expect(titles).to_have_text(["loss", "mae"])
    axis = cell.get_by_title("what the metrics are drawn over")
    for name, label in (("epoch", "epoch"), ("time", "seconds"), ("step", "step")):
        axis.select_option(name)
        expect(cell.locator(".u-legend tr:first-child .u-label").first).to_have_text(label)
    cell.get_by_label("mae", exact=True).uncheck()
    expect(titles).to_have_text(["loss"])
    cell.get_by_label("mae", exact=True).check()
    expect(titles).to_have_text(["loss", "mae"])

    # Only a logarithmic axis shows powers of ten.
    assert spread(page, cell.get_by_label("log", exact=True).check) > 100_000
    assert spread(page, cell.get_by_label("log", exact=True).uncheck) < 10_000

    # Metrics may arrive after the line that a worker prints.
    until(lambda: at_right_end(cell, 1) == "40")
    at_the_end = last_loss(cell)
    cell.get_by_label("smooth", exact=True).fill("0.95")
    assert last_loss(cell) > 2 * at_the_end
    cell.get_by_label("smooth", exact=True).fill("0")
    assert last_loss(cell) == at_the_end
    desk.shot(notebook.cell(1), "chart")

    cell.get_by_role("button", name="TensorBoard").click()
    link = cell.locator(".itm-note a")
    expect(link).to_be_visible()
    with desk.context.expect_page() as opened:
        link.click()
    expect(opened.value).to_have_title("TensorBoard")
    opened.value.close()
    stop_in(cell)
    expect(cell).to_contain_text("stopped after")
    notebook.run(2)
    expect(notebook.output(2)).to_contain_text("stopped")


def spread(page: Page, change: Callable[[], None]) -> float:
    """Make a change; return the ratio of the largest to the smallest number that the chart then draws on its axis."""
    page.evaluate("window.drawn.length = 0")
    change()
    numbers = page.evaluate("window.drawn.map(text => Number(text.replaceAll(',', ''))).filter(n => n > 0)")
    return float(max(numbers) / min(numbers))


def last_loss(cell: Locator) -> float:
    """Return the loss in the legend at the right end of the chart."""
    return float(at_right_end(cell, 2))


def at_right_end(cell: Locator, row: int) -> str:
    """Hover over the right end of the first chart; return the value in a row of its legend, counted from 1."""
    over = cell.locator(".u-over").first
    box = over.bounding_box()
    assert box
    for inset in (12, 2):
        over.hover(position={"x": box["width"] - inset, "y": box["height"] / 2})
    return cell.locator(".u-legend").first.locator(f"tr:nth-child({row}) .u-value").inner_text()


def saved_outputs(path: Path, cell: int) -> str:
    """Return a cell's outputs in a notebook file, or "" while the file is being written."""
    with contextlib.suppress(ValueError):
        return json.dumps(json.loads(path.read_text())["cells"][cell]["outputs"])
    return ""


def test_tab_completes_commands_options_and_caches(desk):
    notebook = desk.open("complete", "")
    for typed, chosen in (
        ("%ignite_tf res", "resume"),
        ("%%ignite_tf start CEL", CACHE),
        ("%%ignite_tf start CELLS --wor", "--workers"),
    ):
        editor = notebook.cell(1).locator(".cm-content")
        editor.click()
        notebook.page.keyboard.press("Control+a")
        notebook.page.keyboard.type(typed)
        # A single completion is inserted at once; otherwise one is chosen. JupyterLab waits a second for the kernel.
        proposed = notebook.page.locator(".jp-Completer-item", has_text=chosen)
        for _ in range(60):
            notebook.page.keyboard.press("Tab")
            with contextlib.suppress(PlaywrightTimeoutError):
                proposed.or_(editor.filter(has_text=chosen)).first.wait_for(timeout=4_000)
                break
        if proposed.count():
            proposed.first.click()
        expect(editor).to_contain_text(chosen)


def test_a_flood_of_lines_leaves_the_page_usable_and_the_notebook_small(desk):
    flood = "for n in range(200_000): print('line', n)\nprint('the end of it')"
    notebook = desk.open("flood", f"%%ignite_tf start {CACHE} --workers 1\n{flood}", "")
    notebook.run(1)
    cell = notebook.output(1)
    expect(cell).to_contain_text("line ")
    notebook.cell(2).locator(".cm-content").click()
    notebook.page.keyboard.type("typed meanwhile")
    expect(notebook.cell(2)).to_contain_text("typed meanwhile")
    expect(cell).to_contain_text("succeeded after")
    expect(cell).to_contain_text("the end of it")
    assert len(cell.inner_text().splitlines()) < 2_500
    notebook.page.keyboard.press("Control+s")
    path = desk.directory / "notebooks" / "flood.ipynb"
    until(lambda: "the end of it" in saved_outputs(path, 1))
    assert path.stat().st_size < 200_000
    assert notebook.output(1).evaluate("element => element.scrollHeight") < 3_000


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_all_that_we_write_is_legible(desk, theme):
    cells = [
        f"%%ignite_tf start {CACHE} --workers 1{FIT}",
        "%ignite_tf panel",
        "%ignite_tf history",
        "%ignite_tf describe no-such-run",
    ]
    notebook = desk.open(f"theme-{theme.lower()}", *cells)
    page = notebook.page
    page.evaluate(
        f"() => window.jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {theme}'}})"
    )
    expect(page.locator(f"body[data-jp-theme-name='JupyterLab {theme}']")).to_have_count(1)
    notebook.run(1)
    run_id = id_in(notebook.output(1))
    expect(notebook.output(1)).to_contain_text("succeeded after")
    notebook.run(2)
    panel = notebook.output(2)
    panel.get_by_label("ended runs").check()
    expect(panel.locator(".itm-row", has_text=run_id)).to_contain_text("succeeded")
    notebook.run(3)
    notebook.run(4)
    expect(notebook.output(3).locator("canvas").first).to_be_visible()
    expect(notebook.output(4)).to_contain_text("no-such-run")
    for number in range(1, 5):
        desk.shot(notebook.cell(number), f"{theme.lower()}-{number}")
    dim = [each for number in range(1, 5) for each in notebook.output(number).evaluate(DIM, LEGIBLE)]
    assert not dim
