"""Functions that are sent: each returns the same here and in an unrelated process."""

from __future__ import annotations

import asyncio
import base64
import collections
import dataclasses
import enum
import functools
import io
import itertools
import json
import math
import operator
import os
import re
import socket
import subprocess
import sys
import threading
import types
import typing
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.serialization import function_pickle, sent_function
from ignite_tf_magic.serialization.function_pickle import pickle_function
from ignite_tf_magic.serialization.sent_function import unpickle_function

SCALE = 3
TABLE = np.arange(4)
SEEN: list[int] = []


def twice(function):
    @functools.wraps(function)
    def wrapper(*arguments, **options):
        return 2 * function(*arguments, **options)

    return wrapper


def twice_without_wraps(function):
    def wrapper(*arguments):
        return 2 * function(*arguments)

    return wrapper


def times(factor):
    return lambda function: lambda *arguments: factor * function(*arguments)


def base():
    return 21


wrapped_by_assignment = twice(base)


@twice
def decorated():
    return 21


@twice_without_wraps
def decorated_without_wraps():
    return 21


@times(3)
@twice
@times(5)
def decorated_thrice():
    return 1


number = 5


def default(value=number):
    return value


number = 7


def keyword_default(*, value=SCALE * 2):
    return value


MUTABLE = [1]


def mutable_default(values=MUTABLE):
    return [*values, SCALE]


square = lambda value: value * value  # noqa: E731


def uses_a_lambda():
    return square(4)


class Base:
    """A class of the notebook."""

    factor = SCALE
    made: typing.ClassVar[list[str]] = []

    def __init__(self, value=2):
        self.value = value

    def times(self, value):
        return value * self.factor

    @property
    def doubled(self):
        return 2 * self.value

    @classmethod
    def of(cls, value):
        return cls(value)

    @staticmethod
    def plain(value):
        return value + 1

    def __call__(self):
        return self.value

    def __add__(self, other):
        return type(self)(self.value + other.value)

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None


class Derived(Base):
    def times(self, value, offset=SCALE - 1):
        return super().times(value) + offset


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Meta(type):
    def __new__(cls, name, bases, names):
        return super().__new__(cls, name, bases, {**names, "tagged": name})


class Tagged(metaclass=Meta):
    pass


class Manager:
    def __enter__(self):
        SEEN.append(1)
        return self

    def __exit__(self, *_):
        SEEN.append(2)


@dataclasses.dataclass(order=True)
class Point:
    x: int
    y: int = dataclasses.field(default_factory=lambda: SCALE)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Flags(enum.IntFlag):
    A = 1
    B = 2


Pair = collections.namedtuple("Pair", "left right")


class Typed(typing.NamedTuple):
    left: int
    right: int = 4


class OwnError(ValueError):
    pass


def factorial(value):
    return 1 if value < 2 else value * factorial(value - 1)


def is_even(value):
    return value == 0 or is_odd(value - 1)


def is_odd(value):
    return value != 0 and is_even(value - 1)


@functools.lru_cache
def fibonacci(value):
    return value if value < 2 else fibonacci(value - 1) + fibonacci(value - 2)


@functools.singledispatch
def dispatched(value):
    return "anything"


@dispatched.register
def _(value: int):
    return "a number"


def numbers(count):
    for each in range(count):
        yield each * SCALE


def counter():
    count = 0

    def increase():
        nonlocal count
        count += 1
        return count

    return increase


def closure(offset):
    table = {"a": offset}
    return lambda value: value + table["a"] + SCALE


def caught():
    try:
        raise OwnError("own")
    except ValueError as error:
        return [type(error).__name__, str(error)]


def matched(value):
    found = re.fullmatch(r"(?P<name>\w+)=(\d+)", value)
    return found.groupdict() if found else None


def with_a_manager():
    SEEN.clear()
    with Manager():
        SEEN.append(3)
    return SEEN


def imports_within():
    import colorsys

    return colorsys.rgb_to_hsv(1, 0, 0)


counted = 7


def changes_a_global():
    global counted
    counted += 1
    return counted


def uses_a_class_made_within():
    class Local:
        def value(self):
            return SCALE

    return Local().value()


def with_annotations(value: Point = Point(1)) -> Point:  # noqa: B008
    return value.x


