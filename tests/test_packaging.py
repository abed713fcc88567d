"""Checks facts that several packaging files repeat: versions, requirements, programs, Pythons."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

import jinja2
import pytest
import yaml

from ignite_tf_magic.version import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
# Packages that have another name in conda. conda's matplotlib-base equals matplotlib of pip, without GUI front ends.
CONDA_NAMES = {"matplotlib": "matplotlib-base"}
# Requirements of extras that the conda package leaves out: TensorBoard needs this one, and developers.
NOT_IN_CONDA = {"setuptools"}
EXTRAS = ("local", "tensorflow", "notebook", "lab", "data", "top", "tensorboard", "mount")


@pytest.fixture(scope="module")
def setup():
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg", encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recipe():
    """The conda recipe as conda-build reads it. `# [selector]` stays part of the requirements that have one."""
    text = (ROOT / "docs" / "packaging" / "meta.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^(\s+- )(.+?)  # \[(.+)\]$", r"\1'\2 # [\3]'", text, flags=re.MULTILINE)
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False).from_string(text)
    made = template.render(PYTHON="python", compiler="compiler-{}".format, stdlib="stdlib-{}".format)
    return yaml.safe_load(made)


def lines(text):
    return [line for line in text.splitlines() if line]


def as_conda(requirement):
    """Return a requirement of pip in conda's format: "tomli>=2; python_version < '3.11'" is "tomli >=2 # [py<311]"."""
    needed, _, condition = requirement.partition(";")
    name, bound = re.fullmatch(r"([\w.-]+)(.*)", needed.strip()).groups()
    version = re.search(r"python_version (\S+) '3\.(\d+)'", condition)
    selector = f" # [py{version[1]}3{version[2]}]" if version else ""
    return f"{CONDA_NAMES.get(name, name)} {bound}{selector}".strip()


def test_the_version_is_the_same_everywhere(setup, recipe):
    assert setup["metadata"]["version"] == __version__ == recipe["package"]["version"]
    assert recipe["package"]["name"] == setup["metadata"]["name"]


def test_conda_installs_what_pip_installs(setup, pyproject, recipe):
    python = f"python {setup['options']['python_requires']}"
    required = [as_conda(each) for each in lines(setup["options"]["install_requires"])]
    assert recipe["requirements"]["run"] == [python, *required]
    assert recipe["requirements"]["host"] == [
        "python",
        "pip",
        *(as_conda(each) for each in pyproject["build-system"]["requires"]),
    ]


def test_conda_bounds_what_extras_ask_for(setup, recipe):
    wanted = {
        as_conda(each)
        for extra in EXTRAS
        for each in lines(setup["options.extras_require"][extra])
        if re.match(r"[\w-]+", each)[0] not in NOT_IN_CONDA
    }
    assert sorted(recipe["requirements"]["run_constrained"]) == sorted(wanted)
    (everything,) = lines(setup["options.extras_require"]["all"])
    assert sorted(re.findall(r"\w+", everything.partition("[")[2])) == sorted(EXTRAS)


def test_conda_makes_the_same_programs_and_says_the_same_of_the_package(setup, recipe):
    assert recipe["build"]["entry_points"] == lines(setup["options.entry_points"]["console_scripts"])
    assert recipe["about"]["summary"] == setup["metadata"]["description"]
    assert recipe["about"]["license"] == setup["metadata"]["license"]
    for name in (recipe["about"]["license_file"], setup["metadata"]["license_files"]):
        assert (ROOT / name).is_file()
    place = ROOT / "docs" / "packaging" / recipe["source"]["path"]
    assert (place.resolve() / "setup.py").is_file()


def test_wheels_are_built_from_the_oldest_python_on(setup, pyproject):
    built = [
        int(each.removeprefix("cp3").removesuffix("-*"))
        for each in pyproject["tool"]["cibuildwheel"]["build"]
    ]
    oldest = int(setup["options"]["python_requires"].removeprefix(">=3."))
    assert built == list(range(oldest, built[-1] + 1))
    assert sys.version_info.minor <= built[-1]
    target = pyproject["tool"]["ruff"]["target-version"], pyproject["tool"]["mypy"]["python_version"]
    assert target == (f"py3{oldest}", f"3.{oldest}")
