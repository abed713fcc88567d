"""Failing connections, each with an error that says what to do; and TLS with passwords."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, NodeTls, down, ensure_up
from ignite_tf_magic.errors import (
    AuthenticationError,
    CacheNotFound,
    ConfigError,
    ConnectionFailed,
    ConnectionLost,
)
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.messages import CacheConfig, QueryEntity, QueryField
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint, TlsOptions
from tests.client.certificates import Certificates


def options(port: int, **more) -> ConnectOptions:
    return ConnectOptions((Endpoint("127.0.0.1", port),), timeout_s=5.0, **more)


@contextmanager
def listener(answer: bytes | None):
    """Listen as something that is not an Ignite node: answer with bytes, or close the connection if None."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    stream, _ = server.accept()
                    with stream:
                        stream.recv(1000)
                        if answer:
                            stream.sendall(answer)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionFailed, match=rf"127.0.0.1:{port}: connection refused"):
        connect(options(port))


def test_unknown_host():
    with pytest.raises(ConnectionFailed, match="unknown host name"):
        connect(ConnectOptions((Endpoint("no-such-host.invalid"),)))


def test_a_web_server_is_not_an_ignite_node():
    with listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        with pytest.raises(ConnectionFailed, match="not an Ignite node's client port"):
            connect(options(port))


def test_a_server_that_hangs_up():
    with (
        listener(None) as port,
        pytest.raises(ConnectionFailed, match="does not answer an Ignite handshake.*TLS"),
    ):
        connect(options(port))


def test_the_nodes_discovery_port_is_not_its_client_port(ignite):
    discovery, _ = ignite.peer_ports[0]
    with pytest.raises(ConnectionFailed):
        connect(options(discovery))


def test_every_endpoint_is_tried_and_named(ignite):
    good = ignite.connect_options.endpoints[0]
    with socket.create_server(("127.0.0.1", 0)) as server:
        bad = Endpoint("127.0.0.1", server.getsockname()[1])
    with connect(ConnectOptions((bad, good))) as client:
        assert len(client.nodes()) == 3


def test_a_closed_client_keeps_no_connection(ignite):
    """A connection returned after the close, as by a scan collected late, is closed; none is opened."""
    client = connect(ignite.connect_options)
    channel = client.router.open_to(client.router.nodes()[0])
    client.close()
    client.router.give_back(channel)
    with pytest.raises(ConnectionLost):
        channel.call(messages.heartbeat(), messages.parse_nothing)
    with pytest.raises(ConnectionFailed, match="has been closed"):
        client.cache_names()


def test_caches(client):
    client.create_cache(CacheConfig("SOME_CACHE"))
    cache = client.cache("SOME_CACHE")
    cache.put("a", 1)
    assert (cache.get("a"), cache.get("b"), cache.contains("a"), cache.size()) == (1, None, True, 1)
    assert cache.remove("a") and not cache.remove("a")
    with pytest.raises(CacheNotFound, match="did you mean 'SOME_CACHE'"):
        client.cache("some_cach")
    client.destroy_cache("SOME_CACHE")
    with pytest.raises(CacheNotFound):
        cache.get("a")
    with pytest.raises(CacheNotFound):
        client.destroy_cache("SOME_CACHE")


def test_a_heartbeat_tells_of_changes(client):
    client.create_cache(CacheConfig("BEAT"))
    before = client.heartbeat()
    client.destroy_cache("BEAT")
    after = client.heartbeat()
    assert before is not None
    assert after is not None
    assert after > before


def test_a_configuration_comes_back_whole(client):
    field = QueryField("X", "java.lang.Integer")
    entity = QueryEntity(
        "T", "java.lang.Long", "Row", (QueryField("ID", "java.lang.Long", True), field), "ID"
    )
    config = CacheConfig("WHOLE", backups=1, sql_schema="PUBLIC", query_entities=(entity,))
    found = client.create_cache(config).config()
    assert (found.name, found.backups, found.write_mode) == ("WHOLE", 1, config.write_mode)
    assert [(f.name, f.java_type) for f in found.query_entities[0].fields][-1] == ("X", "java.lang.Integer")
    assert found.query_entities[0].value_type == "Row"
    client.destroy_cache("WHOLE")


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """One node with TLS, requested client certificates, and passwords."""
    folder = tmp_path_factory.mktemp("secured")
    home = tmp_path_factory.mktemp("secured-home")
    home.chmod(0o700)
    certificates = Certificates.make(folder)
    tls = NodeTls(
        str(certificates.keystore),
        certificates.password,
        str(certificates.truststore),
        certificates.password,
        client=TlsOptions(certfile=str(certificates.single_pem)),
        require_client_certificate=True,
    )
    cluster_options = EmbeddedOptions(num_nodes=1, heap="256m", persist=True, authentication=True, tls=tls)
    try:
        yield ensure_up(cluster_options, Lifetime.UNTIL_IDLE, home=home).cluster, certificates
    finally:
        down(home, delete_data=True)


