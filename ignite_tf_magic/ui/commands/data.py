"""`load`, `pack`, `caches` and `sql`: commands for the data of the cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ignite_tf_magic.errors import CacheExists, ConfigError
from ignite_tf_magic.serialization.sql_text import changes_rows, gives_rows, split_statements, with_engine
from ignite_tf_magic.session import QueryResult, TextFormat, is_source, open_session
from ignite_tf_magic.ui.commands.command import Command, flags
from ignite_tf_magic.ui.options import whole
from ignite_tf_magic.ui.render import caches_view, scalar_as_json, table_view
from ignite_tf_magic.ui.screen import Screen, say_json, say_outcome

DEFAULT_LIMIT = 1000
_SEPARATORS = {"tab": "\t", "\\t": "\t"}


def _load(options: argparse.Namespace, screen: Screen) -> None:
    ends = [name for name in ("undo", "accept") if getattr(options, name)]
    if len(ends) + (options.source is not None) != 1:
        raise ConfigError(
            "load takes exactly one of SOURCE, --undo and --accept; example: load DIGITS digits, load DIGITS --undo"
        )
    if ends:
        with open_session(report=screen.note, config=options.config, via=options.via) as session:
            end = session.undo_load if options.undo else session.accept_load
            say_outcome(screen, end(options.cache), as_json=options.json)
        return
    source = _source(options.source, screen)
    text = TextFormat(
        options.separator and _SEPARATORS.get(options.separator, options.separator),
        dict(options.dtype),
        options.na,
        options.encoding,
        False if options.no_header else options.header or None,
        options.names.split(",") if options.names else (),
        options.decimal,
    )
    try:
        with (
            open_session(report=screen.note, config=options.config, via=options.via) as session,
            screen.loading(options.cache) as progress,
        ):
            outcome = session.load(
                options.cache,
                source,
                key=options.key,
                split=options.split,
                backups=options.backups,
                replace=options.replace,
                append=options.append,
                upsert=options.upsert,
                resume=options.resume,
                packed=options.packed,
                rejects=options.rejects,
                text=text,
                keep_nan=options.keep_nan,
                drop=options.drop,
                progress=progress,
            )
    except CacheExists as found:
        if not options.if_missing:
            raise
        if options.json:
            say_json(screen, {"cache": options.cache, "rows": found.rows, "loaded": False})
        else:
            screen.say(f"{found.rows:,} rows are in cache {options.cache} already; nothing was loaded")
        return
    say_outcome(screen, outcome, as_json=options.json)


def _pack(options: argparse.Namespace, screen: Screen) -> None:
    with (
        open_session(report=screen.note, config=options.config, via=options.via) as session,
        screen.loading(options.target) as progress,
    ):
        outcome = session.pack(
            options.source,
            options.target,
            fields=options.field or None,
            where=options.where,
            where_args=options.param,
            nulls=options.nulls,
            backups=options.backups,
            replace=options.replace,
            resume=options.resume,
            progress=progress,
        )
    say_outcome(screen, outcome, as_json=options.json)


def _source(name: str, screen: Screen) -> Any:
    """Return the source: a notebook's variable if no file or data set has the name, or else the name."""
    if is_source(name) or not screen.outlives_commands or not name.isidentifier():
        return name
    try:
        value = screen.variables([name])[name]
    except ConfigError:
        return name
    screen.note(f"loading the variable {name}, a {type(value).__name__}, because no file has this name")
    return value


def _column_kind(text: str) -> tuple[str, str]:
    name, equals, kind = text.rpartition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TYPE, as in zip=text")
    return name, kind


def _separator(text: str) -> str:
    if len(_SEPARATORS.get(text, text)) != 1 or not text.isascii():
        raise argparse.ArgumentTypeError(f"{text!r} is not one character, or tab")
    return text


def _engine(text: str) -> str:
    if not (text.isascii() and text.isalnum()):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of an engine, such as h2 or calcite")
    return text.lower()


def _caches(options: argparse.Namespace, screen: Screen) -> None:
    with open_session(report=screen.note, config=options.config, via=options.via) as session:
        caches = session.caches(include_own=options.all)
    if options.json:
        say_json(screen, [asdict(cache) for cache in caches])
    else:
        screen.show(caches_view(caches))


