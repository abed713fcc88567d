"""The JupyterLab server extension of the sidebar. It reads runs and the cluster without any kernel."""

from __future__ import annotations


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Return the modules that Jupyter's server loads."""
    return [{"module": "ignite_tf_magic.ui.server.extension"}]