def test_tls_and_password_with_a_single_pem(secured):
    cluster, _ = secured
    with connect(cluster.connect_options) as client:
        assert client.is_active()
        client.get_or_create_cache(CacheConfig("SECURED")).put(1, 2)
        assert client.cache("SECURED").get(1) == 2


def test_a_certificate_and_its_encrypted_key_apart(secured):
    cluster, certificates = secured
    tls = TlsOptions(
        str(certificates.cert_pem),
        str(certificates.encrypted_key),
        certificates.password,
        str(certificates.ca_pem),
    )
    with connect(options(cluster.nodes[0].port, username="ignite", password="ignite", tls=tls)) as client:
        assert client.is_active()


def test_sql_with_tls_and_password(secured):
    cluster, _ = secured
    assert SqlClient(cluster.connect_options).query("SELECT 1").rows == ((1,),)
    with pytest.raises(AuthenticationError):
        SqlClient(replace(cluster.connect_options, password="wrong")).query("SELECT 1")


def test_a_dataset_reads_with_tls_and_password_on_every_connection(secured, monkeypatch):
    from ignite_tf_magic import IgniteDataset

    cluster, certificates = secured
    with connect(cluster.connect_options) as client:
        cache = client.get_or_create_cache(CacheConfig("SECURED_ROWS"))
        for key in range(200):
            cache.put(key, key * 2)
    given = {"username": "ignite", "password": "ignite", "certfile": str(certificates.single_pem)}
    dataset = IgniteDataset("SECURED_ROWS", host="127.0.0.1", port=cluster.nodes[0].port, **given)
    assert sum(int(b["val"].shape[0]) for b in dataset.batch(64)) == 200


def test_a_session_of_this_process_reads_with_what_the_dataset_was_given_and_no_other(secured):
    import tensorflow as tf

    import ignite_tf_magic

    ignite_tf_magic.register()
    v1 = tf.compat.v1
    cluster, certificates = secured
    with connect(cluster.connect_options) as client:
        cache = client.get_or_create_cache(CacheConfig("SECURED_GRAPH"))
        for key in range(50):
            cache.put(key, key * 2)
    given = {"username": "ignite", "password": "ignite", "certfile": str(certificates.single_pem)}

    def dataset():
        return ignite_tf_magic.IgniteDataset(
            "SECURED_GRAPH", host="127.0.0.1", port=cluster.nodes[0].port, **given
        )

    with tf.Graph().as_default() as graph:
        rows = v1.data.make_one_shot_iterator(dataset().batch(100)).get_next()
        with v1.Session() as session:
            assert sorted(session.run(rows)["val"]) == list(range(0, 100, 2))
        with tf.device("/job:worker/task:1"), pytest.raises(ConfigError, match="a graph keeps no secrets"):
            dataset()
        written = graph.as_graph_def().SerializeToString()
    assert str(certificates.single_pem).encode() not in written
    assert b"password" not in written


def test_wrong_password_and_none(secured):
    cluster, certificates = secured
    tls = TlsOptions(str(certificates.single_pem))
    with pytest.raises(AuthenticationError, match="user 'ignite' was refused"):
        connect(options(cluster.nodes[0].port, username="ignite", password="wrong", tls=tls))
    with pytest.raises(AuthenticationError, match="no user name was given"):
        connect(options(cluster.nodes[0].port, tls=tls))


def test_tls_on_one_side_only(secured, ignite):
    cluster, certificates = secured
    with pytest.raises(ConnectionFailed, match="if the node uses TLS, give a certfile"):
        connect(options(cluster.nodes[0].port, username="ignite", password="ignite"))
    with pytest.raises(ConnectionFailed, match="if it does not use TLS, give no certfile"):
        connect(options(ignite.nodes[0].port, tls=TlsOptions(str(certificates.single_pem))))


def test_an_untrusted_node_and_unreadable_files(secured, tmp_path):
    cluster, certificates = secured
    other = Certificates.make(tmp_path)
    with pytest.raises(ConnectionFailed, match="not trusted"):
        connect(options(cluster.nodes[0].port, tls=TlsOptions(cafile=str(other.ca_pem))))
    with pytest.raises(ConfigError, match="TLS files are unusable.*nowhere.pem"):
        connect(options(cluster.nodes[0].port, tls=TlsOptions(str(tmp_path / "nowhere.pem"))))
    tls = TlsOptions(str(certificates.cert_pem), str(certificates.encrypted_key), "wrong")
    with pytest.raises(ConfigError, match="TLS files are unusable"):
        connect(options(cluster.nodes[0].port, tls=tls))


def test_secrets_do_not_show():
    shown = repr(ConnectOptions(username="u", password="hunter2", tls=TlsOptions("c", "k", "hunter3")))
    assert "hunter" not in shown
