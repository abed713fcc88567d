"""Loads the widgets' JavaScript and style sheets from `static/`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from importlib.resources import files
from typing import Any


def joined(*names: str) -> str:
    """Return scripts, or style sheets, concatenated in the given order."""
    return "\n".join(map(_read, names))


def kept_chart(series: Mapping[str, Any]) -> str:
    """Return HTML of a chart that works without a kernel, and hides the picture in front of it once it is drawn."""
    data = json.dumps(series).replace("<", "\\u003c")  # scripts choose the names, which may contain HTML
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
