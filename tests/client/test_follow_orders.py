"""Following a cache in the orders of changes, pages and lost streams that hypothesis finds. Real nodes produce few."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic.client import follow as follow_module
from ignite_tf_magic.client import remembered_rows
from ignite_tf_magic.client.cache_scan import Baseline
from ignite_tf_magic.client.follow import follow
from ignite_tf_magic.client.scanned_pages import ScannedPage
from ignite_tf_magic.errors import ConnectionLost
from ignite_tf_magic.protocol.affinity import encoded
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.continuous import RowEvent
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.ops import EventType
from ignite_tf_magic.protocol.read_values import read_value

NODE, KEYS, PARTITIONS = "node", 6, 3


class World:
    """A cache, its changes, and streams that report them until they end."""

    def __init__(self, seed, num_steps):
        self.chance = random.Random(seed)
        self.rows = {}
        self.left = num_steps
        self.streams = []

    def go_on(self):
        """Let a few changes happen while someone waits or reads."""
        for _ in range(self.chance.randint(0, 4)):
            if self.left:
                self.left -= 1
                self.happen()

    def happen(self):
        key, what = self.chance.randrange(KEYS), self.chance.random()
        if what < 0.1:
            for stream in self.streams:
                stream.end = stream.end or ConnectionLost("there", "it was cut")
        elif what < 0.3:
            if self.rows.pop(key, None) is not None:
                self.tell(RowEvent(EventType.REMOVED, encoded(key), encoded(None)))
        else:
            kind = EventType.UPDATED if key in self.rows else EventType.CREATED
            self.rows[key] = self.chance.choice("abc")
            self.tell(RowEvent(kind, encoded(key), encoded(self.rows[key])))

    def tell(self, event):
        for stream in self.streams:
            if stream.end is None:
                stream.waiting.append(event)


class Stream:
    def __init__(self, channel, cache, room_bytes):
        self.world, self.waiting, self.end, self.node_id = channel, [], None, NODE
        self.world.streams = [self]

    @property
    def is_over(self):
        return self.end is not None and not self.waiting

    def take(self, within_s):
        self.world.go_on()
        count = self.world.chance.randint(1, 3)
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def close(self):
        self.end = self.end or ConnectionLost("here", "it was closed")


class Cache:
    name, cache_id = "FAKE", 1

    def __init__(self, world):
        node = SimpleNamespace(node_id=NODE)
        router = SimpleNamespace(control_node_id=lambda: NODE, open_to=lambda node: world)
        self.world, self.client = world, SimpleNamespace(router=router, nodes=lambda: [node])

    def baseline(self):
        return Baseline(self.name, dict.fromkeys(range(PARTITIONS), NODE), frozenset([NODE]), 0, 0)

    def scan(self, partitions, sizes, baseline):
        return SimpleNamespace(pages=lambda: self.pages(partitions), close=lambda: None)

    def pages(self, partitions):
        for partition in partitions:
            self.world.go_on()
            rows = [(k, v) for k, v in self.world.rows.items() if k % PARTITIONS == partition]
            data = b"".join(encoded(k) + encoded(v) for k, v in rows)
            self.world.go_on()  # a page is read before it is delivered
            yield ScannedPage(partition, Page(None, len(rows), memoryview(data), has_more=False))


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    monkeypatch.setattr(follow_module, "EventStream", Stream)


def come(world, most_remembered):
    """Follow until no more rows come. Returns the (key, value) pairs, and whether rows were forgotten."""
    found = []
    with follow(Cache(world), pause_s=0.0, most_remembered=most_remembered) as following:
        for followed in following.pages():
            reader = Reader(followed.page.rows)
            for _ in range(followed.page.num_rows):
                found.append((read_value(reader), read_value(reader)))
            if not followed.page.num_rows and not world.left:
                return found, following.has_forgotten
    raise AssertionError("it ended")


@settings(max_examples=300)
@given(st.integers(), st.integers(1, 60))
def test_the_newest_value_of_every_row_comes_last(seed, num_steps):
    world = World(seed, num_steps)
    found, _ = come(world, 1000)
    last = dict(found)
    assert {key: last.get(key) for key in world.rows} == world.rows


@settings(max_examples=100)
@given(st.integers(), st.integers(1, 60))
def test_also_when_what_came_is_forgotten(seed, num_steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remembered_rows, "_RECENT_ROWS", 1)
        world = World(seed, num_steps)
        found, _ = come(world, 2)
    last = dict(found)
    assert {key: last.get(key) for key in world.rows} == world.rows


@settings(max_examples=100)
@given(st.integers(), st.integers(1, 60))
def test_rows_that_are_put_once_come_once(seed, num_steps):
    world = World(seed, num_steps)
    numbers = iter(range(num_steps))

    def happen():
        if world.chance.random() < 0.2:
            world.streams[0].end = world.streams[0].end or ConnectionLost("there", "it was cut")
        else:
            key = next(numbers)
            world.rows[key] = "x"
            world.tell(RowEvent(EventType.CREATED, encoded(key), encoded("x")))

    world.happen = happen
    found, has_forgotten = come(world, 1000)
    assert not has_forgotten
    assert sorted(found) == sorted(world.rows.items())