def _sql(options: argparse.Namespace, screen: Screen) -> None:
    statements = split_statements(options.statement) or [options.statement]
    if len(statements) > 1 and options.param:
        raise ConfigError("-p needs a single statement, and there are several")

    def show(result: QueryResult, *, is_last: bool) -> None:
        names = [column.name for column in result.columns]
        if options.output and is_last:
            screen.keep(result.to_pandas(), options.output, f"{len(result):,} rows of {', '.join(names)}")
        else:
            cells = [["NULL" if value is None else str(value) for value in row] for row in result.rows]
            screen.show(table_view(names, cells, upper=False))

    run_statements([(each, options.param) for each in statements], options, screen, show)


class ShowRows(Protocol):
    """A function that shows the rows of a statement."""

    def __call__(self, result: QueryResult, *, is_last: bool) -> None:
        """Show the rows; `is_last` is whether this is the last statement that returns rows."""


def run_statements(
    statements: Sequence[tuple[str, Sequence[Any]]],
    options: argparse.Namespace,
    screen: Screen,
    show: ShowRows,
) -> None:
    """Run SQL statements with their arguments in order, and show the result of each.

    Raises:
        ConfigError: `options.output` is set, but no statement returns rows.
        QueryError: A statement failed; the statements before it have taken effect.
    """
    asking = [number for number, (statement, _) in enumerate(statements) if gives_rows(statement)]
    if options.output and not asking:
        raise ConfigError(f"-o {options.output} stores rows, but no statement returns any")
    with open_session(report=screen.note, config=options.config, via=options.via) as session:
        for number, (statement, arguments) in enumerate(statements):
            with screen.querying() as progress:
                asked = with_engine(statement, options.engine) if options.engine else statement
                result = session.query(asked, arguments, options.limit or None, progress)
            if options.json and not options.output:
                say_json(screen, rows_as_json(result))
            elif [column.name for column in result.columns] == ["PLAN"]:
                screen.say("\n".join(str(plan) for (plan,) in result.rows))
            elif number in asking:
                show(result, is_last=number == asking[-1])
            elif changes_rows(statement):
                screen.say(f"{result.rows[0][0]:,} row{'s' * (result.rows[0][0] != 1)} changed")
            else:
                screen.say("done")
            if result.truncated:
                screen.note(
                    f"the first {len(result):,} rows; there are more: --limit N fetches N, --limit 0 all"
                )


def rows_as_json(result: QueryResult) -> list[dict[str, object]]:
    """Return each row as a dictionary by column name, for JSON output."""
    names = [column.name for column in result.columns]
    return [dict(zip(names, map(scalar_as_json, row), strict=True)) for row in result.rows]


def _add_caches(caches: argparse.ArgumentParser) -> None:
    flags(caches, ("--all", "also caches of this package: notes, the registry of runs, file systems"))


