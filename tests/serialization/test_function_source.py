"""Functions as scripts: what comes out runs in a process that knows nothing of this one."""

from __future__ import annotations

import functools
import json
import math
import os.path
import subprocess
import sys
import xml.etree.ElementTree
from json import dumps as to_text

import numpy as np
import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.serialization import values
from ignite_tf_magic.serialization.function_source import source_of

SCALE = 3
TABLE = np.arange(4)


def run_elsewhere(function, *arguments):
    found = source_of(function)
    script = found.script(f"import json; print(json.dumps({found.name}(*{arguments!r})))")
    code = (
        "import sys\n"
        "from ignite_tf_magic.serialization.values import decode\n"
        "space = decode(sys.stdin.buffer.read())\n"
        f"exec({script!r}, space)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=values.encode(found.values), capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode() + script
    return json.loads(done.stdout)


def logged(function):
    @functools.wraps(function)
    def wrapper(*given):
        return [function.__name__, function(*given)]

    return wrapper


class Base:
    factor = SCALE

    def times(self, number):
        return number * self.factor


class Derived(Base):
    def times(self, number, offset=SCALE - 1):
        return super().times(number) + offset + helper(0)


def helper(number):
    return 0 if number == 0 else number + helper(number - 1)


@logged
def everything(number):
    SCALE_OF_MINE = SCALE + 1
    squares = [helper(each) for each in range(number)]
    inner = lambda each: each * SCALE_OF_MINE + math.floor(1.5)  # noqa: E731

    def nested():
        return Derived().times(inner(number))

    element = xml.etree.ElementTree.fromstring("<a b='1'/>")
    return {
        "squares": squares,
        "nested": nested(),
        "table": int(TABLE.sum()),
        "text": to_text(element.attrib),
        "path": os.path.basename("/a/b"),  # noqa: PTH119 - a module of its own name
    }


def test_all_that_a_function_uses_comes_along():
    assert run_elsewhere(everything, 4) == everything(4)


def test_only_what_is_used_comes_along():
    found = source_of(everything)
    assert set(found.values) == {"SCALE", "TABLE"}
    assert "import math as math" in found.imports
    assert "from json import dumps as to_text" in found.imports
    assert "import xml.etree.ElementTree" in found.imports


def test_local_names_hide_global_ones():
    def function():
        TABLE = 1
        return [TABLE for np in range(2)], (lambda SCALE: SCALE)(5)

    assert source_of(function).values == {}
    assert run_elsewhere(function) == [[1, 1], 5]


def test_what_a_closure_holds():
    offset, late = 10, None

    def other(number):
        return number + offset

    def function(number):
        return other(number) * SCALE

    assert run_elsewhere(function, 1) == 33
    del late


def test_another_name_for_it():
    plus = helper

    def function():
        return plus(3)

    assert run_elsewhere(function) == 6


def test_a_function_of_this_package_is_imported():
    def function():
        return source_of.__name__

    assert source_of(function).definitions == [source_of(function).definitions[0]]
    assert (
        "from ignite_tf_magic.serialization.function_source import source_of as source_of"
        in source_of(function).imports
    )


@pytest.mark.parametrize("thing", [lambda: 1, functools.partial(helper, 1), Base().times, Base, len, 3])
def test_what_is_no_plain_function_is_refused(thing):
    with pytest.raises(ConfigError, match="made with `def`"):
        source_of(thing)


def test_no_source():
    space = {}
    exec("def made(): return 1", space)
    with pytest.raises(ConfigError, match="the source of made cannot be found"):
        source_of(space["made"])


def test_two_things_of_one_name():
    def make(name):
        def same():
            return name

        return same

    one, two = make("a"), make("b")

    def function():
        return one(), two()

    with pytest.raises(ConfigError, match="two things called same"):
        source_of(function)
