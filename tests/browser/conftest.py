"""A JupyterLab and a browser, on nodes where these tests see all runs and caches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext

from tests.browser.lab import Desk, browser, jupyter_lab


@pytest.fixture(scope="session")
def ignite(alone):
    return alone


@pytest.fixture(scope="package")
def context(tmp_path_factory) -> Iterator[BrowserContext]:
    """The browser. Playwright can only start one at a time."""
    with browser(tmp_path_factory.mktemp("browser")) as context:
        yield context


@pytest.fixture(scope="package")
def shared_desk(ignite, context, tmp_path_factory) -> Iterator[Desk]:
    directory = tmp_path_factory.mktemp("desk")
    env = {
        "IGNITE_TF_CLUSTER": ",".join(map(str, ignite.connect_options.endpoints)),
        "IGNITE_TF_HOME": str(directory / "home"),
    }
    with jupyter_lab(directory, env) as lab:
        yield Desk(lab, context, directory, env)


@pytest.fixture
def desk(shared_desk, monkeypatch) -> Iterator[Desk]:
    """The desk without pages and kernels of other tests. This process gets the environment of its kernels."""
    for name, value in shared_desk.env.items():
        monkeypatch.setenv(name, value)
    yield shared_desk
    shared_desk.clear()
