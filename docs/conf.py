"""How Sphinx makes the site: `make docs`. Pages of the reference are written before it reads any."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from docs import markdown, performance, reference  # noqa: E402
from ignite_tf_magic.version import __version__  # noqa: E402

project, release = "ignite_tf_magic", __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.doctest",
    "sphinx_copybutton",
]
exclude_patterns = ["examples", "migration"]
html_theme = "furo"
html_title = f"ignite_tf_magic {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
highlight_language = "text"
default_role = "code"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# Imports of ours that need it are those of `IgniteDataset` and of trainings; their docstrings do not.
autodoc_mock_imports = ["tensorflow"]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
napoleon_use_ivar = True
napoleon_numpy_docstring = False

# Documents that lie outside of this directory, and the pages that they become.
_ELSEWHERE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/results/matrix.md": "matrix.md",
    "benchmarks/results/modes.md": "modes.md",
}
_TITLES = {
    "matrix.md": "# What Keras does on several workers\n\n",
    "modes.md": "# What strategies do when a task is killed\n\n",
}


def _take_in() -> None:
    """Write pages of the documents that lie outside of this directory; their links lead to pages."""
    for name, page in _ELSEWHERE.items():
        text = (DOCS.parent / name).read_text(encoding="utf-8").replace("](docs/", "](../")
        for other, its_page in _ELSEWHERE.items():
            near = other.removeprefix(f"{Path(name).parent}/")
            text = text.replace(f"]({other}", f"]({its_page}").replace(f"]({near}", f"]({its_page}")
        markdown.write_page(DOCS / "_generated" / page, _TITLES.get(page, "") + text)


def _lead_to_pages(_app: Any, name: str, source: list[str]) -> None:
    """Have links to these documents lead to their pages."""
    if "/" not in name:
        for other, page in _ELSEWHERE.items():
            source[0] = source[0].replace(f"](../{other}", f"](_generated/{page}")


def _read_as_plain(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Take the words of docstrings as they stand: they are no reStructuredText but for backticks and sections."""
    lines[:] = [
        each for line in lines for each in (["Example::", ""] if line == "Example:" else [_escaped(line)])
    ]
    for number, line in enumerate(lines[:-2]):
        indent = len(line) - len(line.lstrip())
        behind = lines[number + 2]
        if (
            line.endswith(":")
            and not lines[number + 1].strip()
            and len(behind) - len(behind.lstrip()) > indent
        ):
            lines[number] = line + ":"


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        part if part.startswith("`") else re.sub(r"(?<=\w)_(?!\w)|[*|]", r"\\\g<0>", part) for part in parts
    )


def setup(app: Any) -> None:
    """Connect what is done while pages are read."""
    app.connect("source-read", _lead_to_pages)
    app.connect("autodoc-process-docstring", _read_as_plain, priority=400)


reference.write(DOCS / "_generated")
performance.write(DOCS / "_generated")
_take_in()
