"""A hash of code that ignores comments, docstrings and layout."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ignite_tf_magic"
ROOMS = ("runs", "launch")


def hash_of_rooms(package: Path = PACKAGE, rooms: Iterable[str] = ROOMS) -> str:
    """Hash the modules of some subpackages ("rooms") of a package."""
    digest = hashlib.sha256()
    for room in rooms:
        for path in sorted((package / room).rglob("*.py")):
            digest.update(f"{path.relative_to(package).as_posix()}\n".encode())
            digest.update(normal_form(path.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


def normal_form(source: str) -> str:
    """Return a text that is equal for sources with the same statements."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    return ast.unparse(tree)
