"""Makes a model's input from rows: chooses fields by the names of its inputs, or calls the user's own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ignite_tf_magic.errors import PredictionMismatch

Prepare = Callable[[Any], Any]


def input_batches(rows: Any, model: Any, batch_rows: int, prepare: Prepare | None, cache: str) -> Any:
    """Return batches of a model's input, in the order of the rows.

    Args:
        rows: Dataset of {"key": ..., "val": ...}.
        model: The model.
        batch_rows: Number of rows in a batch.
        prepare: Makes the input from a row's value; the first item of a tuple is used, as in Keras' own `predict`. None
            takes the fields that have the inputs' names, or the only field.
        cache: Name of the cache, for messages.

    Raises:
        PredictionMismatch: The model does not accept this input; the message says what it accepts.
    """
    if prepare is None:
        choose = _choice(rows.element_spec["val"], model, cache)
        found = rows.batch(batch_rows).map(lambda row: choose(row["val"]))
        spec = choose(rows.element_spec["val"])
    else:
        prepared = rows.map(_of_row(prepare))
        found, spec = prepared.batch(batch_rows), prepared.element_spec
    check_fit(spec, model, cache)
    return found.prefetch(1)


def _of_row(prepare: Prepare) -> Callable[[Any], Any]:
    def made(row: Any) -> Any:
        prepared = prepare(row["val"])
        return prepared[0] if isinstance(prepared, tuple) else prepared

    made.__qualname__ = getattr(
        prepare, "__qualname__", repr(prepare)
    )  # the name that messages of `map` show
    return made


def _choice(value: Any, model: Any, cache: str) -> Callable[[Any], Any]:
    """Return a function that chooses the model's input from a row's value."""
    if not isinstance(value, Mapping):
        return lambda given: given
    names = [name for name, _ in inputs_of(model)]
    if names and set(names) <= value.keys():
        return lambda given: given[names[0]] if len(names) == 1 else {name: given[name] for name in names}
    if len(names) < 2 and len(value) == 1:
        (only,) = value
        return lambda given: given[only]
    raise PredictionMismatch(
        f"cache {cache!r} has the fields {', '.join(value)}, and the model's inputs are "
        f"{', '.join(names) or 'nothing'}, which do not match. Name the field (fields=['NAME'], --field NAME), "
        "or pass a function that turns a row's value into the input (prepare=)"
    )


def inputs_of(model: Any) -> list[tuple[str, tuple[int | None, ...]]]:
    """Return names and shapes of a model's inputs; an empty list if the model does not declare them."""
    try:
        found = model.inputs
    except (AttributeError, ValueError):
        return []
    names = getattr(model, "input_names", None) or [each.name for each in found or ()]
    return [(str(name), tuple(each.shape)) for name, each in zip(names, found or (), strict=True)]


def check_fit(spec: Any, model: Any, cache: str) -> None:
    """Raise an error if the model does not accept the input's shape.

    Raises:
        PredictionMismatch: The shapes differ; the message contains both.
    """
    inputs = inputs_of(model)
    given = _by_input(spec, [name for name, _ in inputs])
    for (name, shape), each in zip(inputs, given, strict=False):
        if not isinstance(each, tf.TensorSpec) or each.shape.rank is None:
            continue
        if not _fits((None, *each.shape.as_list()), shape):
            raise PredictionMismatch(
                f"the model's input {name!r} has the shape {_shown(shape)}, and the rows of cache {cache!r} have "
                f"{_shown((None, *each.shape.as_list()))} ({each.dtype.name}); reshape it: prepare=FUNCTION"
            )


def _by_input(spec: Any, names: Sequence[str]) -> list[Any]:
    """List the parts of an input in the order of the model's inputs; an empty list leaves the check to Keras."""
    if isinstance(spec, Mapping):
        return [spec[name] for name in names] if set(names) <= spec.keys() else []
    flat = tf.nest.flatten(spec)
    return flat if len(flat) == len(names) else []


def _fits(given: tuple[int | None, ...], wanted: tuple[int | None, ...]) -> bool:
    """Return whether Keras accepts a shape for another one: it adds or removes a last dimension of 1."""
    shapes = [given, (*given, 1), *([given[:-1]] if given[-1] == 1 and len(given) > 1 else [])]
    return any(
        len(shape) == len(wanted)
        and all(None in pair or pair[0] == pair[1] for pair in zip(shape, wanted, strict=True))
        for shape in shapes
    )


def _shown(shape: Sequence[int | None]) -> str:
    return f"({', '.join('rows' if not place else str(size) for place, size in enumerate(shape))})"
