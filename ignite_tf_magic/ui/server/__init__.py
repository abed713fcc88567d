"""What JupyterLab's server adds for the sidebar: it looks at runs and the cluster itself, whatever kernels do."""

from __future__ import annotations


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Tell Jupyter's server what to load."""
    return [{"module": "ignite_tf_magic.ui.server.extension"}]
