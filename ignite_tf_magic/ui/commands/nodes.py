"""`local up`, `local status`, `local down` and `demo`: commands for Ignite nodes on this machine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from ignite_tf_magic.session import (
    EmbeddedNode,
    EmbeddedOptions,
    Session,
    get_run,
    local_down,
    local_status,
    local_up,
)
from ignite_tf_magic.ui.commands.command import Command, Group, flags
from ignite_tf_magic.ui.commands.listing import note_kept
from ignite_tf_magic.ui.demo import run_demo
from ignite_tf_magic.ui.options import add_node_options
from ignite_tf_magic.ui.render import message_view, nodes_view
from ignite_tf_magic.ui.screen import Screen, say_json


def notes_on(session: Session, screen: Screen) -> list[str]:
    """Return a note on how to stop the session's nodes, if they are embedded."""
    cluster = session.embedded_cluster
    if cluster is None:
        return []
    return [
        f"Ignite: {_counted(len(cluster.nodes), 'embedded node')}; to stop: {screen.command_name} local down"
    ]


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _up(options: argparse.Namespace, screen: Screen) -> None:
    wanted = EmbeddedOptions(
        num_nodes=options.nodes, heap=options.heap, region=options.region, persist=options.persist
    )
    _show_nodes(local_up(wanted, report=screen.note).nodes, options, screen)


def _status(options: argparse.Namespace, screen: Screen) -> None:
    cluster = local_status()
    note_kept(screen)
    _show_nodes(cluster.nodes if cluster else (), options, screen)


def _show_nodes(nodes: Sequence[EmbeddedNode], options: argparse.Namespace, screen: Screen) -> None:
    if options.json:
        say_json(screen, [node.to_dict() for node in nodes])
    elif nodes:
        screen.show(nodes_view(nodes))
    else:
        screen.show(message_view(f"no embedded nodes run; to start some: {screen.command_name} local up"))


def _down(options: argparse.Namespace, screen: Screen) -> None:
    stopped = local_down(delete_data=options.delete_data, report=screen.note)
    if options.json:
        num_nodes, data = (stopped.num_nodes, stopped.data) if stopped else (0, None)
        say_json(screen, {"stopped": num_nodes, "data": str(data) if data else None})
        return
    if stopped is None:
        screen.say("no embedded nodes ran")
        return
    screen.say(f"{_counted(stopped.num_nodes, 'Ignite node')} stopped")
    if stopped.data:
        screen.say(f"their data is kept in {stopped.data}")


def _demo(options: argparse.Namespace, screen: Screen) -> None:
    del options
    began = time.monotonic()
    outcome = run_demo(screen.stream().write)
    screen.say(f"\n== Done after {time.monotonic() - began:.0f} s")
    screen.say(f"notebook  {outcome.notebook}")
    if outcome.run:
        screen.say(f"run       {outcome.run.id} ({outcome.run.state.value})")
        for worker in outcome.run.workers:
            screen.say(f"log       {get_run(outcome.run.id).directory.log(worker.worker)}")
    nodes = ", ".join(f"{node.host}:{node.port}" for node in outcome.cluster.nodes)
    screen.say(f"nodes     {nodes}; to stop them: {screen.command_name} local down")


def _add_down(down: argparse.ArgumentParser) -> None:
    flags(down, ("--delete-data", "also what --persist kept"))


GROUP = Group("Ignite nodes on this machine: up, status, down")
COMMANDS = (
    Command(
        "local up",
        "start nodes; they stay until down",
        _up,
        add_node_options,
        example="--nodes 3",
        of_cluster=False,
    ),
    Command("local status", "list the nodes", _status, example="", of_cluster=False),
    Command("local down", "stop the nodes", _down, _add_down, example="", of_cluster=False),
    Command(
        *("demo", "start nodes, load digits, execute the quick start notebook", _demo),
        example="",
        of_cluster=False,
        has_json=False,
    ),
)
