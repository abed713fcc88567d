"""The worker script of `faults`: synchronous steps of all workers as in TensorFlow, but without TensorFlow.

Each worker listens at its address in TF_CONFIG. The first one asks all others for a number at each step, adds them up,
and keeps the sum in a row of a cache; after a restart it continues from there. A worker also writes its output to a
journal, which no fault damages.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, ServerError
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

TOLD = json.loads(sys.argv[1])
PEER_PATIENCE_S = 10  # seconds without a sign of life, as in TensorFlow's coordination service by default
STEP_S = MEETING_S = 60.0  # a live peer may be busy
STORE_PATIENCE_S = 30.0
CHECKPOINT_EACH = 5


class UnavailableError(Exception):
    """Another worker does not answer."""


class Journal:
    """Prints lines, and records each in the journal once the write has returned."""

    def __init__(self, folder, worker, generation):
        self._words = f"worker {worker} gen {generation} line"
        self._number = 0
        path = f"{folder}/worker-{worker}.g{generation}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(self, text):
        line = f"{self._words} {self._number} {text}\n".encode()
        self._number += 1
        rest = line
        while rest:
            rest = rest[os.write(1, rest) :]
        os.write(self._file, f"{time.time():.6f} ".encode() + line)


def stored(change):
    """Call `change` with the cache and return its result. Retry while nodes leave and join."""
    deadline = time.monotonic() + STORE_PATIENCE_S
    own = Endpoint(os.environ["IGNITE_DATASET_HOST"], int(os.environ["IGNITE_DATASET_PORT"]))
    others = [Endpoint(*each) for each in TOLD["endpoints"]]
    options = ConnectOptions(endpoints=tuple(dict.fromkeys([own, *others])), timeout_s=3.0)
    while True:
        try:
            with connect(options) as client:
                return change(client.cache(TOLD["cache"]))
        except (ConnectionFailed, ConnectionLost, ServerError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def save(generation, step, total, *, ended=False):
    """Save the state, unless a later generation has saved its own."""
    run = os.environ["IGNITE_TF_RUN_ID"]

    def put(cache):
        found = json.loads(cache.get(run) or '{"generation": 0}')
        if found["generation"] > generation:
            raise SystemExit(f"generation {generation} lives beside {found['generation']}")
        cache.put(run, json.dumps({"generation": generation, "step": step, "total": total, "ended": ended}))

    stored(put)


def demand_signs_of_life(peer):
    """Detect a broken link to a peer, but wait for a slow peer."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 2),
        (socket.TCP_KEEPINTVL, 2),
        (socket.TCP_KEEPCNT, (PEER_PATIENCE_S - 2) // 2),
        (socket.TCP_USER_TIMEOUT, 1000 * PEER_PATIENCE_S),
    ):
        peer.setsockopt(socket.IPPROTO_TCP, option, value)
    peer.settimeout(STEP_S)


def lead(journal, server, num_others, generation):
    """Run the first worker, which drives the steps."""
    peers = []
    deadline = time.monotonic() + MEETING_S
    while len(peers) < num_others:
        server.settimeout(max(deadline - time.monotonic(), 0.01))
        peer, _ = server.accept()
        peer.settimeout(1.0)
        stream = peer.makefile("rwb", buffering=0)
        try:
            if stream.readline() != b"here\n":  # only a check whether this worker is up
                raise OSError
        except OSError:
            peer.close()
            continue
        demand_signs_of_life(peer)
        peers.append(stream)
    row = json.loads(
        stored(lambda cache: cache.get(os.environ["IGNITE_TF_RUN_ID"])) or '{"step": 0, "total": 0}'
    )
    step, total = row["step"], row["total"]
    journal.tell(f"begins after step {step}")
    while step < TOLD["steps"]:
        for stream in peers:
            stream.write(b"%d\n" % step)
        answers = [stream.readline() for stream in peers]
        if not all(answers):
            raise UnavailableError("UNAVAILABLE: Connection reset by peer")
        step, total = step + 1, total + 1 + sum(map(int, answers))
        if step % CHECKPOINT_EACH == 0:
            save(generation, step, total)
        journal.tell(f"step {step}")
        time.sleep(TOLD["step_s"])
    save(generation, step, total, ended=True)
    for stream in peers:
        stream.write(b"end\n")
    journal.tell("ends")


def follow(journal, address, worker):
    """Run another worker: add its number at each step."""
    deadline = time.monotonic() + MEETING_S
    while True:
        try:
            peer = socket.create_connection(address, 1.0)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    demand_signs_of_life(peer)
    stream = peer.makefile("rwb", buffering=0)
    stream.write(b"here\n")
    while (asked := stream.readline()) != b"end\n":
        if not asked:
            raise UnavailableError("UNAVAILABLE: Connection reset by peer")
        journal.tell(f"step {int(asked) + 1}")
        stream.write(b"%d\n" % (worker + 1))
    journal.tell("ends")


def main():
    """Run one worker."""
    config = json.loads(os.environ["TF_CONFIG"])
    worker, addresses = config["task"]["index"], config["cluster"]["worker"]
    addresses = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in addresses)]
    assignment = Path(os.environ["IGNITE_DATASET_ASSIGNMENT_FILE"])
    rows = json.loads(assignment.read_text())["rows_by_worker"]
    if sum(rows) != TOLD["rows"]:
        raise SystemExit(f"the workers read {sum(rows)} rows of {TOLD['rows']}")
    generation = int(assignment.name.split(".g")[1].split(".")[0]) if ".g" in assignment.name else 1
    folder = TOLD["journals"].get(socket.gethostname()) or TOLD["journals"]["*"]
    journal = Journal(folder, worker, generation)
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(addresses[worker])
    server.listen()
    try:
        if worker == 0:
            lead(journal, server, len(addresses) - 1, generation)
        else:
            follow(journal, addresses[0], worker)
    except (ConnectionError, TimeoutError) as error:
        raise UnavailableError(f"UNAVAILABLE: {error}") from error


main()
