"""`IgniteDataset`, with the signature that users of tensorflow-io know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.batches import num_rows
from ignite_tf_magic.dataset.deal import EqualSteps, uncounted
from ignite_tf_magic.dataset.followed import FollowReader
from ignite_tf_magic.dataset.generated_pages import arranged, finished, generated
from ignite_tf_magic.dataset.generator import ArrayDataset
from ignite_tf_magic.dataset.kept_secrets import Given, keep
from ignite_tf_magic.dataset.options import ReadOptions, read_options
from ignite_tf_magic.dataset.paged import PagedDataset
from ignite_tf_magic.dataset.partition_ranges import parse_partitions
from ignite_tf_magic.dataset.passes import EpochTracker
from ignite_tf_magic.dataset.permuting import can_permute
from ignite_tf_magic.dataset.reading_process import (
    ReadBy,
    check_secrets_stay,
    is_graph_mode,
    may_be_read_here_too,
    reading_process,
    warn_if_connected,
)
from ignite_tf_magic.dataset.recipe import Pages, Recipe, ShuffleOrder
from ignite_tf_magic.dataset.source import Source, open_source
from ignite_tf_magic.dataset.sql_rows import cache_of, rows_of
from ignite_tf_magic.dataset.structure import no_pages, page_spec, row_spec
from ignite_tf_magic.dataset.tfrecord_address import ALL, ASSIGNED, THIS_PROCESS, RecordAddress, part_text
from ignite_tf_magic.dataset.tfrecord_files import register_records
from ignite_tf_magic.dataset.tfrecord_pages import tfrecord_pages
from ignite_tf_magic.errors import ConfigError, EmptyCache
from ignite_tf_magic.settings.options import DEFAULT_PORT, Endpoint

_SECRETS = ("username", "password", "certfile", "keyfile", "cert_password")


def _dataset_of(kind: type[IgniteDataset], given: Mapping[str, Any]) -> IgniteDataset:
    return kind(**given)


class IgniteDataset(PagedDataset):
    """Rows of an Ignite cache: {"key": ..., "val": ...}, objects as dicts of their fields.

    All owners are read in parallel, each for its own primary partitions, when the dataset is iterated.
    Connections stay open for 10 s after a pass, for the next one. Rows come in an order that depends only
    on the data and the owners. See `PagedDataset` for what makes `batch`, `map` and `shuffle` fast.

    tf.data's autotuner is off, since it makes the end of a pass wait; what is AUTOTUNE still runs in
    parallel, and `with_options` turns the autotuner on again.

    Types: byte int8, short int16, int int32, long int64, float float32, double and decimal float64, char uint16,
    boolean bool; String, UUID and byte[] of varying length are strings; byte[] of one length is uint8[n]; other
    primitive arrays are tensors when all have one length, else ragged; SQL's date and time are int64 milliseconds;
    a timestamp and a java.util.Date are instants, int64 nanoseconds since 1970, and may share a column; enum int32
    ordinal. String[] and the like, and collections of one of these types, are ragged; a map is two columns,
    NAME_keys and NAME_values, or keys and values where it is the value itself; a list of objects has a column for
    each of their fields, NAME_FIELD. A list that is the value itself and holds nulls is two columns, items and
    null_items. Objects of several types have the fields of all, each null where an object's own type lacks it. A
    field that has no such form is left out with a warning; one that `fields` names is an error.
    Null is NaN for reals and the empty string for strings; others are 0 where they are null, and a boolean beside them
    tells (`nulls`), unless `fill` says what. A null in a field where the sampled rows have none is an error.

    Every argument up to `cert_password` is overridden by the environment variable IGNITE_DATASET_ and
    its name; so a script runs unchanged on each worker, which reads the part that its launcher assigned.

    In a process that has other TensorFlow servers do work (`ParameterServerStrategy`,
    `tf.config.experimental_connect_to_cluster`), and in a graph for a `tf.compat.v1` session, the rows are
    read by the process that the dataset lives in: as anywhere in TensorFlow that of the `tf.device` in which
    the dataset is made, or that of the worker that runs the function making it. In a graph, a dataset made before
    the `tf.device` of its iterator is read there all the same, and what `batch` or tf.data has made of it is refused.
    This process can read such a dataset; another one must have called `ignite_tf_magic.register()`, as workers of a
    run have. The process that reads takes what its own environment assigns to it, with its own credentials: passwords
    and certificates given here are for this process alone, and an error where another is known to read. Cache, fields
    and options are those given here, and this process looks at some rows to learn their types.
    `equal_steps` is without effect there: only a worker knows its share.

    Args:
        cache_name: Name of the cache, or of its SQL table.
        host: A node to ask first. Default: the configured cluster, else the embedded one, else localhost.
        port: Its client port, 10800 by default.
        local: Read only partitions whose primary copy is on that node.
        part: A partition, several, or ranges such as "0-127,200". Default: all.
        page_size: Upper limit for the rows of a page. Bytes are bounded in any case (`client.page_sizes`).
        username: For a cluster with authentication.
        password: Its password.
        certfile: PEM file for TLS: certificate, and key and authorities if they are in it too.
        keyfile: PEM file of the key, when it is not in `certfile`.
        cert_password: Password of the key.
        schema_host: A node that this process asks for the types of the rows, if the dataset's operations read them
            later, perhaps in another process. Default: `host`.
        schema_port: Its client port. Default: `port`.
        fields: Names of the value's fields to keep, as rows spell them ("owner.name") or as their SQL columns are
            called; None keeps all. A name that fits two fields is an error. Where fields are a small part of a row, and
            columns of the cache's table, the nodes send nothing else.
        where: Only rows of which this is true: a condition of SQL over the columns of the cache's table, with `?` for
            values, as `"LABEL < ?"`. The nodes look for them, by indexes where there are such, and send no others. Of
            rows that are not of the table's types none is true. Nobody knows how many there are, so that in a run the
            workers agree before each step whether anyone has rows.
        where_args: The values.
        fill: What a null becomes, by field name.
        nulls: Which fields have a boolean beside them, NAME_is_null, that tells where they are null; they are 0 there
            where nothing else is said. None: those that have no null of their own (integers, booleans, dates, enums),
            where a null was among the sampled rows. "mask": all of those. Names: these fields, of any type but
            objects. "error": none.
        variable: Arrays of varying length where the sampled rows do not show it, by field name.
        as_text: Fields whose columns have text of each value: decimals with all digits, enums by their names, times of
            the years 1 to 9999 in ISO 8601 (a date's day, a timestamp with nanoseconds in UTC), numbers, truths.
        equal_steps: What `batch` makes of the last batch of an epoch in a run, when the rows do not fill it: "pad"
            (default: it stays smaller, every row is there once), "drop" leaves it out, "repeat" fills it up.
        assigned: False reads the whole cache also inside a run.
        allow_partial: True reads what is left of a cache that has lost rows with a node, or whose load has not ended.
            So does the environment variable IGNITE_DATASET_ALLOW_PARTIAL, in runs started with `--allow-partial`.
        element_spec: Structure of a row, needed only for a cache that may be empty.
        follow: Yield the rows that are there and then those that are put, as they are put, without end: `take`, or
            `steps_per_epoch` of Keras, end it. Each row comes at least once, also when nodes are lost of whose
            partitions there are copies; in no order; the newest value of one that is put again comes last. Each
            iteration begins anew. In a run, workers follow their own partitions, and a batch waits until each of them
            has its part of it. See `follow` in docs/data.md.
        after: With `follow`: leave out the rows that are there whose keys, whole numbers, are not larger.
        read_by: "worker" or "caller" (this process) where the choice described above is wrong.

    Raises:
        CacheNotFound: No such cache; the error lists the near names.
        CacheNameError: Several caches have SQL tables of that name.
        RowsLost, LoadIncomplete: The cache holds fewer rows than it had, or was to have. Where that may be intended it
            is a warning.
        EmptyCache: The cache is empty and `element_spec` was not given.
        SchemaError: The rows have no common layout.
        ConnectionFailed, AuthenticationError: No way to the cluster; the message says what was tried.
        ConfigError: An argument or variable is unusable.
    """

    def __init__(
        self,
        cache_name: str,
        host: str | None = None,
        port: int | None = None,
        local: bool = False,
        part: int | str | Iterable[int] | None = None,
        page_size: int | None = None,
        username: str | None = None,
        password: str | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
        cert_password: str | None = None,
        *,
        schema_host: str | None = None,
        schema_port: int | None = None,
        fields: Sequence[str] | None = None,
        where: str | None = None,
        where_args: Sequence[Any] = (),
        fill: Mapping[str, Any] | None = None,
        nulls: str | Iterable[str] | None = None,
        variable: Sequence[str] = (),
        as_text: Sequence[str] = (),
        equal_steps: str = "pad",
        assigned: bool = True,
        allow_partial: bool = False,
        element_spec: Any = None,
        follow: bool = False,
        after: int | None = None,
        read_by: str | None = None,
    ) -> None:
        given = {
            name: value for name, value in locals().items() if name not in ("self", "__class__", *_SECRETS)
        }
        object.__setattr__(self, "_given", given)  # past what TensorFlow does with attributes
        policy, reader = EqualSteps.parse(equal_steps), reading_process(read_by)
        is_read_here = reader is ReadBy.CALLER
        options = read_options(
            cache_name,
            host=host if is_read_here else schema_host or host,
            port=port if is_read_here else schema_port or port,
            local=local,
            part=part,
            page_size=page_size,
            username=username,
            password=password,
            certfile=certfile,
            keyfile=keyfile,
            cert_password=cert_password,
            assigned=assigned,
            allow_partial=allow_partial,
            fields=fields,
            fill=fill,
            variable=variable,
            nulls=nulls,
            as_text=as_text,
            where=where,
            where_args=where_args,
        )
        _check_following(follow, after, reader, options)
        if where is not None and not is_read_here:
            raise ConfigError(
                "where=: rows that the cluster picks out are read by this process alone, and not in a graph or on "
                "other TensorFlow servers. Read them where they are used, or filter() all rows"
            )
        source = open_source(replace(options, is_growing=follow))
        spec = _row_spec(source, element_spec)
        if follow:
            super().__init__(_followed(source, spec, options, after, is_meant=read_by is not None))
            return
        everything = replace(options, partitions=parse_partitions(part), assignment=None)
        count = _count(source, options)

        def whole() -> Recipe:
            every_row = open_source(everything)
            return Recipe(
                lambda order, passes: finished(
                    generated(every_row, spec, order, passes, is_meant=True), spec, is_share=False
                )
            )

        if is_read_here:
            is_share = options.partitions is not None or options.local
            recipe = Recipe(
                lambda order, passes: finished(
                    generated(source, spec, order, passes, is_meant=read_by is not None),
                    spec,
                    is_share=is_share,
                ),
                share=source.shard(options.assignment, counts=where is None),
                equal_steps=policy,
                whole=whole if assigned else None,
                uncounted=uncounted(options.assignment) if where is not None and options.assignment else None,
                count=count,
                permutes=can_permute(source.layout),
            )
        else:
            register_records()
            address = RecordAddress(
                source.cache,
                ASSIGNED if assigned else ALL,
                Endpoint(host or "localhost", port or DEFAULT_PORT) if host or port else None,
                part_text(parse_partitions(part)),
                local,
                page_size,
                THIS_PROCESS
                if read_by is None and not is_graph_mode() and not may_be_read_here_too()
                else None,
                source.snapshot.to_text() if source.snapshot else None,
                secrets=_kept(options, Given(username, password, certfile, keyfile, cert_password)),
            )
            recipe = Recipe(
                lambda order, _: finished(_recorded(source, spec, address, order), spec, is_share=True),
                is_elsewhere=True,
                whole=whole if assigned else None,
                count=count,
            )
        super().__init__(recipe)

    def __reduce__(self) -> Any:
        """Travel as its arguments, without credentials: a worker has its own, and its own rows."""
        return _dataset_of, (type(self), self._given)

    @classmethod
    def from_sql(
        cls,
        statement: str,
        args: Sequence[Any] = (),
        *,
        host: str | None = None,
        port: int | None = None,
        username: str | None = None,
        password: str | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
        cert_password: str | None = None,
        fill: Mapping[str, Any] | None = None,
        nulls: str | Iterable[str] | None = None,
        variable: Sequence[str] = (),
        assigned: bool = True,
        allow_partial: bool = False,
    ) -> PagedDataset:
        """Return the rows that a SELECT makes of those of one table: by the names that `SqlClient.query` gives them.

        Columns may be expressions; rows come from the nodes in pages, in no order that is promised, and each pass asks
        anew. In a run each worker has the rows of its own partitions, if the table's is the cache that the run was
        started for; nobody has counted them, as with `where`. What is made of all rows is refused: joins, groups,
        DISTINCT, LIMIT, aggregates, a SELECT within; so are two columns of one name.

        Args:
            statement: One SELECT, with a `?` for each of `args`.
            args: Bound on the nodes, never spliced into the text.
            host: As in `IgniteDataset`; so are the others.
            port: As there.
            username: As there.
            password: As there.
            certfile: As there.
            keyfile: As there.
            cert_password: As there.
            fill: What a null becomes, by column.
            nulls: Which columns have a boolean beside them that tells where they are null.
            variable: Columns of arrays of varying length.
            assigned: False gives each worker of a run all rows.
            allow_partial: As there.

        Raises:
            ConfigError: It is no such SELECT.
            QueryError: The cluster refuses it, or an argument.
            EmptyCache: It gives no row now, so that nothing tells what its rows look like.
            SchemaError: A column has no tensor form, or the first rows differ in type.
            RowsLost, LoadIncomplete, ConnectionFailed, AuthenticationError: As `IgniteDataset`.
        """
        given: dict[str, Any] = {
            "host": host,
            "port": port,
            "username": username,
            "password": password,
            "certfile": certfile,
            "keyfile": keyfile,
            "cert_password": cert_password,
        }
        connect = read_options("", assigned=False, **given).connect
        cache = cache_of(connect, statement, args)
        options = read_options(
            cache,
            assigned=assigned,
            allow_partial=allow_partial,
            fill=fill,
            nulls=nulls,
            variable=variable,
            **given,
        )
        if options.cache != cache:  # IGNITE_DATASET_CACHE_NAME is about datasets that name a cache
            options = replace(options, cache=cache, partitions=None, assignment=None)
        return rows_of(options, statement, args, assigned=assigned)


def _kept(options: ReadOptions, given: Given) -> str | None:
    """Keep passwords and certificates for readers of this process; None where the environment has said others."""
    found, tls = options.connect, options.connect.tls
    used = {found.username, found.password, *((tls.certfile, tls.keyfile, tls.key_password) if tls else ())}
    return keep(given) if used & set(filter(None, given)) else None


def _row_spec(source: Source, given: Any) -> Any:
    if source.layout is not None:
        return row_spec(source.layout)
    if given is None:
        raise EmptyCache(
            f"cache {source.cache!r} is empty, and nothing else tells what its rows look like; load rows, or give "
            "element_spec={'key': tf.TensorSpec([], tf.int64), 'val': {...}} to get a dataset without elements"
        )
    return given


def _check_following(follow: bool, after: int | None, reader: ReadBy, options: ReadOptions) -> None:
    if after is not None and not follow:
        raise ConfigError("after= leaves out rows of a cache that is followed: give follow=True as well")
    if follow and reader is not ReadBy.CALLER:
        raise ConfigError(
            "follow=True: rows that come are read by this process alone, and not in a graph or on other TensorFlow "
            "servers. Follow the cache where its rows are used"
        )
    if follow and options.where is not None:
        raise ConfigError(
            "follow=True, where=...: of rows that come nobody asks the condition; filter() them"
        )
    if follow and options.local:
        raise ConfigError(
            "follow=True, local=True: which partitions are on a node changes while rows come; name them: part=..."
        )


def _followed(
    source: Source, spec: Any, options: ReadOptions, after: int | None, *, is_meant: bool
) -> Recipe:
    """Return the recipe of rows that come without end."""
    layout = source.layout
    if layout is None:
        raise EmptyCache(
            f"cache {source.cache!r} is empty and no SQL table, so nothing tells how its rows are encoded; put a row "
            "before it is followed"
        )
    is_all = set(source.partitions) == set(source.baseline.owners)
    if not source.partitions:
        raise ConfigError(
            f"no partition of cache {source.cache!r} was assigned to this worker: start fewer workers"
        )

    def read() -> Iterator[Any]:
        if not is_meant:
            warn_if_connected()
        return FollowReader(
            source,
            after,
            None if is_all else source.partitions,
            lambda chunk: arranged(chunk.columns(), layout),
        )

    def pages(order: ShuffleOrder | None, passes: EpochTracker | None) -> Pages:
        del order, passes
        found = finished(ArrayDataset(read, page_spec(spec)), spec, is_share=True)
        return found.filter(lambda page: num_rows(page) > 0).apply(
            tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        )

    return Recipe(pages, uncounted=replace(uncounted(options.assignment), is_endless=True))


def _count(source: Source, options: ReadOptions) -> Callable[[], int | None] | None:
    """Return what asks how many rows there are, where the cluster knows it of those that are read.

    Not in a run: its workers ask at different times, and must make as many steps as the others. Not where a reading
    may find fewer rows than there are, as of SQL: only at its end it sees that, and nobody comes to that who counts.
    """
    is_known = source.layout is not None and set(source.partitions) == set(source.baseline.owners)
    is_exact = source.picked is None and not options.allow_partial
    return source.num_rows if is_known and is_exact and not options.is_in_run else None


def _recorded(source: Source, spec: Any, address: RecordAddress, order: ShuffleOrder | None) -> Pages:
    """Return pages that are read in the process where the dataset lives."""
    if address.secrets is not None:
        check_secrets_stay()
    return no_pages(spec) if source.layout is None else tfrecord_pages(address.uri(), source.layout, order)
