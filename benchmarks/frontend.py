"""`python -m benchmarks.frontend`: waiting times of a JupyterLab user, into `results/frontend.json`.

One node, JupyterLab, Chromium. `first word` and `longest silence`: a cell starts a run whose worker reads its rows; the
time until the cell first shows something, and the longest time without a change until the script prints. `typing` and
`scrolling`: while a run prints 10,000 lines a second, the time from a key to the frame with its letter, and from one
frame to the next while the wheel turns. `notebook` is the size of the saved file after that. `new user`: the committed
files are cloned into an empty folder; the time of the README's first command, with a new HOME, until its training has
succeeded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import expect

from benchmarks import tables
from benchmarks.nodes import node_of_its_own
from ignite_tf_magic.embedded import EmbeddedOptions
from ignite_tf_magic.session import load
from tests.browser.lab import Lab, Notebook, browser, jupyter_lab, write_notebook

NAME = "frontend"
_CACHE = "SEEN"
_START = f"""%%ignite_tf start {_CACHE} --workers 1
from ignite_tf_magic import IgniteDataset
print("read", sum(1 for _ in IgniteDataset("{_CACHE}")))"""
_FLOOD = f"""%%ignite_tf start {_CACHE} --workers 1
import time
began = time.monotonic()
for second in range(SECONDS):
    for number in range(10_000):
        print("line", second, number, "of a flood that nobody can read")
    time.sleep(max(0, began + second + 1 - time.monotonic()))
print("the end of it")"""
# Records a cell's output at each change, with the page's clock.
_WATCH = """output => {
    window.itmSaid = [];
    let last = "";
    const look = () => {
        const said = output.innerText;
        if (said !== last) { last = said; window.itmSaid.push([performance.now(), said]); }
        window.itmWatching = requestAnimationFrame(look);
    };
    const begin = event => { if (event.key === "Enter" && event.ctrlKey) window.itmBegan = event.timeStamp; };
    document.addEventListener("keydown", begin, true);
    look();
}"""
# Measures the time from an event, by the browser's time stamp, to the frame after it.
_TIME_KEYS = """() => {
    window.itmKeys = [];
    document.addEventListener("keydown", event => requestAnimationFrame(() => setTimeout(
        () => window.itmKeys.push(performance.now() - event.timeStamp))), true);
}"""
_TIME_FRAMES = """() => {
    window.itmFrames = [];
    let last = performance.now();
    const frame = now => {
        window.itmFrames.push(now - last);
        last = now;
        window.itmFraming = requestAnimationFrame(frame);
    };
    window.itmFraming = requestAnimationFrame(frame);
}"""


def new_user() -> float:
    """Follow the README as a new user. Returns seconds."""
    with tempfile.TemporaryDirectory(prefix="bench-user-") as name:
        checkout, home = Path(name) / "checkout", Path(name) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", Path(__file__).parents[1], checkout], check=True)
        ours = ("PYTHON", "IGNITE_TF_", "VIRTUAL_ENV", "XDG_")
        others = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env = {**others, "HOME": str(home)}
        began = time.monotonic()
        try:
            subprocess.run(["make", "demo"], cwd=checkout, env=env, check=True)
            return time.monotonic() - began
        finally:
            subprocess.run([".venv/bin/ignite-tf", "local", "down"], cwd=checkout, env=env, check=True)


def open_notebook(lab: Lab, context: Any, directory: Path, name: str, cells: list[str]) -> Notebook:
    """Open a notebook, and run its first cell, which loads the magics."""
    write_notebook(directory / "notebooks" / f"{name}.ipynb", ["%load_ext ignite_tf_magic", *cells])
    notebook = lab.open(context, f"{name}.ipynb")
    notebook.run(0)
    expect(notebook.prompt(0)).to_have_text("[1]:")
    return notebook


def waits(notebook: Notebook) -> tuple[float, float]:
    """Start a run. Returns the seconds to the first output, and of the longest silence before the script's output."""
    page = notebook.page
    notebook.output(1).evaluate(_WATCH)
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("succeeded after")
    page.evaluate("() => cancelAnimationFrame(window.itmWatching)")
    said = [(moment, text) for moment, text in page.evaluate("() => window.itmSaid") if text.strip()]
    began = page.evaluate("() => window.itmBegan")
    first_ms = said[0][0] - began
    before = [moment for moment, text in said if "read 1000" not in text]
    moments = [*before, next(moment for moment, text in said if "read 1000" in text)]
    return first_ms / 1000, max(b - a for a, b in pairwise(moments)) / 1000


