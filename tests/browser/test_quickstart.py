"""Tests the quick start as a new user meets it: its notebook in JupyterLab, then a cell that the sidebar writes."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from ignite_tf_magic.errors import CacheNotFound

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
# Tall enough for all cells, because JupyterLab draws only visible ones.
WINDOW = {"width": 1400, "height": 5000}


@pytest.fixture
def digits_are_gone(client):
    """Remove the notebook's caches before and after the test."""

    def remove():
        for name in ("DIGITS", "DIGITS_TEST"):
            with suppress(CacheNotFound):
                client.destroy_cache(name)

    remove()
    yield
    remove()


@pytest.mark.nightly
@pytest.mark.usefixtures("digits_are_gone", "no_runs_left")
def test_the_quick_start_trains_and_so_does_the_cell_that_the_sidebar_writes(desk):
    """Nightly. Shorter: tests/ui/shell/test_cli.py::test_demo_trains_to_an_accuracy_above_nine_tenths"""
    shutil.copy(QUICKSTART, desk.directory / "notebooks")
    cells = nbformat.read(QUICKSTART, as_version=4).cells
    notebook = desk.lab.open(desk.context, QUICKSTART.name)
    page = notebook.page
    page.set_viewport_size(WINDOW)
    for index, cell in enumerate(cells):
        if cell.cell_type == "code":
            notebook.run(index)
            expect(notebook.prompt(index)).not_to_have_text("[*]:")
    (training,) = (index for index, cell in enumerate(cells) if "%%ignite_tf start" in cell.source)
    expect(notebook.output(training)).to_contain_text("succeeded after")
    expect(notebook.output(training)).to_contain_text("epoch 8/8")
    expect(notebook.output(len(cells) - 1)).to_contain_text("succeeded")

    page.get_by_role("tab", name="Ignite").click()
    sidebar = page.locator("#ignite-tf-magic")
    sidebar.get_by_role("tab", name="caches").click()
    sidebar.get_by_role("button", name="train on DIGITS", exact=True).click()
    form = sidebar.get_by_role("group", name="train on DIGITS", exact=True)
    form.get_by_label("predict").select_option("label")
    form.get_by_role("button", name="write the cell").click()
    written = page.locator(".jp-Notebook .jp-Cell", has_text='tf.cast(row["val"]["label"], tf.int32)')
    expect(written).to_be_visible()
    number = int(written.get_attribute("data-windowed-list-index") or "")
    notebook.run(number)
    expect(notebook.output(number)).to_contain_text("succeeded after")
