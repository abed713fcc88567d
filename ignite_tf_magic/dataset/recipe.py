"""Describes how to build the pages of a dataset: a source, then transformations of its pages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.deal import EqualSteps, UncountedShare
from ignite_tf_magic.dataset.page_map import depends_on_row_alone
from ignite_tf_magic.dataset.passes import EpochTracker, RowShard

# 30! permutations are more than there are seeds.
_DRAWN = 30
_MAX_SEED = 2**63 - 1

Pages = Any
Transform = Callable[[Pages, EpochTracker | None], Pages]


@dataclass(frozen=True, slots=True)
class ShuffleOrder:
    """The order in which to read partitions: drawn anew for each pass, or the same for all.

    Attributes:
        block_rows: Block size in rows if the reader permutes the rows, too; None leaves that to later steps.
    """

    seed: int | None
    reshuffle: bool
    block_rows: int | None = None

    def seed_of_pass(self) -> Any:
        """Return a dataset of one int64 from 0 up, drawn when its iterator starts.

        tf.data's `shuffle` draws the number, so this works wherever `shuffle` does. `random` with
        `rerandomize_each_iteration` would fail in a one-shot iterator of TensorFlow 1.
        """
        drawn = tf.data.Dataset.range(_DRAWN).shuffle(_DRAWN, self.seed, self.reshuffle).batch(_DRAWN)
        return drawn.map(lambda numbers: tf.strings.to_hash_bucket_fast(_text_of(numbers), _MAX_SEED))


def _text_of(numbers: Any) -> Any:
    return tf.strings.reduce_join(tf.strings.as_string(numbers), separator=" ")


@dataclass(frozen=True, slots=True)
class Repeat:
    """The transformation that repeats pages; a count of None repeats them endlessly."""

    count: Any
    name: str | None = None

    def __call__(self, pages: Pages, passes: EpochTracker | None = None) -> Pages:
        """Repeat pages, or batches of them."""
        del passes
        return pages.repeat(self.count, name=self.name)


@dataclass(frozen=True, slots=True)
class RowMap:
    """The transformation of pages that applies a function to each of their rows.

    Attributes:
        transform: Applies the function.
        function: A function of one row.
        row_spec: Structure of a row before the function.
    """

    transform: Transform
    function: Callable[..., Any]
    row_spec: Any

    def __call__(self, pages: Pages, passes: EpochTracker | None = None) -> Pages:
        """Apply the function."""
        return self.transform(pages, passes)

    def commutes(self) -> bool:
        """Return whether permuting the rows before the function gives the same result as after it."""
        return depends_on_row_alone(self.function, self.row_spec)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build the pages of a dataset: a source, then transformations of pages.

    Attributes:
        open_pages: Makes the dataset of pages, in the requested partition order, which may depend on the pass.
        is_elsewhere: Whether another process may read the rows.
        share: Set if a launcher assigned this worker's shard; workers then make equally many batches.
        is_kept: Whether pages are kept, once a pass has reached their end.
        whole: Makes the recipe of the rows of all workers, if these are a shard of them.
        uncounted: Set if the number of rows is unknown.
        count: Asks the cluster for the number of rows, outside of runs; None if the cluster does not know it.
        permutes: Whether the reader can permute rows.
    """

    open_pages: Callable[[ShuffleOrder | None, EpochTracker | None], Pages]
    transforms: tuple[Transform, ...] = ()
    order: ShuffleOrder | None = None
    is_elsewhere: bool = False
    share: RowShard | None = None
    equal_steps: EqualSteps = EqualSteps.PAD
    is_kept: bool = False
    whole: Callable[[], Recipe] | None = None
    uncounted: UncountedShare | None = None
    count: Callable[[], int | None] | None = None
    permutes: bool = False

    @property
    def is_endless(self) -> bool:
        """Whether the rows never end."""
        return self.uncounted is not None and self.uncounted.is_endless

    def num_rows(self) -> int:
        """Return the rows of all passes together; `tf.data.UNKNOWN_CARDINALITY` if unknown, as in a run."""
        repeats = self.of_one_pass()[1]
        times = [-1 if each.count is None else tf.get_static_value(each.count) for each in repeats]
        if self.is_endless or any(each is not None and each < 0 for each in times):
            return int(tf.data.INFINITE_CARDINALITY)
        rows = self.count and self.count()
        if rows is None or None in times:
            return int(tf.data.UNKNOWN_CARDINALITY)
        return math.prod((rows, *map(int, times)))

    def may_permute_first(self) -> bool:
        """Return whether permuting rows while reading gives the same rows as permuting after all transforms."""
        return (
            self.permutes
            and self.order is None
            and all(isinstance(each, RowMap) and each.commutes() for each in self.transforms)
        )

    def pages(self) -> tuple[Pages, EpochTracker | None]:
        """Build the pages over a new source, and the tracker of its passes if this process reads them."""
        passes = None if self.is_elsewhere else EpochTracker(self.share)
        pages = self.open_pages(self.order, passes)
        for transform in self.transforms:
            pages = transform(pages, passes)
        return pages, passes

    def then(self, transform: Transform) -> Recipe:
        """Add a transformation of pages."""
        return replace(self, transforms=(*self.transforms, transform))

    def of_one_pass(self) -> tuple[Recipe, list[Repeat]]:
        """Return the recipe without its repetitions, and the repetitions."""
        repeats = [each for each in self.transforms if isinstance(each, Repeat)]
        return replace(
            self, transforms=tuple(e for e in self.transforms if not isinstance(e, Repeat))
        ), repeats
