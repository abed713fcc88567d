"""Tests that each option of runs is in the parser's table and in one dataclass; its name determines the rest."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import fields, replace

import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.runs.record import RunOptions, RunSpec
from ignite_tf_magic.session import RunRequest, run_plans
from ignite_tf_magic.settings.options import Config, LaunchOptions, OnRebalance
from ignite_tf_magic.ui.notebook.arguments import parse_line
from ignite_tf_magic.ui.notebook.run_function import run
from ignite_tf_magic.ui.options import OTHERWISE_SAID, add_run_options, given_options

# Fields of both request and record that mean different things there.
OF_BOTH = {
    "cache": "the first argument of both",
    "num_workers": "the second argument of both",
    "max_restarts": "None asks for the configured number; a run has one",
    "strategy": "auto may be asked for; a run has one",
    "requirements": "a file here; in the record what it says",
}
# Options that decide how `start` shows the run, and whether it starts one.
OF_THE_COMMAND = {"explain", "detach", "include"}
# Fields that users do not set, or that `start` sets itself.
WITHOUT_AN_OPTION = {"script_name", "command", "args", "survives_s", "finish_timeout_s"}


def names_of(kind: type) -> set[str]:
    return {each.name for each in fields(kind)}


def option_names() -> set[str]:
    parser = argparse.ArgumentParser(add_help=False)
    add_run_options(parser)
    return {action.dest for action in parser._actions}


def test_request_and_record_share_their_options_and_repeat_no_other():
    own = [names_of(kind) - names_of(RunOptions) for kind in (RunRequest, RunSpec)]
    assert own[0] & own[1] == set(OF_BOTH)


def test_every_option_is_called_as_the_field_that_it_says():
    assert option_names() - OF_THE_COMMAND <= names_of(RunRequest) - OTHERWISE_SAID
    assert names_of(RunOptions) - option_names() == WITHOUT_AN_OPTION


def test_a_value_that_is_given_is_in_the_request():
    options = parse_line(
        "start C --memory 1GiB --gpus 2 --deadline 5 --start-timeout 7 --hosts a,b --on-rebalance ignore --wait"
    )
    given = given_options(options)
    assert given.pop("survives_s") > 0
    assert (given.pop("strategy"), given.pop("num_ps")) == ("auto", 0)
    assert {name: value for name, value in given.items() if value is not False} == {
        "memory_bytes": 1 << 30,
        "num_gpus": 2,
        "deadline_s": 5.0,
        "start_timeout_s": 7.0,
        "hosts": ("a", "b"),
        "on_rebalance": OnRebalance.IGNORE,
        "wait": True,
    }
    RunRequest(options.cache, **given)


def test_what_is_asked_for_stands_in_the_record():
    asked = {each.name: f"the {each.name}" for each in fields(RunOptions)} | {
        "num_ps": 1,
        "has_evaluator": True,
    }
    given = {**asked, "python": "/a/python", "tunnel": False}
    assert run_plans._spec(Config(), RunRequest("C", **given)).options() == given
    tunnelled = {**given, "tunnel": True, "survives_s": 0.0}
    assert run_plans._spec(Config(), RunRequest("C", **{**given, "tunnel": True})).options() == tunnelled
    configured = Config(launch=LaunchOptions(deadline_s=9.0))
    assert run_plans._spec(configured, RunRequest("C")).deadline_s == 9.0


def test_a_function_on_workers_takes_the_same():
    own = {"train_fn", "cache", "workers", "args", "kwargs", "report"}
    taken = set(inspect.signature(run).parameters) - own
    assert taken == option_names() - OF_THE_COMMAND - {"num_workers"}


def test_a_tunnel_by_option_or_configuration_has_tensorflow_stay_in_it():
    configured = Config(launch=LaunchOptions(tunnel=True))
    for config, request in ((configured, RunRequest("C")), (Config(), RunRequest("C", tunnel=True))):
        spec = run_plans._spec(config, replace(request, survives_s=600))
        assert spec.tunnel and spec.survives_s == 0
        assert spec.environment["IGNITE_TF_COMMUNICATION"] == "ring"
    assert not run_plans._spec(Config(), RunRequest("C")).tunnel


@pytest.mark.parametrize(
    ("options", "message"),
    [({"detach": True}, "Leave --detach out"), ({"communication": "nccl"}, "its own ports")],
)
def test_what_a_tunnel_does_not_go_with(options, message):
    with pytest.raises(ConfigError, match=message):
        run_plans._spec(Config(), RunRequest("C", tunnel=True, **options))