def flood(notebook: Notebook, seconds: int) -> dict[str, list[float]]:
    """Type and scroll while a run floods the cell. Returns milliseconds."""
    page = notebook.page
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("line 1 ")
    notebook.cell(2).locator(".cm-content").click()
    page.evaluate(_TIME_KEYS)
    for letter in "typed while ten thousand lines a second come in":
        page.keyboard.type(letter)
        time.sleep(0.05)
    keys = page.evaluate("() => window.itmKeys")
    notebook.output(1).hover()
    page.evaluate(_TIME_FRAMES)
    until = time.monotonic() + seconds / 3
    while time.monotonic() < until:
        page.mouse.wheel(0, 120)
        time.sleep(0.05)
    frames = page.evaluate("() => { cancelAnimationFrame(window.itmFraming); return window.itmFrames; }")
    assert "the end of it" not in notebook.output(1).inner_text(), (
        "the flood was over before all was measured"
    )
    expect(notebook.output(1)).to_contain_text("succeeded after")
    expect(notebook.output(1)).to_contain_text("the end of it")
    return {"typing": keys, "scrolling": frames}


@contextmanager
def desk() -> Iterator[tuple[Path, Lab, Any]]:
    """Start a node with a cache, JupyterLab, and a browser."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-frontend-") as name,
        node_of_its_own(NAME, EmbeddedOptions(num_nodes=1)) as options,
    ):
        directory = Path(name)
        (directory / "notebooks").mkdir()
        env = {
            "IGNITE_TF_CLUSTER": ",".join(map(str, options.endpoints)),
            "IGNITE_TF_HOME": str(directory / "home"),
        }
        os.environ.update(env)
        load(_CACHE, {"x": np.arange(1000)}, options=options, report=str)
        with browser(directory) as context, jupyter_lab(directory, env) as lab:
            yield directory, lab, context


def main(argv: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--flood-seconds", type=int, default=20)
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    arguments = parser.parse_args(argv)
    new_user_s = new_user()
    with desk() as (directory, lab, context):
        found = [
            waits(open_notebook(lab, context, directory, f"start-{number}", [_START]))
            for number in range(arguments.starts)
        ]
        cells = [_FLOOD.replace("SECONDS", str(arguments.flood_seconds)), ""]
        notebook = open_notebook(lab, context, directory, "flood", cells)
        times = flood(notebook, arguments.flood_seconds)
        notebook.page.keyboard.press("Control+s")
        path = directory / "notebooks" / "flood.ipynb"
        while "the end of it" not in str(json.loads(path.read_text(encoding="utf-8"))["cells"][1]["outputs"]):
            time.sleep(0.1)
        size = path.stat().st_size
    rows: list[dict[str, Any]] = [
        *(
            {"case": case, "median_s": round(statistics.median(each), 2), "most_s": round(max(each), 2)}
            for case, each in zip(("first word", "longest silence"), zip(*found, strict=True), strict=True)
        ),
        *(
            {"case": case, "median_ms": round(statistics.median(each), 1), "most_ms": round(max(each), 1)}
            for case, each in times.items()
        ),
        {"case": "notebook", "kb": round(size / 1000)},
        {"case": "new user", "s": round(new_user_s)},
    ]
    tables.write(arguments.results, NAME, rows)
    tables.show(tables.console(), arguments.results, (NAME,))


if __name__ == "__main__":
    main()
