"""Writes a starter script: plain Keras that learns one column of a cache. Pure functions."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ignite_tf_magic.errors import ConfigError

if TYPE_CHECKING:
    from ignite_tf_magic.session import CacheColumns, ColumnInfo, ColumnProfile

_LABELS = ("label", "labels", "target", "class", "y", "species")
_NUMBERS = re.compile(r"bool|u?int\d+|float\d+")
# Datasets deliver these types as integers, too, but they are not quantities.
_NO_NUMBERS = re.compile(r"\b(date|time|timestamp|char|uuid|enum)\b")
_FILLED_IN = re.compile(r"[{}$\x00-\x1f\x7f]")  # what IPython expands, and what ends a line
_MOST_CLASSES = 1000
_BATCH_ROWS, _EPOCHS = 128, 5
_CROSSENTROPY = "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"


@dataclass(frozen=True, slots=True)
class _Objective:
    """The parts of a script that depend on the label.

    Attributes:
        before: Lines before the functions.
        label: Code for the label of a row.
        filters: Code after the dataset that maps rows to examples and drops rows without a label.
    """

    label: str
    outputs: int
    loss: str
    metric: str
    before: str = ""
    filters: str = ""


def labels_of(columns: CacheColumns) -> tuple[str, ...]:
    """Return the columns of the values that can be labels, the likeliest first."""
    names = [each.name for each in columns.columns if _can_be_label(each)]
    return tuple(sorted(names, key=lambda name: (_rank(name), name != names[-1])))


def chosen_label(columns: CacheColumns, wanted: str | None = None) -> str:
    """Return the label: the wanted column, or else the likeliest one.

    Raises:
        ConfigError: The wanted column cannot be a label, or no column can.
        SchemaError: The name matches no column, or several.
    """
    labels = labels_of(columns)
    if not labels:
        raise ConfigError(
            f"cache {columns.cache} has no column to predict (a single number or text in each row)"
        )
    if wanted is None:
        return labels[0]
    found = columns.find(wanted, "--label").name
    if found not in labels:
        raise ConfigError(
            f"--label {wanted} cannot be predicted; columns of {columns.cache} that can: {', '.join(labels)}"
        )
    return found


def _rank(name: str) -> int:
    last = _last(name).lower()
    return _LABELS.index(last) if last in _LABELS else len(_LABELS)


def _can_be_label(column: ColumnInfo) -> bool:
    is_text = column.dtype == "string" and column.type.startswith("string")
    return not column.is_key and column.shape == () and (is_text or _is_numeric(column))


def _is_numeric(column: ColumnInfo) -> bool:
    is_number = column.dtype is not None and _NUMBERS.fullmatch(column.dtype) is not None
    return is_number and _NO_NUMBERS.search(column.type) is None


def draft_of(columns: CacheColumns, profile: ColumnProfile) -> str:
    """Return a script that learns a column from the numeric columns beside it. It drops rows without a label.

    Args:
        columns: The columns of the cache.
        profile: The profile of the label column.

    Raises:
        ConfigError: There are no numeric columns to learn from, or a text label has too many different values.
    """
    others = [each for each in columns.columns if each.name != profile.name and not each.is_key]
    features = [each for each in others if _is_numeric(each) and None not in each.shape]
    if not features:
        raise ConfigError(
            f"cache {columns.cache} has no inputs to predict {profile.name} from: numbers, or arrays of one length"
        )
    aim = _objective_of(profile)
    width = sum(math.prod(size or 0 for size in each.shape) for each in features)
    left_out = [_visible(each.name) for each in others if each not in features]
    note = (
        f"# Left out, because they are not numbers or vary in length: {', '.join(left_out)}\n"
        if left_out
        else ""
    )
    numbers = "".join(f"        column({', '.join(_place(each.name))}),\n" for each in features)
    return f'''\
import keras
import tensorflow as tf

from ignite_tf_magic import IgniteDataset
{aim.before}

def column(fields, name):
    """The numbers of a column in a row; NaN where one is missing."""
    numbers = tf.cast(fields[name], tf.float32)
    return tf.reshape(tf.where(fields.get(f"{{name}}_is_null", False), float("nan"), numbers), [-1])


def example(row):
    """Return the inputs of a row as one vector, and its label."""
    numbers = [
{numbers}    ]
    vector = tf.concat(numbers, 0)
    is_known = tf.math.is_finite(vector)
    # A missing number is a 0 here, and a 1 in the second half.
    return tf.concat([tf.where(is_known, vector, 0.0), tf.cast(~is_known, tf.float32)], 0), {aim.label}


{note}rows = IgniteDataset({_quoted(columns.cache)}){aim.filters}.shuffle(10_000).batch({_BATCH_ROWS})
model = keras.Sequential(
    [
        keras.Input([{2 * width}]),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(64, "relu"),
        keras.layers.Dense({aim.outputs}),
    ]
)
model.compile("adam", {aim.loss}, metrics=["{aim.metric}"])
model.fit(rows, epochs={_EPOCHS}, verbose=2)
'''


def start_words(cache: str, options: Sequence[str]) -> list[str]:
    """Return the words of the command that starts a script on a cache.

    Raises:
        ConfigError: The cache's name looks like an option.
    """
    if cache.startswith("-"):
        raise ConfigError(f"cache {cache[:80]!r} begins with -, so a command takes it for an option")
    return ["start", cache, *options]


def magic_cell(words: Sequence[str], script: str) -> str:
    """Return the text of a notebook cell that starts a script.

    Args:
        words: The command after our magic's name.
        script: The script.

    Raises:
        ConfigError: A word contains characters that IPython would expand, or that end the line.
    """
    for word in words:
        if _FILLED_IN.search(word):
            raise ConfigError(
                f"{word[:80]!r} cannot stand in the first line of a cell, where IPython fills in variables; "
                "a shell prints the script: ignite-tf draft"
            )
    return f"%%ignite_tf {shlex.join(words)}\n{script}"


def _objective_of(profile: ColumnProfile) -> _Objective:
    place = _place(profile.name)
    value = "{}[{}]".format(*place)
    of_sample = bool(profile.estimated & {"classes", "least", "num_nulls"})
    said = "\n# By a sample of the rows: another class is an error.\n" if of_sample else ""
    may_be_null = profile.num_nulls > 0 or of_sample
    if profile.kind == "boolean" or (profile.kind == "integer" and _are_numbered(profile)):
        is_null = f"{place[0]}.get({_quoted(f'{_last(profile.name)}_is_null')}, False)"
        with_label = f".filter(lambda row: tf.logical_not({is_null}))" if may_be_null else ""
        outputs = 2 if profile.kind == "boolean" else int(profile.greatest) + 1
        label = f"tf.cast({value}, tf.int32)"
        return _Objective(label, outputs, _CROSSENTROPY, "accuracy", said, f"{with_label}.map(example)")
    if profile.kind == "text":
        classes = sorted(each.value for each in profile.classes if each.value)
        if not classes:
            raise ConfigError(
                f"{profile.name} has {profile.num_distinct or 0:,} different texts in {profile.num_rows:,} rows: no "
                "classes; name another column with --label"
            )
        with_label = f'.filter(lambda row: {value} != "")'  # a missing text is an empty text
        before = f"{said or chr(10)}classes = keras.layers.StringLookup(vocabulary={classes!r}, num_oov_indices=0)\n"
        return _Objective(
            f"classes({value})", len(classes), _CROSSENTROPY, "accuracy", before, f"{with_label}.map(example)"
        )
    # In the script, `column` returns NaN for a missing number.
    with_label = ".map(example).filter(lambda vector, label: tf.math.is_finite(label))"
    return _Objective(f"column({', '.join(place)})[0]", 1, '"mse"', "mae", "", with_label)


def _are_numbered(profile: ColumnProfile) -> bool:
    """Return whether integers are class numbers: from 0 up, and few or in a column with a label-like name."""
    are_classes = bool(profile.classes) or _rank(profile.name) < len(_LABELS)
    return (
        are_classes and profile.least is not None and 0 <= profile.least <= profile.greatest < _MOST_CLASSES
    )


def _place(name: str) -> tuple[str, str]:
    """Return code for the object that contains a column, and for the column's name in that object."""
    steps = name.split(".")
    *above, last = steps if steps[0] in ("key", "val") else ["val", *steps]
    return "row" + "".join(f"[{_quoted(step)}]" for step in above), _quoted(last)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _quoted(text: str) -> str:
    is_plain = text.isprintable() and not set(text) & set('"\\')
    return f'"{text}"' if is_plain else repr(text)


def _visible(text: str) -> str:
    return text if text.isprintable() else repr(text)