def _add_load(load: argparse.ArgumentParser) -> None:
    load.add_argument("cache", metavar="CACHE")
    load.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        help="an .npz, .npy, .csv, .tsv, .json, .jsonl or .parquet file, a folder of .parquet, an MNIST IDX file "
        "(images or labels; text and IDX .gz too), "
        "keras:mnist (needs internet), digits, or in a notebook a variable: a frame, a table, arrays",
    )
    load.add_argument(
        "--backups", type=whole, metavar="N", help="copies beside the first (1 if several nodes)"
    )
    load.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column that is the key, or one of several",
    )
    load.add_argument("--split", choices=["train", "test"], help="part of a divided source")
    flags(
        load,
        ("--replace", "replace a cache of that name"),
        ("--if-missing", "load nothing where a cache of that name has rows, whatever they are"),
        (
            "--append",
            "add rows with new keys to a cache (without --key, the numbers of its rows continue)",
        ),
        ("--upsert", "add rows to a cache; they replace rows with the same keys"),
        ("--resume", "continue an unfinished load of the same source"),
        ("--undo", "remove the rows of an append that did not finish (without SOURCE)"),
        ("--accept", "keep the rows of a load that did not finish (without SOURCE)"),
        ("--packed", "pack many rows into each entry: read faster, and not to be changed any more"),
        ("--keep-nan", "keep NaN of a data frame as a number; it is missing (NULL) otherwise"),
    )
    load.add_argument(
        "--rejects",
        type=Path,
        metavar="FILE",
        help="leave out rows that cannot be stored, and write the reasons to FILE",
    )
    load.add_argument(
        "--separator",
        type=_separator,
        metavar="C",
        help="between columns of a .csv file, or tab (by default as in its first line)",
    )
    flags(
        load,
        ("--no-header", "the first line of a .csv file is a row (its columns: f0, f1, ...)"),
        ("--header", "the first line holds the names, though one is a number"),
    )
    load.add_argument(
        "--names",
        metavar="NAME,NAME",
        help="names of the columns of a .csv file without a header (with --header in place of its own)",
    )
    load.add_argument(
        "--decimal", choices=[".", ","], default=".", help="decimal point of numbers in a .csv file (.)"
    )
    load.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column that is left out, or one of several",
    )
    load.add_argument(
        "--dtype",
        type=_column_kind,
        action="append",
        default=[],
        metavar="NAME=TYPE",
        help="what a column of text is: int, int32, float, bool, text, decimal, date, time, timestamp, uuid",
    )
    load.add_argument(
        "--na", action="append", default=[], metavar="WORD", help="stands for a missing value in a .csv file"
    )
    load.add_argument("--encoding", default="utf-8", metavar="NAME", help="of a file of text (utf-8)")


def _add_pack(pack: argparse.ArgumentParser) -> None:
    pack.add_argument("source", metavar="CACHE", help="the cache whose rows are packed")
    pack.add_argument(
        "target", metavar="TO", help="the cache that gets them; with --replace the same one, if wanted"
    )
    pack.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME",
        help="field that is kept, or one of several (all)",
    )
    pack.add_argument("--where", metavar="CONDITION", help="only rows of which this SQL condition is true")
    pack.add_argument(
        "-p", "--param", action="append", default=[], metavar="VALUE", help="value of its next ?, as text"
    )
    pack.add_argument(
        "--nulls",
        choices=["mask", "error"],
        help="add a boolean field for nulls beside each field (mask), or none (error)",
    )
    pack.add_argument(
        "--backups", type=whole, metavar="N", help="copies beside the first (1 if several nodes)"
    )
    flags(
        pack,
        ("--replace", "replace a cache of that name"),
        ("--resume", "continue an unfinished packing of the same rows"),
    )


def _add_sql(sql: argparse.ArgumentParser) -> None:
    sql.add_argument("statement", metavar="STATEMENT")
    sql.add_argument(
        "-p", "--param", action="append", default=[], metavar="VALUE", help="value of the next ?, as text"
    )
    add_sql_options(sql)


def add_sql_options(sql: argparse.ArgumentParser) -> None:
    """Add the options that `sql` shares with `%ignite_sql`, whose parameters are notebook variables."""
    sql.add_argument(
        "--limit",
        type=whole,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"most rows to return ({DEFAULT_LIMIT}; 0: all)",
    )
    sql.add_argument(
        "-o",
        "--output",
        metavar="NAME",
        help="a notebook's variable for the rows, a DataFrame; in a shell a file",
    )
    sql.add_argument(
        "--engine",
        type=_engine,
        metavar="NAME",
        help="SQL engine to use, if the nodes have it: h2 or calcite",
    )


COMMANDS = (
    Command(
        "load",
        "create a cache from data",
        _load,
        _add_load,
        example="DIGITS digits --split train\nFLOWERS flowers.csv --key id",
    ),
    Command(
        "pack",
        "pack the rows of a cache into another that is read faster",
        _pack,
        _add_pack,
        example="DIGITS DIGITS_PACKED",
    ),
    Command("caches", "list the cluster's caches", _caches, _add_caches, example=""),
    Command(
        "sql",
        "run a SQL statement",
        _sql,
        _add_sql,
        example="'SELECT label, COUNT(*) FROM DIGITS GROUP BY label'",
    ),
)
