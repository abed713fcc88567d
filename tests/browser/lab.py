"""Starts JupyterLab on loopback and opens it in Debian's Chromium, for browser tests and screenshots."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import nbformat
import psutil
from playwright.sync_api import BrowserContext, Locator, Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tests.waiting import until

# Generous for busy machines; waits end as soon as their condition is true.
PATIENCE_S = 300
_END_S = 120
_LABEXTENSIONS = Path(__file__).parents[2] / "ignite_tf_magic" / "ui" / "labextension"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Disables dialogs and the check for news and updates. Enables code folding, for screenshots.
_SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/codemirror-extension/plugin": {"defaultConfig": {"codeFolding": True}},
}


def find_browser() -> str:
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        raise AssertionError(f"none of {', '.join(_BROWSERS)} is installed; install it with: make browser")
    return found


_KERNEL_IS_IDLE = """() => {
    const session = window.jupyterapp?.shell.currentWidget?.context?.sessionContext;
    const kernel = session?.isReady && session.session?.kernel;
    return kernel && kernel.connectionStatus === "connected" && kernel.status === "idle";
}"""


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab."""

    url: str
    token: str
    server: psutil.Process

    def open(self, context: BrowserContext, name: str) -> Notebook:
        """Open a notebook in its own tab and workspace; return when its kernel is ready."""
        page = context.new_page()
        page.goto(f"{self.url}lab/workspaces/{Path(name).stem}/tree/{name}?token={self.token}")
        notebook = Notebook(page)
        notebook.wait_until_idle()
        return notebook

    def call(self, method: str, address: str) -> Any:
        """Call Jupyter's REST API; return the parsed JSON reply, or None if it is empty."""
        request = Request(f"{self.url}{address}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urlopen(request, timeout=PATIENCE_S) as response:
            return json.loads(response.read() or b"null")


@dataclass(frozen=True)
class Notebook:
    """A notebook as a user sees it."""

    page: Page

    def wait_until_idle(self) -> None:
        self.page.wait_for_function(_KERNEL_IS_IDLE)

    def cell(self, index: int) -> Locator:
        return self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']")

    def output(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-OutputArea")

    def prompt(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-InputPrompt")

    def run(self, index: int) -> None:
        """Run a cell that has not run yet; return when the request has been sent to the kernel."""
        cell = self.cell(index)
        cell.locator(".cm-content").click()
        expect(cell.locator(".cm-editor.cm-focused")).to_be_visible()
        self.page.keyboard.press("Control+Enter")
        # JupyterLab moves the focus only then. Without this wait it would take the focus from the next cell.
        expect(self.prompt(index)).not_to_have_text("[ ]:")


@dataclass(frozen=True)
class Desk:
    """A JupyterLab and a browser that shows it.

    Attributes:
        directory: Directory whose subdirectory `notebooks` holds the notebooks.
        env: Environment of the kernels: their cluster, and the location of their runs.
    """

    lab: Lab
    context: BrowserContext
    directory: Path
    env: Mapping[str, str]

    def open(self, name: str, *cells: str) -> Notebook:
        """Write a notebook whose first cell loads the magics; open it and run that cell."""
        path = self.directory / "notebooks" / f"{name}.ipynb"
        write_notebook(path, ["%load_ext ignite_tf_magic", *cells])
        notebook = self.lab.open(self.context, path.name)
        notebook.run(0)
        return notebook

    def clear(self) -> None:
        """Close all pages and shut down their kernels."""
        for page in self.context.pages:
            page.close()
        for session in self.lab.call("GET", "api/sessions"):
            self.lab.call("DELETE", f"api/sessions/{session['id']}")

    def shot(self, place: Locator, name: str) -> None:
        """Save a screenshot in the folder named by IGNITE_TF_SHOTS, if it is set."""
        if folder := os.environ.get("IGNITE_TF_SHOTS"):
            place.screenshot(path=Path(folder) / f"{name}.png")


def id_in(cell: Locator) -> str:
    """Wait until a cell shows the id of its run; return the id."""
    told = cell.locator(".itm-id")
    expect(told).to_have_text(re.compile(r"run \S+"))
    return told.inner_text().removeprefix("run ")


def stop_in(place: Locator) -> None:
    """Click Stop and confirm, in a cell or a row. Retries if the confirmation timed out or the click had no effect."""
    stop = place.get_by_role("button", name=re.compile("^Stop( run .*)?$"))
    really = place.get_by_role("button", name=re.compile("^confirm", re.IGNORECASE))
    for _ in range(30):
        with suppress(PlaywrightTimeoutError):
            stop.click(timeout=10_000)
            really.click(timeout=4_000)
        if "stopp" in place.inner_text().lower():
            return
    raise AssertionError(f"not stopped: {place.inner_text()}")


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(notebook, path)


@contextmanager
def jupyter_lab(directory: Path, env: Mapping[str, str]) -> Iterator[Lab]:
    """Serve `directory`/notebooks with `env` for kernels. Stops with all kernels and their children."""
    root = directory / "notebooks"
    root.mkdir(exist_ok=True)
    token = secrets.token_hex(16)
    own = {
        **{f"JUPYTER_{name}_DIR": str(directory / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")},
        "JUPYTERLAB_SETTINGS_DIR": str(_write_settings(directory / "settings")),
        "JUPYTERLAB_WORKSPACES_DIR": str(directory / "workspaces"),
        "IPYTHONDIR": str(directory / "ipython"),
        "JUPYTER_TOKEN": token,
    }
    argv = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    # JupyterLab binds its port late, so this one is below the ports that the system assigns. It tries others near it.
    port = secrets.choice(range(8100, 9900))
    argv += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", f"--ServerApp.root_dir={root}"]
    argv += ["--LabApp.expose_app_in_browser=True"]
    # A wheel installs these extensions, a checkout does not.
    argv += ["--ServerApp.jpserver_extensions={'ignite_tf_magic.ui.server': True}"]
    argv += [f"--LabServerApp.extra_labextensions_path={_LABEXTENSIONS}"]
    log_path = directory / "jupyter.log"
    with log_path.open("wb") as log:
        server = subprocess.Popen(
            argv, env={**os.environ, **own, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield Lab(_wait_for_url(server, directory / "runtime", log_path), token, psutil.Process(server.pid))
    finally:
        _end(server)


def _write_settings(directory: Path) -> Path:
    for name, settings in _SETTINGS.items():
        path = directory / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))
    return directory


def _wait_for_url(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    def url() -> str:
        assert server.poll() is None, f"JupyterLab has ended; its log:\n{log.read_text()[-4000:]}"
        try:
            info = json.loads((runtime / f"jpserver-{server.pid}.json").read_text())
            # JupyterLab writes the file before it listens.
            socket.create_connection(("127.0.0.1", info["port"])).close()
            return str(info["url"])
        except (OSError, ValueError):  # missing, incomplete, or connection refused
            return ""

    return until(url, PATIENCE_S, lambda: f"JupyterLab; its log:\n{log.read_text()[-4000:]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    family = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
    server.terminate()
    try:
        server.wait(_END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    for process in still_alive(family):
        process.kill()


def still_alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Wait for processes to end; return those that still live after a while."""
    deadline = time.monotonic() + _END_S
    while (alive := [each for each in processes if _is_alive(each)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        # A zombie counts as dead. Some containers never reap zombies.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def browser(directory: Path, **options: Any) -> Iterator[BrowserContext]:
    """Start a browser with a new profile. `options` are those of Playwright's persistent contexts."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            directory / "browser", executable_path=find_browser(), args=_FLAGS, **options
        )
        try:
            context.set_default_timeout(PATIENCE_S * 1000)
            expect.set_options(timeout=PATIENCE_S * 1000)
            yield context
        finally:
            context.close()
