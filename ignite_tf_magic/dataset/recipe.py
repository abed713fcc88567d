"""How the pages of a dataset come about: a source, and what is done with its pages one after another."""

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
    """In which order partitions are read: drawn anew for each pass, or the same for all.

    Attributes:
        block_rows: Who reads permutes the rows, too, in blocks of so many; None leaves it to what follows.
    """

    seed: int | None
    reshuffle: bool
    block_rows: int | None = None

    def seed_of_pass(self) -> Any:
        """Return a dataset of one int64 from 0 up, drawn when its iterator starts.

        tf.data's `shuffle` draws it, so it works wherever that does: `random` with `rerandomize_each_iteration` does
        not, in a one-shot iterator of TensorFlow 1.
        """
        drawn = tf.data.Dataset.range(_DRAWN).shuffle(_DRAWN, self.seed, self.reshuffle).batch(_DRAWN)
        return drawn.map(lambda numbers: tf.strings.to_hash_bucket_fast(_text_of(numbers), _MAX_SEED))


def _text_of(numbers: Any) -> Any:
    return tf.strings.reduce_join(tf.strings.as_string(numbers), separator=" ")


@dataclass(frozen=True, slots=True)
class Repeat:
    """The transformation that repeats pages; None repeats them without end."""

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
        transform: Applies it.
        function: Of one row.
        row_spec: What a row is before.
    """

    transform: Transform
    function: Callable[..., Any]
    row_spec: Any

    def __call__(self, pages: Pages, passes: EpochTracker | None = None) -> Pages:
        """Apply the function."""
        return self.transform(pages, passes)

    def commutes(self) -> bool:
        """Whether rows may as well be put into another order before as behind it."""
        return depends_on_row_alone(self.function, self.row_spec)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the pages of a dataset come about: a source, then transformations of pages.

    Attributes:
        open_pages: Makes the dataset of pages, in the partition order asked for, which may depend on the pass.
        is_elsewhere: Whether another process may read the rows.
        share: Set when a launcher assigned this worker's share; batches are then made equal.
        is_kept: Whether pages are kept, once a pass has come to their end.
        whole: Makes the recipe of the rows of all workers, where these are a share of them.
        uncounted: Set where nobody knows how many rows there are, and
        count: asks the cluster how many they are, where it can tell, outside of runs; None where it does not.
        permutes: Whether who reads can permute rows.
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
        """Whether rows come without end."""
        return self.uncounted is not None and self.uncounted.is_endless

    def num_rows(self) -> int:
        """Return how many rows all passes have; `tf.data.UNKNOWN_CARDINALITY` where nobody knows, as in a run."""
        repeats = self.of_one_pass()[1]
        times = [-1 if each.count is None else tf.get_static_value(each.count) for each in repeats]
        if self.is_endless or any(each is not None and each < 0 for each in times):
            return int(tf.data.INFINITE_CARDINALITY)
        rows = self.count and self.count()
        if rows is None or None in times:
            return int(tf.data.UNKNOWN_CARDINALITY)
        return math.prod((rows, *map(int, times)))

    def may_permute_first(self) -> bool:
        """Whether rows that are permuted when they are read are the same as those permuted behind all transforms."""
        return (
            self.permutes
            and self.order is None
            and all(isinstance(each, RowMap) and each.commutes() for each in self.transforms)
        )

    def pages(self) -> tuple[Pages, EpochTracker | None]:
        """Build the dataset of pages, over a source of its own, whose passes are numbered if this process reads it."""
        passes = None if self.is_elsewhere else EpochTracker(self.share)
        pages = self.open_pages(self.order, passes)
        for transform in self.transforms:
            pages = transform(pages, passes)
        return pages, passes

    def then(self, transform: Transform) -> Recipe:
        """Add a transformation of pages."""
        return replace(self, transforms=(*self.transforms, transform))

    def of_one_pass(self) -> tuple[Recipe, list[Repeat]]:
        """Take the repetitions out of it."""
        repeats = [each for each in self.transforms if isinstance(each, Repeat)]
        return replace(
            self, transforms=tuple(e for e in self.transforms if not isinstance(e, Repeat))
        ), repeats
