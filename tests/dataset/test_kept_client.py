"""Connections stay open between passes, but not much longer."""

from __future__ import annotations

import os
import socket

import pytest

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client import router as router_module
from ignite_tf_magic.dataset import kept_client
from ignite_tf_magic.dataset.kept_client import KeptClient
from tests.waiting import until


@pytest.fixture
def opened(monkeypatch):
    """A list of the channels opened during the test."""
    channels = []
    original = router_module.open_channel

    def open_channel(*args):
        channels.append(original(*args))
        return channels[-1]

    monkeypatch.setattr(router_module, "open_channel", open_channel)
    return channels


def is_open(channel):
    return channel._transport._stream.fileno() >= 0


def test_a_second_pass_opens_no_connection(digits, opened, monkeypatch):
    monkeypatch.setattr(KeptClient, "_go_idle", lambda client: None)  # a pass may be slow on a busy machine
    dataset = IgniteDataset(digits.name, **digits.where()).batch(100)
    assert sum(len(batch["key"]) for batch in dataset) == 5000
    num_opened = len(opened)
    for _ in range(3):
        assert sum(len(batch["key"]) for batch in dataset) == 5000
    assert len(opened) == num_opened


def test_two_passes_at_once_have_connections_of_their_own(digits, opened):
    dataset = IgniteDataset(digits.name, **digits.where()).batch(100)
    first, second = iter(dataset), iter(dataset)
    assert sum(len(a["key"]) + len(b["key"]) for a, b in zip(first, second, strict=True)) == 10_000


def test_a_connection_that_was_closed_meanwhile_is_replaced(digits, opened):
    dataset = IgniteDataset(digits.name, **digits.where()).batch(100)
    list(dataset)
    for channel in opened:
        if is_open(channel):
            channel._transport._stream.shutdown(socket.SHUT_RDWR)
    assert sum(len(batch["key"]) for batch in dataset) == 5000


def test_a_forked_process_leaves_the_connections_to_its_parent(ignite, opened, monkeypatch):
    clients = KeptClient(ignite.connect_options)
    first = clients.take()
    clients.give_back(first)
    parent = os.getpid()
    monkeypatch.setattr(kept_client.os, "getpid", lambda: parent + 1)
    second = clients.take()
    assert second is not first
    assert is_open(opened[0])
    first.close()
    second.close()


def test_an_idle_client_is_closed_and_a_surplus_one_at_once(ignite, opened):
    told = []
    clients = KeptClient(ignite.connect_options, lambda: told.append("idle"), idle_s=0.2)
    first, second = clients.take(), clients.take()
    clients.give_back(first)
    clients.give_back(second)
    assert [is_open(channel) for channel in opened] == [True, False]
    assert clients.take() is first
    clients.give_back(first)
    until(lambda: told)
    assert not is_open(opened[0])
    third = clients.take()
    assert third is not first
    third.close()
