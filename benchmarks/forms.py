"""`python -m benchmarks.forms [--rounds N]`: compares rows of other forms with fixed ones (`results/forms.json`).

Rows of eight integers: alone; with nulls in two of them; with a text; with a list of texts; and as objects of two
alternating types. `IgniteDataset(...).batch(1024)` reads all forms in turn; the best pass counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.nodes import node_of_its_own
from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.embedded import EmbeddedOptions
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.typed_values import Int, TypedArray
from ignite_tf_magic.settings.options import ConnectOptions

NAME = "forms"
BATCH_ROWS = 1024
_PUT_ROWS = 2000
_NAMES = tuple(f"f{number}" for number in range(8))


def _fixed(row: int) -> BinaryObject:
    return BinaryObject("BenchFixed", _numbers(row))


def _nullable(row: int) -> BinaryObject:
    nulls = {name: None for name in _NAMES[1:3] if (row + int(name[1])) % 10 == 0}
    return BinaryObject("BenchNullable", {**_numbers(row), **nulls})


def _text(row: int) -> BinaryObject:
    return BinaryObject("BenchText", {**_numbers(row), "name": f"row {row}"})


def _texts(row: int) -> BinaryObject:
    words = TypedArray([f"word {number}" for number in range(row % 4)], TypeCode.STRING_ARRAY)
    return BinaryObject("BenchTexts", {**_numbers(row), "words": words})


def _two_types(row: int) -> BinaryObject:
    numbers = _numbers(row)
    if row % 2:
        del numbers[_NAMES[7]]
    return BinaryObject("BenchOdd" if row % 2 else "BenchEven", numbers)


FORMS: dict[str, Callable[[int], BinaryObject]] = {
    "fixed": _fixed,
    "nullable": _nullable,
    "text": _text,
    "texts": _texts,
    "two_types": _two_types,
}


def _numbers(row: int) -> dict[str, Any]:
    return {name: Int((row * (number + 1)) % 1000) for number, name in enumerate(_NAMES)}


def fill(client: Client, form: str, num_rows: int) -> None:
    """Create a cache with rows of a form."""
    cache, make = client.create_cache(CacheConfig(_cache(form))), FORMS[form]
    for first in range(0, num_rows, _PUT_ROWS):
        cache.put_all({row: make(row) for row in range(first, min(first + _PUT_ROWS, num_rows))})


def read(options: ConnectOptions, num_rows: int, num_rounds: int) -> list[dict[str, Any]]:
    """Read the caches in turn. Returns the best rate of each, and its ratio to that of fixed rows."""
    from ignite_tf_magic import IgniteDataset

    where = {"host": options.endpoints[0].host, "port": options.endpoints[0].port}
    datasets = {form: IgniteDataset(_cache(form), **where).batch(BATCH_ROWS) for form in FORMS}
    best = dict.fromkeys(FORMS, 0.0)
    for _ in range(num_rounds):
        for form, dataset in datasets.items():
            began = time.perf_counter()
            found = sum(len(batch["key"]) for batch in dataset)
            best[form] = max(best[form], found / (time.perf_counter() - began))
            assert found == num_rows, f"{form}: {found:,} of {num_rows:,} rows"
    return [
        {
            "case": form,
            "rows": num_rows,
            "rows_per_s": round(rate),
            "ratio_to_fixed": round(rate / best["fixed"], 3),
        }
        for form, rate in best.items()
    ]


def _cache(form: str) -> str:
    return f"BENCH_{form.upper()}"


def main(argv: list[str] | None = None) -> None:
    """Fill the caches, read them in turn, and write the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    arguments = parser.parse_args(argv)
    with node_of_its_own(NAME, EmbeddedOptions(heap="512m", region="1g")) as options:
        with connect(options) as client:
            for form in FORMS:
                fill(client, form, arguments.rows)
        rows = read(options, arguments.rows, arguments.rounds)
    tables.write(arguments.results, NAME, rows)
    tables.show(tables.console(), arguments.results, (NAME,))


if __name__ == "__main__":
    main()
