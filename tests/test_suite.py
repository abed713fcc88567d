"""Checks a rule of the test suite: each nightly test names a shorter related test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
FILES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("test_*.py"))}
RELATIVE = re.compile(r"Nightly\. Shorter:\s+(?:tests/(\S+)::)?(test_\w+)")
REASON = re.compile(r"Nightly\. No shorter one: \S.*\.", re.DOTALL)


def functions_of(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {each.name: each for each in functions if each.name.startswith("test_")}


def is_nightly(tree: ast.Module, test: ast.FunctionDef) -> bool:
    """Return whether a test or its whole file has the mark. A mark on single parameters does not count."""
    marks = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)
    ]
    return any("pytest.mark.nightly" in ast.unparse(mark) for mark in marks) or any(
        ast.unparse(decorator) == "pytest.mark.nightly" for decorator in test.decorator_list
    )


def test_a_nightly_test_names_its_shorter_relative_or_says_why_there_is_none():
    offenders = []
    for path, tree in FILES.items():
        for name, test in functions_of(tree).items():
            if is_nightly(tree, test):
                fault = fault_of(path, ast.get_docstring(test) or "")
                offenders += [f"{path.relative_to(TESTS)}::{name}: {fault}"] if fault else []
    assert offenders == []


def fault_of(path: Path, docstring: str) -> str | None:
    """Return what is wrong with the last sentence of a nightly test's docstring, or None."""
    last = docstring[docstring.rfind("Nightly.") :] if "Nightly." in docstring else ""
    if REASON.fullmatch(last):
        return None
    named = RELATIVE.fullmatch(last)
    if named is None:
        return (
            "its docstring does not end in 'Nightly. Shorter: test_name' or 'Nightly. No shorter one: why.'"
        )
    other = TESTS / named[1] if named[1] else path
    relative = functions_of(FILES[other]).get(named[2]) if other in FILES else None
    if relative is None:
        return f"there is no {named[0]}"
    return f"{named[2]} is nightly, too" if is_nightly(FILES[other], relative) else None
