"""Collects this package's uses of TensorFlow's private API, each with its reason and a check.

TensorFlow 2.15 to 2.21 have all of it. Another version may change any of it: `changed` then names the change, and so do
a test and `make versions`, which checks every supported version. Private modules that are only named, never used, are
elsewhere: in `runs.deferred_imports`, which loads no TensorFlow, and `training.untrusted_models`.
"""

from __future__ import annotations

import gc
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.eager import context as eager
from tensorflow.python.eager.executor import Executor
from tensorflow.python.framework import config

# Base class of an iterator that counts what it waits for: no public class can be derived from.
OwnedIterator = iterator_ops.OwnedIterator

# Every way to make an iterator of a graph calls these. They are replaced to refuse an iterator that would read another
# task's rows. A dataset of TensorFlow 2 is adapted first.
ITERATOR_MAKERS = ("_make_one_shot_iterator", "_make_initializable_iterator")

# The local variable of an iterator's `next` for the executor that it makes.
_EXECUTOR_OF_NEXT = "executor_new"

# Kinds of datasets that give one batch for each batch of their input, in its order. Only the class shows what a dataset
# does; there is no public way to ask.
ONE_FOR_ONE = frozenset(
    f"_{name}Dataset"
    for name in (
        *("Map", "ParallelMap", "Prefetch", "Options", "AssertCardinality", "Concatenate", "TakeWhile"),
        "Zip",  # takes an element of each; `enumerate` is one, too
    )
)


def variant_of(dataset: Any) -> Any:
    """Return the tensor that represents a dataset; a class derived from tf.data.Dataset is made with it."""
    return dataset._variant_tensor


def inputs_of(dataset: Any) -> list[Any]:
    """Return the input datasets of a dataset, to find the source at its start."""
    return list(dataset._inputs())


def source_tensors(dataset: Any) -> list[Any]:
    """Return the tensors that a dataset's sources slice, including file names; generators have none."""
    found: list[Any] = []
    waiting, seen = [dataset], set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            found += getattr(one, "_tensors", [])
            waiting += inputs_of(one)
    return found


def keeps_order(dataset: Any) -> bool:
    """Return whether a dataset keeps the order of its input; `map` with deterministic=False does not."""
    return getattr(dataset, "_deterministic", "") != "false"


def mark_operation(operation: Any, name: str) -> None:
    """Set an attribute of an operation in a graph, visible to everyone who reads the graph."""
    operation._set_attr(name, tf.compat.v1.AttrValue(b=True))


def server_def() -> Any:
    """Return this process's role in a cluster of TensorFlow servers; None without a cluster.

    Publicly only strategies show it.
    """
    return eager.context().get_server_def()


def own_address_space() -> str:
    """Return the prefix of the names of this process's own devices."""
    return str(eager.context().host_address_space())


def forget_end(error: StopIteration) -> None:
    """Make the executor of an iterator's `next` forget the end that `next` has raised.

    For an iterator on another server, `next` makes an executor that only its own frames reference. The executor keeps
    the error that signals the end. When the executor is removed, it writes that error to standard error, as an ignored
    one.
    """
    told: BaseException | None = error
    while told is not None:
        for frame, _ in traceback.walk_tb(told.__traceback__):
            if isinstance(executor := frame.f_locals.get(_EXECUTOR_OF_NEXT), Executor):
                executor.clear_error()
        told = told.__context__


def end_iterators() -> None:
    """Destroy all iterators over datasets that Python holds; nobody can use them afterwards.

    TensorFlow has no public way to find iterators, or to end one that is still referenced.
    """
    for each in gc.get_objects():
        if isinstance(each, OwnedIterator):
            vars(each).pop("_iterator_resource", None)


def abort_collectives(reason: str) -> None:
    """Abort all of this process's collective operations, waiting ones too.

    They raise tf.errors.AbortedError with the reason.
    """
    eager.context().abort_collective_ops(tf.errors.ABORTED, reason)


def global_seed() -> int | None:
    """Return the seed passed to tf.random.set_seed."""
    found: int | None = eager.global_seed()
    return found


