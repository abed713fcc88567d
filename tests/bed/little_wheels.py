"""Tiny wheels with one module each, built by the tests, so that tests download nothing."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

_TAG = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel(
    folder: Path, name: str, code: str = "", *, version: str = "1.0", requires: Sequence[str] = ()
) -> Path:
    """Make a distribution with one module. Its program `tell-NAME` calls the module's function `main`."""
    folder.mkdir(exist_ok=True)
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": code,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": _TAG,
        f"{about}/entry_points.txt": f"[console_scripts]\ntell-{name} = {name}:main\n",
    }
    listed = [*files, f"{about}/RECORD"]
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in listed)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def make_index(folder: Path, **modules: str) -> Path:
    """Fill a directory with wheels of modules, given their code, and of the packages added to every environment."""
    for name, code in {"numpy": "", "fsspec": "", **modules}.items():
        make_wheel(folder, name, code)
    return folder
