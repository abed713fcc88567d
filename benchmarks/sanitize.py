"""Decodes mutated pages with _rows.c under AddressSanitizer and UndefinedBehaviorSanitizer.

    python -m benchmarks.sanitize [--pages 200000] [--seed 0]

Builds the library with both into a temporary directory, and runs this module again in a process that has them loaded.
The exit code is 0 if no sanitizer reports anything. Every page is in memory of exactly its size, so that reading one
byte too many is detected.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables
from benchmarks.code_hash import hash_of_rooms
from ignite_tf_magic.errors import RemoteProtocolError, SchemaError
from ignite_tf_magic.protocol import walk_compiled
from ignite_tf_magic.protocol.columns import ColumnChunk, PageDecoder
from ignite_tf_magic.protocol.crc32c import tables as crc_tables
from ignite_tf_magic.protocol.layout import RowLayout
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.page_series import PageSeries, address_of, page_table
from ignite_tf_magic.protocol.sweep import Expected, Sweep, SweptSeries
from ignite_tf_magic.protocol.typed_values import TypedArray
from ignite_tf_magic.protocol.walk_compiled import CompiledWalker
from tests.protocol.pages import make_pages

NAME = "sanitize"
SOURCE = Path(walk_compiled.__file__).with_name("_rows.c")
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g")
_INSIDE = "IGNITE_TF_SANITIZED"  # the library's path, set in the process with the sanitizers
_PER_CORPUS, _PAGES_PER_SWEEP = 2000, 10


def main() -> int:
    """Decode in this process, or start the one with the sanitizers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=tables.RESULTS, metavar="DIR")
    options = parser.parse_args()
    if _INSIDE in os.environ:
        row = _decode_all(options.pages, options.seed)
        tables.write(options.results, NAME, row)
        print(f"{row['pages']:,} pages, {row['refused']:,} refused, seed {row['seed']}; nothing was seen")
        return 0
    with tempfile.TemporaryDirectory() as place:
        library = Path(place, "_rows.so")
        subprocess.run(["cc", *FLAGS, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        runtimes = [_runtime(name) for name in ("libasan.so", "libubsan.so")]
        env = {
            **os.environ,
            _INSIDE: str(library),
            "LD_PRELOAD": " ".join(runtimes),
            "PYTHONMALLOC": "malloc",  # Python's own allocator hides the end of an allocation
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter leaks
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        words = [sys.executable, "-m", "benchmarks.sanitize", "--pages", str(options.pages)]
        words += ["--seed", str(options.seed), "--results", str(options.results)]
        code = subprocess.run(words, env=env, check=False).returncode
    if code:  # the report was printed above
        row = {"pages": options.pages, "refused": None, "seed": options.seed, "clean": False, "seconds": None}
        tables.write(options.results, NAME, {**row, "code": _code()})
    return code


def _code() -> str:
    """Return the hash of the decoding code, in C and around it."""
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    return f"{source}-{hash_of_rooms(rooms=('protocol',))}"


def _runtime(name: str) -> str:
    found = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _decode_all(num_pages: int, seed: int) -> dict[str, Any]:
    library = walk_compiled.load(Path(os.environ[_INSIDE]))
    if library is None:
        raise SystemExit("the library that was built is of another version")
    draw, began, num_refused = random.Random(seed), time.monotonic(), 0
    for number in range(num_pages):
        if number % _PER_CORPUS == 0:
            corpus = [_page(draw, library) for _ in range(20)]
        rows, num_rows, layout, decoder = draw.choice(corpus)
        data = _mutated(draw, rows) if number % 10 else rows
        view, claimed = _exactly(data), max(num_rows + draw.choice((0, 0, 0, 1, -1)), 0)
        _measure(library, view, claimed)
        num_refused += not _decode(decoder, view, claimed, layout)
        if number % _PAGES_PER_SWEEP == 0:
            _sweep(library, draw)
    seconds = round(time.monotonic() - began)
    found = {"pages": num_pages, "refused": num_refused, "seed": seed, "clean": True, "seconds": seconds}
    return {**found, "code": _code()}


def _exactly(data: bytes) -> memoryview:
    """Copy bytes into an allocation of exactly their size."""
    if not data:
        return memoryview(b"")
    return memoryview((ctypes.c_uint8 * len(data)).from_buffer_copy(data)).cast("B")


def _measure(library: ctypes.CDLL, view: memoryview, num_rows: int) -> None:
    """Call the functions that work on rows of any type."""
    starts, hashes = np.empty(num_rows + 1, np.int64), np.empty(num_rows, np.uint64)
    library.itm_index(address_of(view), len(view), num_rows, 1, starts.ctypes.data, hashes.ctypes.data)
    library.itm_measure(page_table([Page(None, num_rows, view, False)]), 1, starts.ctypes.data)
    library.itm_crc32c(0, address_of(view), len(view), crc_tables().ctypes.data, len(view) % 2)


def _decode(decoder: PageDecoder, view: memoryview, num_rows: int, layout: RowLayout) -> bool:
    try:
        decoder.decode(PageSeries([Page(None, num_rows, view, False)]), ColumnChunk(layout, max(num_rows, 1)))
    except (RemoteProtocolError, SchemaError):
        return False
    return True


def _sweep(library: ctypes.CDLL, draw: random.Random) -> None:
    """Feed a sweep a node's answers in any order and in pieces, some of them mutated."""
    sizes = np.array([draw.randint(0, 12) for _ in range(draw.randint(1, 12))], np.int64)
    expected = Expected(np.arange(len(sizes)), sizes, sizes * 10, np.full(len(sizes), 16, np.int64))
    sweep = Sweep(library, 5, expected, 7, draw.randint(1, 6), 1000, bytearray)
    sweep.space()  # before any data has come
    sweep.requests()
    order = draw.sample(range(len(sizes)), len(sizes))
    stream = b"".join(_answer(7 + number, int(sizes[number]), draw.random() < 0.1) for number in order)
    stream = _mutated(draw, stream)[:4096] if draw.random() < 0.7 else stream
    while stream:
        piece = stream[: draw.randint(1, 200)]
        try:
            space = sweep.space()
        except MemoryError:  # an answer that claims to have two gigabytes
            return
        space[: len(piece)] = piece
        sweep.received(len(piece))
        stream = stream[len(piece) :]
        try:
            while isinstance(sweep.take(), SweptSeries):
                sweep.requests()
        except RemoteProtocolError:
            return


def _answer(request_id: int, num_rows: int, has_more: bool) -> bytes:
    body = struct.pack("<qhqi", request_id, 0, 1000 + request_id, num_rows)
    body += b"\x03\x01\x00\x00\x00\x03\x02\x00\x00\x00" * num_rows + bytes([has_more])
    return struct.pack("<i", len(body)) + body


def _mutated(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        if not changed:
            break
        at = draw.randrange(len(changed))
        kind = draw.randrange(6)
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            changed[at] = draw.randrange(256)
        elif kind == 2:
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 3:
            number = draw.choice(
                (0, 1, -1, 2**31 - 1, -(2**31), len(changed), len(changed) - at, draw.randrange(64))
            )
            changed[at : at + 4] = number.to_bytes(4, "little", signed=True)
        elif kind == 4:
            other = draw.randrange(len(changed))
            changed[at : at + 8] = changed[other : other + 8]
        else:
            del changed[at : at + draw.randint(1, 8)]
    return bytes(changed)


def _page(draw: random.Random, library: ctypes.CDLL) -> tuple[bytes, int, RowLayout, PageDecoder]:
    """Make rows of some layout: flat, nested or bare, with fixed and variable fields, some of them null."""
    kinds = [draw.choice(_KINDS) for _ in range(draw.randint(1, 6))]
    shape, num_rows, with_nulls = (
        draw.choice(("bare", "flat", "nested")),
        draw.randint(1, 10),
        draw.random() < 0.3,
    )
    rows = []
    for row in range(num_rows):
        values = {f"f{place}": _value(draw, kind) for place, kind in enumerate(kinds)}
        if with_nulls and row and shape != "bare":
            values = {name: None if draw.random() < 0.2 else value for name, value in values.items()}
        value = _row(shape, row, values)
        rows.append((_value(draw, draw.choice(("i4", "i8"))) if row == 0 else type(rows[0][0])(row), value))
    pages = make_pages(rows)
    leaves = pages.layout(nulls="error").leaves()
    fill = {leaf.name: 0 for leaf in leaves if leaf.is_fixed}
    layout = pages.layout(fill=fill, nulls=[leaf.name for leaf in leaves[::2]])
    return pages.rows, num_rows, layout, PageDecoder(layout, CompiledWalker(layout, library))


def _row(shape: str, row: int, values: dict[str, Any]) -> Any:
    if shape == "bare":
        return values["f0"]
    if shape == "flat":
        return BinaryObject("Flat", values)
    return BinaryObject("Outer", {"n": np.int64(row), "in": BinaryObject("In", values)})


_KINDS = (
    *("i1", "i2", "i4", "i8", "f4", "f8", "?", "time", "text", "bytes", "uuid", "ragged", "three", "none"),
    "texts",
)


def _value(draw: random.Random, kind: str) -> Any:
    number = draw.randint(-100, 100)
    if kind == "text":
        return "x" * draw.choice((0, 1, 9, 300))
    if kind == "texts":
        return TypedArray(
            ["x" * draw.choice((0, 1, 9)) for _ in range(draw.randint(0, 3))], TypeCode.STRING_ARRAY
        )
    if kind == "bytes":
        return draw.randbytes(draw.randint(0, 20))
    if kind == "uuid":
        return uuid.UUID(int=draw.getrandbits(128))
    if kind == "time":
        return np.datetime64(number * 1_000_003, "us")
    if kind in ("ragged", "three", "none"):
        length = {"ragged": draw.randint(0, 5), "three": 3, "none": 0}[kind]
        return np.full(length, number, np.float32)
    return np.array(number).astype(kind)[()]


if __name__ == "__main__":
    sys.exit(main())
