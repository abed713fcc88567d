"""Make the pictures of README.md: the quick start and the panel as JupyterLab shows them. See `make pictures`."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from PIL import Image
from playwright.sync_api import BrowserContext, Locator, expect

from ignite_tf_magic.session import (
    EmbeddedOptions,
    RunRequest,
    Session,
    local_down,
    local_up,
    open_session,
)
from tests.browser.lab import Lab, Notebook, browser, jupyter_lab, write_notebook

DOCS = Path(__file__).parent
QUICKSTART = DOCS.parent / "notebooks" / "quickstart.ipynb"
# A tall window: all cells are on the page. Left of them are JupyterLab's side bars.
WINDOW = {"width": 1290, "height": 4000}
SCALE = 1.5
MAX_BYTES = 300_000


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ignite-tf-") as name:
        directory = Path(name)
        os.environ["IGNITE_TF_HOME"] = str(directory)
        local_up(EmbeddedOptions(heap="256m"), report=print)
        try:
            take_pictures(directory)
        finally:
            local_down(delete_data=True, report=print)


def take_pictures(directory: Path) -> None:
    (directory / "notebooks").mkdir()
    options = {"viewport": WINDOW, "device_scale_factor": SCALE}
    with browser(directory, **options) as context, jupyter_lab(directory, {}) as lab:
        quickstart(lab, context, directory)
        with open_session(report=print) as session:
            panel(lab, context, directory, session)


def quickstart(lab: Lab, context: BrowserContext, directory: Path) -> None:
    shutil.copy(QUICKSTART, directory / "notebooks")
    notebook = lab.open(context, QUICKSTART.name)
    sources = {
        index: cell.source
        for index, cell in enumerate(nbformat.read(QUICKSTART, as_version=4).cells)
        if cell.cell_type == "code"
    }
    for index in sources:
        notebook.run(index)
        expect(notebook.prompt(index)).not_to_have_text("[*]:")
    shown = [
        next(index for index, source in sources.items() if words in source)
        for words in ("%ignite_tf caches", "imshow", "%%ignite_tf start")
    ]
    training = notebook.cell(shown[-1])
    expect(training).to_contain_text("succeeded after")
    for function in ("def digits",):
        fold(training, function)
    notebook.cell(0).click()
    save(picture(notebook, shown), DOCS / "quickstart.png")


def fold(cell: Locator, words: str) -> None:
    """Fold the block that begins in the line with these words, with the mark beside it."""
    line = cell.locator(".cm-line", has_text=words).bounding_box()
    assert line is not None
    marks = cell.locator(".cm-foldGutter .cm-gutterElement", has_text="\u2304").all()
    for mark in marks:
        box = mark.bounding_box()
        if box is not None and abs(box["y"] - line["y"]) < line["height"] / 2:
            mark.click()
            return
    raise AssertionError(f"nothing to fold beside {words!r}")


def panel(lab: Lab, context: BrowserContext, directory: Path, session: Session) -> None:
    session.start_run(RunRequest("DIGITS", "import MNIST", name="first-try")).wait()
    live = session.start_run(RunRequest("DIGITS", "import time; time.sleep(600)", name="long"))
    write_notebook(
        directory / "notebooks" / "panel.ipynb", ["%load_ext ignite_tf_magic", "%ignite_tf panel", ""]
    )
    notebook = lab.open(context, "panel.ipynb")
    notebook.run(0)
    notebook.run(1)
    notebook.output(1).get_by_label("ended runs").check()
    expect(notebook.output(1)).to_contain_text("first-try")
    notebook.cell(2).click()
    save(picture(notebook, [1]), DOCS / "panel.png")
    live.stop()


def picture(notebook: Notebook, cells: Sequence[int]) -> Image.Image:
    """Cells below each other, as they are in the notebook when those between them are left out."""
    parts = [Image.open(io.BytesIO(notebook.cell(index).screenshot())) for index in cells]
    whole = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), "white")
    top = 0
    for part in parts:
        whole.paste(part, (0, top))
        top += part.height
    return whole


def save(image: Image.Image, path: Path) -> None:
    image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    num_bytes = path.stat().st_size
    print(f"{path}: {image.width} x {image.height}, {num_bytes:,} bytes")
    assert num_bytes < MAX_BYTES, f"{path} is too large for a README"


if __name__ == "__main__":
    main()
