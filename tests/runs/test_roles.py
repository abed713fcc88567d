"""Tests of the tasks of each strategy, their environment, and contradicting options."""

from __future__ import annotations

import json

import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.runs.roles import (
    Strategy,
    check_roles,
    check_templates,
    choose_strategy,
    cluster_spec,
    filled,
    roles_of,
    template_values,
    tf_config,
)

ADDRESSES = ("h0:1", "h1:2", "h2:3", "h0:4", "h0:5")


def names(*arguments):
    return [role.name for role in roles_of(*arguments)]


def test_workers_come_first_whatever_else_there_is():
    assert names(Strategy.SYNC, 2) == ["worker 0", "worker 1"]
    assert names(Strategy.SYNC, 1, 0, True) == ["worker 0", "evaluator"]
    assert names(Strategy.ASYNC, 2, 1, True) == ["worker 0", "worker 1", "ps 0", "chief", "evaluator"]
    assert names(Strategy.STANDALONE, 2) == ["worker 0", "worker 1", "chief"]
    assert names(Strategy.BETWEEN, 2, 1) == ["worker 0", "worker 1", "ps 0"]


def test_who_runs_the_script_and_who_decides():
    def who(quality, *arguments):
        return [role.name for role in roles_of(*arguments) if getattr(role, quality)]

    assert who("runs_script", Strategy.ASYNC, 2, 1) == ["chief"]
    assert who("runs_script", Strategy.STANDALONE, 2) == ["chief"]
    assert who("runs_script", Strategy.BETWEEN, 2, 1) == ["worker 0", "worker 1", "ps 0"]
    assert who("decides", Strategy.BETWEEN, 2, 1) == ["worker 0", "worker 1"]
    assert who("decides", Strategy.ASYNC, 2, 1, True) == ["chief"]
    assert who("decides", Strategy.SYNC, 2, 0, True) == ["worker 0", "worker 1"]
    assert who("has_share", Strategy.ASYNC, 2, 1) == ["worker 0", "worker 1"]
    assert who("respawns", Strategy.ASYNC, 2, 1) == ["worker 0", "worker 1"]
    for strategy in (Strategy.SYNC, Strategy.STANDALONE, Strategy.BETWEEN):
        assert who("respawns", strategy, 2) == []
    assert who("must_join", Strategy.SYNC, 2) == ["worker 0", "worker 1"]
    assert who("must_join", Strategy.SYNC, 1) == []


def test_an_evaluator_is_in_no_cluster_and_knows_itself():
    roles = roles_of(Strategy.ASYNC, 2, 1, True)
    spec = {"chief": ["h0:4"], "ps": ["h2:3"], "worker": ["h0:1", "h1:2"]}
    assert cluster_spec(Strategy.ASYNC, roles, ADDRESSES) == spec
    told = json.loads(tf_config(Strategy.ASYNC, roles, ADDRESSES, 4))
    assert told == {"cluster": spec, "task": {"type": "evaluator", "index": 0}}


def test_servers_of_a_standalone_client_do_not_wait_for_it():
    roles = roles_of(Strategy.STANDALONE, 2)
    workers = ["h0:1", "h1:2"]
    server = json.loads(tf_config(Strategy.STANDALONE, roles, ADDRESSES[:3], 1))
    assert server == {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 1}}
    client = json.loads(tf_config(Strategy.STANDALONE, roles, ADDRESSES[:3], 2))
    assert client["cluster"] == {"worker": workers, "chief": ["h2:3"]}


def test_templates_are_filled_for_each_task():
    roles = roles_of(Strategy.BETWEEN, 2, 1)
    values = template_values(roles, ADDRESSES[:3], 2)
    assert filled("--{job_name}={task_index},{ps_hosts};{worker_hosts}", values) == "--ps=0,h2:3;h0:1,h1:2"
    assert filled("{{job_name}} {{}}", values) == "{job_name} {}"


@pytest.mark.parametrize("text", ["{ps_host}", "{}", "{worker_hosts!r}", "{task_index:02}"])
def test_templates_that_nothing_fills_are_refused(text):
    with pytest.raises(ConfigError, match="--strategy between is told"):
        check_templates(["fine", f"--x={text}"])


def test_auto_goes_by_templates_and_parameter_servers():
    assert choose_strategy("auto", 0, ()) is Strategy.SYNC
    assert choose_strategy("auto", 1, ("--steps={}",)) is Strategy.ASYNC
    assert choose_strategy("auto", 1, ("--ps={ps_hosts}",)) is Strategy.BETWEEN
    assert choose_strategy("standalone", 0, ("{ps_hosts}",)) is Strategy.STANDALONE
    with pytest.raises(
        ConfigError, match="--strategy mirrored is unknown; use one of auto, sync, async, standalone, between"
    ):
        choose_strategy("mirrored", 0, ())


@pytest.mark.parametrize(
    ("strategy", "num_ps", "has_evaluator", "chief", "message"),
    [
        (Strategy.ASYNC, 0, False, "", "give --ps 1 or more"),
        (Strategy.ASYNC, -1, False, "", "0 or more"),
        (Strategy.SYNC, 1, False, "", "leave it out, or use async"),
        (Strategy.SYNC, 0, False, "here", "there is no chief"),
        (Strategy.BETWEEN, 0, False, "here", "there is no chief"),
        (Strategy.BETWEEN, 1, True, "", "only with sync and async"),
        (Strategy.STANDALONE, 0, True, "", "only with sync and async"),
    ],
)
def test_options_that_contradict_each_other_are_refused(strategy, num_ps, has_evaluator, chief, message):
    with pytest.raises(ConfigError, match=message):
        check_roles(strategy, num_ps, has_evaluator, chief)
