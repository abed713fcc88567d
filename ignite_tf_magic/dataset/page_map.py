"""Applies a function of one row to pages: vectorized, and row by row if a row makes it fail.

A page that fails as a whole would lose its good rows. It is therefore processed again row by row. Its rows come out in
pages of one, and the row that fails raises its own error, as in tf.data's own `map`; later steps such as
`ignore_errors` then see what they would see there. This costs half a millisecond per page, so functions that cannot
fail, which are most, skip it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.batches import empty_like

Pages = Any
# Operations that give a result for all values of their inputs.
_SAFE = frozenset(
    {
        *("Abs", "AddV2", "All", "Any", "Bitcast", "Cast", "Ceil"),
        *("ClipByValue", "Const", "Cos", "Equal", "Erf", "Exp", "Expm1"),
        *("Floor", "Greater", "GreaterEqual", "Identity", "IdentityN", "IsFinite", "IsInf"),
        *("IsNan", "LeakyRelu", "Less", "LessEqual", "Log", "Log1p", "LogicalAnd"),
        *("LogicalNot", "LogicalOr", "Max", "Maximum", "Mean", "Min", "Minimum"),
        *("Mul", "Neg", "NoOp", "NotEqual", "OnesLike", "Placeholder", "Prod"),
        *(
            "RandomUniform",
            "RandomStandardNormal",
            "ReadVariableOp",
            "RealDiv",
            "Reciprocal",
            "Relu",
            "Relu6",
        ),
        *("Rint", "Round", "Rsqrt", "Select", "SelectV2", "Shape", "Sigmoid"),
        *("Sign", "Sin", "Size", "Softmax", "Softplus", "Sqrt", "Square"),
        *(
            "SquaredDifference",
            "StatelessRandomGetKeyCounter",
            "StatelessRandomNormalV2",
            "StatelessRandomUniformV2",
            "Sub",
            "Sum",
            "Tanh",
        ),
        *("TruncatedNormal", "ZerosLike"),
    }
)
# The same if their shapes are known when the function is traced, and their other inputs are constant.
_SAFE_WHERE_STATIC = frozenset(
    {
        *("ArgMax", "ArgMin", "BroadcastTo", "ConcatV2", "Cumsum", "ExpandDims", "Fill"),
        *("OneHot", "Pack", "Pad", "PadV2", "Reshape", "ReverseV2", "Squeeze"),
        *("StridedSlice", "Tile", "Transpose", "Unpack"),
    }
)
# The same for floats; integers cannot be divided by zero.
_SAFE_FOR_FLOATS = frozenset({"FloorDiv", "FloorMod", "Pow", "DivNoNan"})


def map_pages(
    pages: Pages,
    function: Callable[..., Any],
    row_spec: Any,
    num_parallel_calls: Any,
    deterministic: bool | None,
    name: str | None,
) -> Pages:
    """Apply a function of one row to whole pages.

    Raises:
        ValueError, TypeError, NotImplementedError, tf.errors.OpError: TensorFlow cannot vectorize it.
    """
    is_tuple = isinstance(row_spec, tuple)
    on_row = partial(_call, function, is_tuple)

    def on_page(*page: Any) -> Any:
        return tf.vectorized_map(on_row, page if is_tuple else page[0], fallback_to_while_loop=False)

    if not can_fail(on_row, row_spec):
        return pages.map(on_page, num_parallel_calls, deterministic, name=name)

    tried = pages.map(partial(_try, on_page, is_tuple), num_parallel_calls, deterministic, name=name)
    return tried.flat_map(partial(_finish, function), name=name)


def _try(on_page: Callable[..., Any], is_tuple: bool, *page: Any) -> Any:
    """Return whether the function succeeded on the whole page, its result, and the page."""
    value = page if is_tuple else page[0]
    done = tf.data.Dataset.from_tensors(value).map(on_page)
    makes_tuple = isinstance(done.element_spec, tuple)
    nothing = tf.data.Dataset.from_tensors((False, empty_like(done.element_spec)))
    marked = done.ignore_errors().map(lambda *result: (True, result if makes_tuple else result[0]))
    return *marked.concatenate(nothing).take(1).get_single_element(), value


def _finish(function: Callable[..., Any], is_done: Any, result: Any, page: Any) -> Pages:
    whole = tf.data.Dataset.from_tensors(result).take(tf.cast(is_done, tf.int64))
    rows = tf.data.Dataset.from_tensors(page).unbatch().map(function).batch(1)
    return whole.concatenate(rows.take(tf.where(is_done, tf.constant(0, tf.int64), -1)))


def can_fail(on_row: Callable[..., Any], row_spec: Any) -> bool:
    """Return whether some value of a row may make the function raise, judged by its operations."""
    return not all(map(_is_safe, _operations_of(on_row, row_spec)))


def depends_on_row_alone(function: Callable[..., Any], row_spec: Any) -> bool:
    """Return whether a function's result depends only on its row: no random numbers, counters or Python."""
    try:
        operations = _operations_of(partial(_call, function, isinstance(row_spec, tuple)), row_spec)
    except (ValueError, TypeError, NotImplementedError, tf.errors.OpError):
        return False
    return not any(operation.op_def.is_stateful for operation in operations)


def _call(function: Callable[..., Any], is_tuple: bool, row: Any) -> Any:
    return function(*row) if is_tuple else function(row)


def _operations_of(on_row: Callable[..., Any], row_spec: Any) -> Any:
    return tf.function(on_row).get_concrete_function(row_spec).graph.get_operations()


def _is_safe(operation: Any) -> bool:
    if operation.type in _SAFE:
        return True
    if operation.type in _SAFE_FOR_FLOATS:
        return bool(operation.outputs[0].dtype.is_floating)
    if operation.type not in _SAFE_WHERE_STATIC:
        return False
    tensors = (*operation.inputs, *operation.outputs)
    if not all(tensor.shape.is_fully_defined() for tensor in tensors):
        return False
    # The first input is the value and the others control the operation; joining operations take only values.
    is_joining = operation.type in ("ConcatV2", "Pack", "OneHot")
    return is_joining or all(tensor.op.type == "Const" for tensor in list(operation.inputs)[1:])