def conditional():
    return [each for each in (f"{number:>3}", *map(str, sorted({3, 1, 2}))) if each]


def deep():
    return json.dumps({"a": [Pair(1, 2)._asdict(), dataclasses.asdict(Point(1))]}, sort_keys=True)


def asyncio_within():
    async def waits():
        await asyncio.sleep(0)
        return 4

    return asyncio.run(waits())


def threads_within():
    found = []
    thread = threading.Thread(target=lambda: found.append(SCALE))
    thread.start()
    thread.join()
    return found


KINDS = {
    "base": base,
    "wrapper by assignment": wrapped_by_assignment,
    "decorator": decorated,
    "decorator without wraps": decorated_without_wraps,
    "three decorators": decorated_thrice,
    "default": default,
    "keyword default": keyword_default,
    "mutable default": mutable_default,
    "lambda": lambda: SCALE,
    "lambda of the notebook": uses_a_lambda,
    "closure": lambda: closure(4)(5),
    "closure itself": functools.partial(closure(4), 5),
    "nonlocal": lambda: [counter() and each() for each in [counter()] * 3],
    "class": lambda: Base().times(4),
    "subclass": lambda: Derived().times(4),
    "class method": lambda: Derived.of(3).value,
    "static method": lambda: Base.plain(3),
    "property": lambda: Base(4).doubled,
    "operator of a class": lambda: (Base(1) + Derived(2)).value,
    "comparison of a class": lambda: Base(1) == Base(1),
    "class variable": lambda: Derived.made,
    "callable object": Base(9),
    "bound method": Base(9).times.__get__(Base(9)) and functools.partial(Base(9).times, 3),
    "class as function": lambda: [each(3).value for each in (Base, Derived)],
    "slots": lambda: Slotted(5).x,
    "metaclass": lambda: Tagged.tagged,
    "context manager": with_a_manager,
    "dataclass": lambda: dataclasses.astuple(Point(2)),
    "ordered dataclass": lambda: max(Point(1), Point(2)).x,
    "frozen dataclass": lambda: hash(Frozen(1)) == hash(Frozen(1)),
    "instance of the notebook": (lambda point: lambda: point.y)(Point(1, 8)),
    "enum": lambda: [each.name for each in Colour],
    "enum by value": lambda: Colour(2) is Colour.BLUE,
    "flags": lambda: int(Flags.A | Flags.B),
    "named tuple": lambda: Pair(1, 2).right,
    "typed named tuple": lambda: Typed(1)._asdict(),
    "exception class": caught,
    "recursion": lambda: factorial(10),
    "mutual recursion": lambda: [is_even(each) for each in range(4)],
    "lru_cache": lambda: fibonacci(30),
    "staticmethod called by an instance": lambda: Base().plain(1),
    "generator within": lambda: list(numbers(4)),
    "generator expression": lambda: sum(each for each in numbers(5)),
    "comprehensions": lambda: [
        {each: {each} == {each} for each in range(2)},
        [a * b for a in (1, 2) for b in (3,)],
    ],
    "partial": functools.partial(operator.add, 1, 2),
    "partial of a function of the notebook": functools.partial(default, 11),
    "reduce": lambda: functools.reduce(operator.mul, range(1, 5)),
    "itertools": lambda: list(itertools.islice(itertools.count(SCALE), 3)),
    "array of the notebook": lambda: int(TABLE.sum()),
    "array in a closure": (lambda table: lambda: table.tolist())(np.eye(2)),
    "module": lambda: math.floor(2.5),
    "module with a dot": lambda: os.path.basename("/a/b"),  # noqa: PTH119
    "import within": imports_within,
    "global that is changed": changes_a_global,
    "local class": uses_a_class_made_within,
    "annotations": with_annotations,
    "format": conditional,
    "json": deep,
    "regular expression": lambda: matched("a=1"),
    "compiled pattern": (lambda pattern: lambda: pattern.sub("", "a1b2"))(re.compile(r"\d")),
    "decimal": lambda: str(Decimal("1.10") + 1),
    "bytes": lambda: list(b"\x00\xff"),
    "text": lambda: "ä\u2028\"'''\\",
    "walrus": lambda: [y := 2, y**2],
    "star arguments": lambda: (lambda *a, **k: [list(a), k])(1, 2, b=3),
    "default of a lambda": lambda x=SCALE: x,
    "asyncio within": asyncio_within,
    "threads within": threads_within,
    "types": lambda: isinstance(Derived(), Base),
    "namespace": (lambda space: lambda: space.a)(types.SimpleNamespace(a=5)),
    "method of a module": math.factorial and functools.partial(math.factorial, 5),
    "text stream in memory": (lambda file: lambda: file.getvalue())(io.StringIO("in memory")),
}


