"""Handles URLs of Jupyter's server under /ignite-tf: the content of the sidebar, and the actions of its clicks.

The server answers only logged-in users, and accepts actions only from its own pages.
"""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timezone
from typing import Any

from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.session import PanelFeed
from ignite_tf_magic.ui.assets import joined
from ignite_tf_magic.ui.panel_actions import act
from ignite_tf_magic.ui.panel_views import panel_as_json

_ROOT = "ignite-tf"
_MAX_AGE_S = 1.0  # several pages share one reading of the cluster
_COMMAND = "ignite-tf"


def _load_jupyter_server_extension(server_app: Any) -> None:
    """Register the URL handlers; called by Jupyter's server."""
    feed = PanelFeed()
    base = url_path_join(server_app.web_app.settings["base_url"], _ROOT)
    server_app.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "panel"), PanelHandler, {"feed": feed}),
            (url_path_join(base, "act"), ActHandler),
            (url_path_join(base, r"(panel\.js|panel\.css)"), AssetHandler),
        ],
    )


class PanelHandler(APIHandler):
    """The handler that returns the panel's data as JSON."""

    def initialize(self, feed: PanelFeed) -> None:
        """Keep the feed, which all pages share."""
        self._feed = feed

    @web.authenticated
    async def get(self) -> None:
        """Send the current data, read in a thread because a cluster may answer slowly."""
        self.finish(json.dumps(await asyncio.to_thread(self._seen)))

    def _seen(self) -> dict[str, Any]:
        try:
            return panel_as_json(self._feed.look(_MAX_AGE_S), datetime.now(timezone.utc))
        except (IgniteTfError, OSError, ValueError) as error:
            return {
                "runs": [],
                "nodes": [],
                "caches": [],
                "cluster": "",
                "warnings": [],
                "trouble": str(error),
            }


class ActHandler(APIHandler):
    """The handler that performs the action of a click."""

    @web.authenticated
    async def post(self) -> None:
        """Perform the action in a thread, and return its result as JSON."""
        said = self.get_json_body() or {}
        done = await asyncio.to_thread(act, str(said.get("action")), str(said.get("about")), _COMMAND)
        self.finish(json.dumps(done))


class AssetHandler(JupyterHandler):
    """The handler that returns the panel's code and styles, the same as in the notebook's widget."""

    @web.authenticated
    def get(self, name: str) -> None:
        """Send the JavaScript module that exports the panel, or the style sheet."""
        is_code = name.endswith(".js")
        self.set_header("Content-Type", "text/javascript" if is_code else "text/css")
        found = (
            joined("panel.js") + "\nexport {igniteTfPanel};"
            if is_code
            else joined("run_view.css", "panel.css")
        )
        self.finish(found)
