"""Defines `IgniteDataset`, with the signature that users of tensorflow-io know."""

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

    Iterating reads all owners in parallel, each for its own primary partitions. Connections stay open for 10 s after a
    pass, for the next one. The order of the rows depends only on the data and the owners. See `PagedDataset` for what
    makes `batch`, `map` and `shuffle` fast.

    The dataset turns tf.data's autotuner off, because the autotuner delays the end of a pass. Transformations with
    AUTOTUNE still run in parallel, and `with_options` turns the autotuner on again.

    Scalar types: byte int8, short int16, int int32, long int64, float float32, double and decimal float64, char uint16,
    boolean bool, enum int32 (its ordinal). SQL's date and time are int64 milliseconds. A timestamp and a java.util.Date
    are instants, int64 nanoseconds since 1970, and may share a column.
    Strings and arrays: String, UUID and byte[] of varying length are strings; byte[] of one length is uint8[n]. Other
    primitive arrays are tensors if all have one length, else ragged.
    Collections: String[] and other such arrays, and collections of one of these types, are ragged. A map becomes two
    columns: NAME_keys and NAME_values, or keys and values if the map is the value itself. A list of objects has a
    column for each of their fields, NAME_FIELD. A list that is the value itself and holds nulls becomes two columns,
    items and null_items.
    Objects of several types have the fields of all types; a field is null in rows whose own type lacks it. A field of
    any other type is left out with a warning; if `fields` names it, it is an error.
    Null is NaN in float columns and the empty string in string columns. In other columns a null is 0, and an extra
    boolean column marks the nulls (`nulls`), unless `fill` names a value. A null in a field that has none in the
    sampled rows is an error.

    For every argument up to `cert_password`, the environment variable IGNITE_DATASET_ plus the argument's name
    overrides the argument. A script therefore runs unchanged on each worker and reads the part that the worker's
    launcher assigned.

    In two cases another process may read the rows: this process sends work to other TensorFlow servers
    (`ParameterServerStrategy`, `tf.config.experimental_connect_to_cluster`), or it builds a graph for a `tf.compat.v1`
    session. The process that the dataset lives in then reads the rows. As everywhere in TensorFlow, that is the process
    of the `tf.device` in which the dataset is made, or the worker that runs the function making it. In a graph, a
    dataset made outside the `tf.device` of its iterator is still read on the iterator's device; if `batch` or tf.data
    has transformed that dataset, the iterator is an error.
    This process can read such a dataset. Any other process must have called `ignite_tf_magic.register()`; workers of a
    run have done so. The reading process reads what its own environment assigns to it, with its own credentials.
    Passwords and certificates passed here serve this process alone; they are an error if another process is known to
    read. Cache, fields and options are those passed here. This process samples some rows to learn their types.
    `equal_steps` has no effect in these cases, because only a worker knows its share.

    Args:
        cache_name: Name of the cache, or of its SQL table.
        host: A node to ask first. Default: the configured cluster, else the embedded one, else localhost.
        port: Its client port, 10800 by default.
        local: Read only partitions whose primary copy is on that node.
        part: A partition, several, or ranges such as "0-127,200". Default: all.
        page_size: Upper limit for the rows of a scan page. `client.page_sizes` limits the bytes in any case.
        username: For a cluster with authentication.
        password: Its password.
        certfile: PEM file for TLS with the certificate; it may also contain the key and the authorities.
        keyfile: PEM file of the key, if the key is not in `certfile`.
        cert_password: Password of the key.
        schema_host: A node that this process asks for the types of the rows, if the dataset's operations read the rows
            later, perhaps in another process. Default: `host`.
        schema_port: Its client port. Default: `port`.
        fields: Names of the value's fields to keep, as rows spell them ("owner.name") or as their SQL columns are
            called; None keeps all. A name that fits two fields is an error. If the fields are a small part of a row,
            and columns of the cache's table, the nodes send nothing else.
        where: An SQL condition over the columns of the cache's table, with `?` for values, such as `"LABEL < ?"`. Only
            rows that satisfy it are read. The nodes evaluate it, using indexes if there are any, and send no other
            rows. Rows that are not of the table's types never satisfy it. The number of matching rows is unknown, so
            the workers of a run agree before each step whether any of them has rows.
        where_args: The values.
        fill: The value that replaces a null, by field name.
        nulls: Which fields get an extra boolean column NAME_is_null that marks their nulls. The field itself is 0 in
            those rows, unless `fill` names another value. None: the fields whose type has no null value (integers,
            booleans, dates, enums), if the sampled rows contain a null in them. "mask": all fields of such types.
            Names: these fields, of any type except objects. "error": no field.
        variable: Fields with arrays of varying length, for which the sampled rows do not show it.
        as_text: Fields to read as text: decimals with all digits, enums by their names, times of the years 1 to 9999 in
            ISO 8601 (a date's day, a timestamp with nanoseconds in UTC), numbers, booleans.
        equal_steps: What `batch` does in a run with an epoch's last batch if the rows do not fill it. "pad" (default)
            keeps the smaller batch, so every row occurs once; "drop" leaves it out; "repeat" fills it up.
        assigned: False reads the whole cache even inside a run.
        allow_partial: True reads what is left of a cache that has lost rows with a node, or whose load has not ended.
            The environment variable IGNITE_DATASET_ALLOW_PARTIAL, set in runs started with `--allow-partial`, does the
            same.
        element_spec: Structure of a row, needed only for a cache that may be empty.
        follow: Yield the existing rows and then, endlessly, rows as they are put; `take`, or `steps_per_epoch` of
            Keras, ends it. Each row comes at least once, even if nodes are lost, as long as their partitions have
            copies. Rows come in no particular order, but the newest value of a row that is put again comes last. Each
            iteration starts from the beginning. In a run, workers follow their own partitions, and a batch waits until
            every worker has its part of it. See `follow` in docs/data.md.
        after: With `follow`: leave out existing rows whose keys, which must be whole numbers, are not larger.
        read_by: "worker" or "caller" (this process), if the choice described above is wrong.

    Raises:
        CacheNotFound: No such cache; the error lists similar names.
        CacheNameError: Several caches have SQL tables of that name.
        RowsLost, LoadIncomplete: The cache holds fewer rows than it had, or than were to be loaded. If that may be
            intended, it is a warning.
        EmptyCache: The cache is empty and `element_spec` was not passed.
        SchemaError: The rows have no common layout.
        ConnectionFailed, AuthenticationError: The cluster cannot be reached; the message lists what was tried.
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
        object.__setattr__(self, "_given", given)  # bypasses TensorFlow's attribute tracking
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
                "where=: rows that match a condition are read by this process alone, and not in a graph or on other "
                "TensorFlow servers. Read them where they are used, or filter() all rows"
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
        """Pickle the arguments without credentials: each worker has its own credentials and rows."""
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
        """Return the rows that a SELECT yields from one table, named as `SqlClient.query` names them.

        Columns may be expressions. The nodes send the rows in pages, in no guaranteed order, and each pass runs the
        query again. In a run each worker has the rows of its own partitions, if the table belongs to the cache that the
        run was started for; as with `where`, their number is unknown. Statements that combine rows are an error: joins,
        groups, DISTINCT, LIMIT, aggregates, a nested SELECT. So are two columns of one name.

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
            fill: The value that replaces a null, by column.
            nulls: Which columns get an extra boolean column that marks their nulls.
            variable: Columns of arrays of varying length.
            assigned: False gives each worker of a run all rows.
            allow_partial: As there.

        Raises:
            ConfigError: The statement is not such a SELECT.
            QueryError: The cluster rejects the statement or an argument.
            EmptyCache: The statement yields no row now, so the layout of its rows is unknown.
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
        if options.cache != cache:  # IGNITE_DATASET_CACHE_NAME is for datasets that name a cache
            options = replace(options, cache=cache, partitions=None, assignment=None)
        return rows_of(options, statement, args, assigned=assigned)


def _kept(options: ReadOptions, given: Given) -> str | None:
    """Keep passwords and certificates for readers in this process, and return their token.

    Returns None if the environment overrides all of them.
    """
    found, tls = options.connect, options.connect.tls
    used = {found.username, found.password, *((tls.certfile, tls.keyfile, tls.key_password) if tls else ())}
    return keep(given) if used & set(filter(None, given)) else None


def _row_spec(source: Source, given: Any) -> Any:
    if source.layout is not None:
        return row_spec(source.layout)
    if given is None:
        raise EmptyCache(
            f"cache {source.cache!r} is empty, so the types of its rows are unknown; load rows, or pass "
            "element_spec={'key': tf.TensorSpec([], tf.int64), 'val': {...}} to get a dataset without elements"
        )
    return given


def _check_following(follow: bool, after: int | None, reader: ReadBy, options: ReadOptions) -> None:
    if after is not None and not follow:
        raise ConfigError("after= works only with a cache that is followed: give follow=True as well")
    if follow and reader is not ReadBy.CALLER:
        raise ConfigError(
            "follow=True: new rows are read by this process alone, and not in a graph or on other TensorFlow "
            "servers. Follow the cache where its rows are used"
        )
    if follow and options.where is not None:
        raise ConfigError("follow=True, where=...: the condition is not applied to new rows; filter() them")
    if follow and options.local:
        raise ConfigError(
            "follow=True, local=True: the partitions of a node change while rows arrive; name them: part=..."
        )


def _followed(
    source: Source, spec: Any, options: ReadOptions, after: int | None, *, is_meant: bool
) -> Recipe:
    """Return the recipe of an endless stream of rows."""
    layout = source.layout
    if layout is None:
        raise EmptyCache(
            f"cache {source.cache!r} is empty and has no SQL table, so the encoding of its rows is unknown; "
            "write a row before you follow it"
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
    """Return a function that asks for the number of rows; None if the cluster cannot know it.

    The number is unknown in a run: workers ask at different times but must make equally many steps. It is also unknown
    if a pass may find fewer rows than the cache has, as with SQL. Only the end of the pass shows that, and a caller
    that stops at the counted number of batches never reaches the end.
    """
    is_known = source.layout is not None and set(source.partitions) == set(source.baseline.owners)
    is_exact = source.picked is None and not options.allow_partial
    return source.num_rows if is_known and is_exact and not options.is_in_run else None


def _recorded(source: Source, spec: Any, address: RecordAddress, order: ShuffleOrder | None) -> Pages:
    """Return pages that are read in the process where the dataset lives."""
    if address.secrets is not None:
        check_secrets_stay()
    return no_pages(spec) if source.layout is None else tfrecord_pages(address.uri(), source.layout, order)
