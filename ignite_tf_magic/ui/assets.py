"""JavaScript and styles of the widgets, as they lie in `static/`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from importlib.resources import files
from typing import Any


def joined(*names: str) -> str:
    """Return scripts, or style sheets, joined to one in their order."""
    return "\n".join(map(_read, names))


def kept_chart(series: Mapping[str, Any]) -> str:
    """Return HTML of a chart that needs no kernel, for behind a picture of it, which it hides when it is there."""
    data = json.dumps(series).replace("<", "\\u003c")  # names are a script's
    place = f"itm-{secrets.token_hex(6)}"
    code = joined("uPlot.iife.min.js", "chart.js")
    return (
        f'<div id="{place}"></div><style>{joined("uPlot.min.css", "run_view.css")}</style><script>(() => {{{code}\n'
        f'const root = document.getElementById("{place}");\n'
        f"igniteTfChart(root, uPlot).update({data});\n"
        "root.previousElementSibling.style.display = 'none';\n})();</script>"
    )


def _read(name: str) -> str:
    return (files("ignite_tf_magic.ui") / "static" / name).read_text(encoding="utf-8")