@pytest.fixture(scope="module")
def elsewhere():
    """Return the result of each kind of function in another process."""
    texts = {}
    for name, function in KINDS.items():
        texts[name] = base64.b64encode(pickle_function(function).data).decode()
    code = (
        "import json, sys\n"
        "from ignite_tf_magic.serialization.sent_function import unpickle_function\n"
        "for name, text in json.load(sys.stdin).items():\n"
        "    try:\n"
        f"        found = unpickle_function(name, {sent_function.VERSION!r}, text)()\n"
        "    except BaseException as error:\n"
        "        found = repr(error)\n"
        "    print(json.dumps([name, found]))\n"
    )
    # A process that cannot import the tests.
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, cwd="/", timeout=300
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", KINDS)
def test_a_function_does_elsewhere_what_it_does_here(elsewhere, name):
    assert elsewhere[name] == json.loads(json.dumps(KINDS[name]()))


def test_there_are_seventy_kinds():
    assert len(KINDS) >= 70


async def waits():
    return 1


OPEN = Path(os.devnull).open()  # noqa: SIM115
SOCKET = socket.socket()
LOCK = threading.Lock()


@pytest.fixture(scope="module", autouse=True)
def closed():
    yield
    OPEN.close()
    SOCKET.close()


def uses_a_file():
    return OPEN.read()


def uses_a_socket():
    return SOCKET.fileno()


def uses_a_lock():
    with LOCK:
        return 1


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (5, "^5 cannot be sent to workers"),
        (waits, "^waits is an `async def`, which workers do not wait for"),
        (numbers, "^numbers is a generator, which cannot be sent back"),
        (uses_a_file, "^cannot send uses_a_file: it uses OPEN, an open file .*: open it in the function"),
        (uses_a_socket, "^cannot send uses_a_socket: it uses SOCKET, an open socket"),
        (lambda: dispatched(1), "^cannot send <lambda>: it uses dispatched, which cannot leave .*weakref"),
        (uses_a_lock, "^cannot send uses_a_lock: it uses LOCK, which cannot leave this process: .*lock"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_its_name(thing, words):
    with pytest.raises(ConfigError, match=words):
        pickle_function(thing)


def test_what_is_large_is_named_with_its_size(monkeypatch):
    monkeypatch.setattr(function_pickle, "MAX_BYTES", 1 << 20)
    large, small = np.zeros(1 << 20, np.uint8), np.zeros(9)
    with pytest.raises(ConfigError, match="the largest is large with 1 MiB"):
        pickle_function(lambda: large.sum() + small.sum())


def test_another_version_of_python_is_named():
    with pytest.raises(ConfigError, match=r"f was sent by Python 2\.7, and this worker runs Python 3\.\d+"):
        unpickle_function("f", "2.7", "")


def test_a_script_says_what_it_is_and_whether_it_needs_tensorflow():
    def trains():
        import keras

        return keras

    plain, training = pickle_function(base), pickle_function(trains)
    assert "import tensorflow" not in plain.script("") and "\nimport tensorflow\n" in training.script("")
    names = {}
    exec(plain.script("found = _function()"), names)
    assert names["found"] == 21


def test_the_same_function_has_the_same_digest():
    def made():
        return lambda: SCALE

    assert pickle_function(made()).digest == pickle_function(made()).digest
    assert pickle_function(base).digest != pickle_function(default).digest


def test_another_helper_makes_another_digest():
    """A prediction can only be resumed with the same function, including all it uses."""

    def uses(helper):
        return lambda value: helper(value)

    def one(value):
        return value + 1

    def two(value):
        return value + 2

    assert pickle_function(uses(one)).digest != pickle_function(uses(two)).digest
