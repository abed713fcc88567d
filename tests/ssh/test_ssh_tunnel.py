"""Tests of runs with --tunnel on several hosts: other hosts cannot reach their ports, and results are unchanged."""

from __future__ import annotations

import re

import pytest

from ignite_tf_magic.errors import LaunchError
from ignite_tf_magic.runs import loopback
from ignite_tf_magic.session import RunRequest, RunState, open_session
from tests.listening import accepts

pytestmark = [
    pytest.mark.usefixtures("namespaces"),
    pytest.mark.skipif(loopback.library() is None, reason="a compiler is needed"),
]

# Trains on both workers, waits for the file `go`, and prints the model and what it learned.
TRAIN = """
import hashlib, os, time
import keras, numpy as np
from ignite_tf_magic import IgniteDataset

keras.utils.set_random_seed(7)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
rows = IgniteDataset("NUMBERS").map(lambda row: (row["val"]["x"][None] / 3000, row["val"]["x"][None] / 1000))
rows = rows.batch(100)
model.fit(rows, epochs=1, verbose=0)
print("TRAINED", flush=True)
while os.environ.get("WAIT") and not os.path.exists(os.environ["IGNITE_TF_RUN_DIR"] + "/go"): time.sleep(0.05)
model.fit(rows, epochs=1, verbose=0)
weights = b"".join(each.tobytes() for each in model.get_weights())
print("WEIGHTS", hashlib.sha256(weights).hexdigest(), int(model.optimizer.iterations), flush=True)
"""
# Prints for each argument "host:port" whether it accepts a connection.
KNOCK = """
import socket, sys
for each in sys.argv[1:]:
    host, _, port = each.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 10).close()
    except ConnectionRefusedError:
        print(each, "refused")
    else:
        print(each, "taken")
"""


@pytest.fixture
def start(session):
    """Start a script on the first two hosts. The run ends with the test."""
    started = []

    def start(bed, script: str, **options):
        hosts = tuple(host.name for host in bed.hosts[:2])
        started.append(session.start_run(RunRequest("NUMBERS", script, 2, hosts=hosts, **options)))
        return started[-1]

    yield start
    for run in started:
        run.stop()


def knock(bed, host, *targets: str) -> list[str]:
    return host.run([host.python, "-c", KNOCK, *targets]).stdout.split()[1::2]


def weights(run) -> str:
    text = "".join(chunk.text for chunk in run.follow())
    assert run.info().state is RunState.SUCCEEDED, (text, run.failure())
    found = set(re.findall(r"WEIGHTS (.*)", text))
    assert len(found) == 1, text
    return found.pop()


@pytest.mark.timeout(600)
def test_no_other_host_reaches_the_servers_of_a_training(start, bed, said):
    run = start(bed, TRAIN, tunnel=True, env={"WAIT": "1"})
    order, by_name = run.record().order, {host.name: host for host in bed.hosts}
    assert [each.rpartition(":")[0] for each in order.addresses] == ["127.0.0.1"] * 2
    ports = {int(each.rpartition(":")[2]) for each in order.addresses}
    assert len(ports) == 2
    places = [by_name[seat.host] for seat in order.seats]
    num_trained = 0
    for chunk in run.follow():
        num_trained += chunk.text.count("TRAINED")
        if num_trained == 2:
            break
    # Through the hosts' addresses, every port refuses connections from the other worker's host, a third host, and
    # here.
    outside = [f"{place.address}:{port}" for place in places for port in ports]
    inside = [f"127.0.0.1:{port}" for port in ports]
    for host in bed.hosts:
        assert knock(bed, host, *outside) == ["refused"] * 4
    assert not any(accepts(place.address, port) for place in places for port in ports)
    # On each host, the task's own port and the port that leads to the other task accept connections.
    for place in places:
        assert knock(bed, place, *inside) == ["taken"] * 2
        place.run(["touch", f"{place.home}/{place.state}/runs/{run.id}/files/go"])
    found = weights(run)
    for place in places:
        assert knock(bed, place, *inside) == ["refused"] * 2
    plain = start(bed, TRAIN)
    assert not any(each.startswith("127.") for each in plain.record().order.addresses)
    assert weights(plain) == found
    assert said == []


# Two workers connect to each other, and fail when the connection breaks. Workers of later launches succeed.
MEET = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
address = config["cluster"]["worker"][0]
host, _, port = address.rpartition(":")
if index == 0:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", int(port)))
    server.listen()
    met = server.accept()[0]
    met.sendall(b"hello")
while index:
    try:
        met = socket.create_connection((host, int(port)), 10)
        if met.recv(5) == b"hello":
            break
    except OSError:
        pass
    time.sleep(0.1)
print("MET", flush=True)
if ".g" in os.path.basename(os.environ["IGNITE_DATASET_ASSIGNMENT_FILE"]):
    sys.exit(0)
try:
    met.recv(1)
except OSError:
    pass
sys.exit(75)
"""


@pytest.mark.nightly
def test_a_link_that_is_lost_ends_connections_and_the_next_launch_has_new_ones(bed, configure):
    """The range of ports is small: each host alone would choose the same ports.

    Nightly. Shorter: tests/launch/test_forwards.py::test_a_lost_link_ends_connections_and_is_led_anew
    """
    configure(launch={"ports": "41000-41009"})
    with open_session(report=print) as session:
        hosts = tuple(host.name for host in bed.hosts[:2])
        run = session.start_run(RunRequest("NUMBERS", MEET, 2, hosts=hosts, tunnel=True))
        try:
            assert len(set(run.record().order.addresses)) == 2
            num_met = 0
            for chunk in run.follow():
                num_met += chunk.text.count("MET")
                if num_met == 2:
                    break
            bed.hosts[1].kill_sshd()
            bed.hosts[1].start_sshd()
            assert run.wait(200).state is RunState.SUCCEEDED, run.failure()
            # A port with broken connections may stay busy for a minute. Then the next launch uses other ports.
            assert 1 <= run.info().restarts <= 3
        finally:
            run.stop()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("AllowTcpForwarding no", "'bed2': its sshd refuses to .*AllowTcpForwarding yes"),
        ("GatewayPorts yes", "'bed2': .*listens on all interfaces.*GatewayPorts no"),
    ],
)
def test_an_sshd_that_cannot_serve_is_told_and_nothing_is_started(start, bed, option, message):
    host = bed.hosts[1]
    config = host.directory / "sshd_config"
    before = config.read_text()
    try:
        config.write_text(f"{option}\n{before}")
        host.kill_sshd()
        host.start_sshd()
        with pytest.raises(LaunchError, match=message):
            start(bed, "print(1)", tunnel=True)
    finally:
        config.write_text(before)
        host.kill_sshd()
        host.start_sshd()