def is_deterministic() -> bool:
    """Return whether operations must be deterministic, which forbids some of them.

    `enable_op_determinism` has no public getter.
    """
    return bool(config.is_op_determinism_enabled())


def seed_state() -> Any:
    """Return the state of the generator that seeds operations without a seed of their own.

    It exists only if there is a global seed.
    """
    return eager.context()._rng.getstate()


def draw_seeds(seed: int, state: Any) -> None:
    """Make new operations draw their seeds from a global seed and a generator in the given state.

    Existing operations continue their sequences. `tf.random.set_seed` would restart all of them, and make functions
    trace again at their next call.
    """
    context = eager.context()
    context._seed = seed
    context._rng.setstate(state)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function converted by AutoGraph, if AutoGraph is active.

    Keras converts a loss's `call` this way. The public `tf.autograph.to_graph` always converts, even what runs eagerly
    or is marked not to be converted.
    """
    autograph = tf.__internal__.autograph
    made: Callable[..., Any] = autograph.tf_convert(function, autograph.control_status_ctx())
    return made


@contextmanager
def connecting(leader: str, filters: tuple[str, ...]) -> Iterator[Any]:
    """Let this process's TensorFlow reach others; yields TensorFlow's eager context.

    The block must set a server in the context. The public way, a strategy, also starts a coordination service. That
    service makes a worker wait for all others at its start, and ends those that still run when the first one has ended.

    Raises:
        RuntimeError: TensorFlow has started already.
    """
    found = eager.context()
    found.configure_collective_ops(
        collective_leader=leader,
        scoped_allocator_enabled_ops=("CollectiveReduce",),
        device_filters=filters,
    )
    yield found
    # The server starts with the first eager operation. A script of TensorFlow 1 has none: it starts its own server,
    # whose sessions take this configuration by default and would see no other worker.
    found._collective_device_filters = None
    # A strategy of the script's own would start this server anew. Workers that had already contacted the old server
    # would then wait forever. Nor does it check the health of the others: their launcher does.
    CollectiveAllReduceExtended._std_server_started = True
    CollectiveAllReduceExtended._enable_check_health = False
    initialize = CollectiveAllReduceExtended._initialize_multi_worker

    def initialize_later(strategy: Any, *arguments: Any, **options: Any) -> None:
        """Start the server before a strategy asks for settings that a running server cannot take."""
        found._collective_device_filters = filters  # the context refuses other filters
        if tf.executing_eagerly():
            found.ensure_initialized()
        initialize(strategy, *arguments, **options)

    CollectiveAllReduceExtended._initialize_multi_worker = initialize_later


def set_server(server: Any, retries: int = 0) -> None:
    """Set this process's server among others, before its first eager operation starts the server.

    The public way, `tf.config.experimental_connect_to_cluster`, starts TensorFlow at once: afterwards no option of it
    could be set, and eager execution could not be left out.

    Args:
        server: The servers, and which of them this process is.
        retries: The number of attempts to reach them.
    """
    eager.context().set_server_def_retries(retries)
    eager.context().set_server_def(server)


def renew_servers() -> None:
    """Connect to servers whose processes have replaced others; everything on the old ones is lost.

    The only public way is ClusterCoordinator. Blocks until all of them answer.

    Raises:
        tf.errors.OpError: One of them does not answer.
    """
    eager.context().update_server_def(server_def())


def is_known(device: str) -> bool:
    """Ask a server whether it is still the one that this process knows, not a replacement."""
    return bool(eager.context().check_alive(device))


def changed() -> dict[str, str]:
    """Return what this TensorFlow has changed of the private API, by name; empty if nothing.

    The checks make operations, so TensorFlow has started afterwards.
    """
    found = {}
    for name, check in _CHECKS.items():
        try:
            problem = check()
        except Exception as error:  # noqa: BLE001 - whatever another version does
            problem = repr(error)
        if problem:
            found[name] = str(problem)
    return found


def _lacking(thing: Any, *names: str) -> str:
    return ", ".join(f"{thing!r} has no {name}" for name in names if not hasattr(thing, name))


def _changed_kinds() -> str:
    numbers = tf.data.Dataset.range(3)
    made = {
        "Map": numbers.map(tf.identity),
        "ParallelMap": numbers.map(tf.identity, num_parallel_calls=2),
        "Prefetch": numbers.prefetch(1),
        "Options": numbers.with_options(tf.data.Options()),
        "AssertCardinality": numbers.apply(tf.data.experimental.assert_cardinality(3)),
        "Concatenate": numbers.concatenate(numbers),
        "TakeWhile": numbers.take_while(lambda number: number < 2),
        "Zip": tf.data.Dataset.zip((numbers, numbers)),
    }
    kinds = {type(each).__name__ for each in made.values()}
    odd = kinds ^ ONE_FOR_ONE
    inputs = all(numbers is inputs_of(each)[0] for each in made.values())
    unordered = numbers.map(tf.identity, num_parallel_calls=2, deterministic=False)
    sliced = tf.data.Dataset.from_tensor_slices({"a": [1, 2], "b": [3, 4]}).batch(2).map(lambda each: each)
    if [each.numpy().tolist() for each in source_tensors(sliced)] != [[1, 2], [3, 4]]:
        return "what a dataset slices cannot be told"
    if keeps_order(unordered) or not keeps_order(made["ParallelMap"]):
        return "whether a map keeps the order cannot be told"
    return f"other kinds: {sorted(odd)}" if odd else "" if inputs else "inputs are others"


def _changed_graph() -> str:
    with tf.Graph().as_default():
        dataset = tf.compat.v1.data.Dataset.range(1)
        operation = variant_of(dataset).op
        mark_operation(operation, "_mark")
        lacking = _lacking(tf.compat.v1.data.Dataset, *ITERATOR_MAKERS)
        return lacking or ("" if operation.node_def.attr["_mark"].b else "the mark is not there")


def _changed_seeds() -> str:
    tf.random.set_seed(7)
    made = tf.function(lambda: tf.random.uniform([]))
    first, state, numbers = float(made()), seed_state(), []
    for _ in range(2):
        draw_seeds(8, state)
        numbers.append(tf.function(lambda: tf.random.uniform([]))())
    if global_seed() != 8:
        return f"the global seed is {global_seed()!r}"
    if float(numbers[0]) != float(numbers[1]):
        return "the state of the seeds is kept elsewhere"
    return "what was made begins anew" if float(made()) == first else ""


def _changed_strategy() -> str:
    written = inspect.getsource(CollectiveAllReduceExtended)
    names = ("_std_server_started", "_enable_check_health", "_initialize_multi_worker")
    return ", ".join(f"no {name}" for name in names if name not in written)


def _changed_executors() -> str:
    is_so = f"{_EXECUTOR_OF_NEXT} = " in inspect.getsource(eager.execution_mode)
    return _lacking(Executor, "clear_error") if is_so else f"no {_EXECUTOR_OF_NEXT}"


_CHECKS: dict[str, Callable[[], str]] = {
    "OwnedIterator": lambda: _lacking(OwnedIterator, "_next_internal", "get_next_as_optional", "_type_spec"),
    "IteratorSpec": lambda: _lacking(tf.data.IteratorSpec, "value_type", "_from_components", "from_value"),
    "tf.data": _changed_kinds,
    "tf.compat.v1.data": _changed_graph,
    "random seeds": _changed_seeds,
    "eager context": lambda: _lacking(
        eager.context(),
        *("configure_collective_ops", "enable_collective_ops", "ensure_initialized", "config"),
        *("_collective_device_filters", "get_server_def", "host_address_space"),
        *("set_server_def", "set_server_def_retries", "update_server_def", "check_alive"),
    ),
    "CollectiveAllReduceExtended": _changed_strategy,
    "Executor": _changed_executors,
    "autograph": lambda: _lacking(tf.__internal__.autograph, "tf_convert", "control_status_ctx"),
    "determinism": lambda: _lacking(config, "is_op_determinism_enabled"),
}
