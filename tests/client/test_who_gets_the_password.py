"""The cluster's password goes to its nodes only, not to any holder of some certificate or address."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.router import Node, Router
from ignite_tf_magic.errors import ConfigError, ConnectionFailed, HandshakeError
from ignite_tf_magic.igfs.addresses import cluster_of
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint, TlsOptions, read_config
from tests.client.certificates import Certificates

PASSWORD = "pa55-of-the-cluster"


@pytest.fixture
def ours(tmp_path):
    (folder := tmp_path / "ours").mkdir()
    return Certificates.make(folder)


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """Certificates of an authority that this system trusts, like some 145 real ones."""
    (folder := tmp_path / "theirs").mkdir()
    made = Certificates.make(folder)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.ca_pem))
    return made


@contextmanager
def listening(certificates=None):
    """Accept connections without answering. Yields the port, and all bytes received."""
    told = bytearray()
    context = None
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.single_pem)

    def serve():
        while True:
            try:
                stream, _ = server.accept()
            except OSError:
                return
            with stream:
                try:
                    with context.wrap_socket(stream, server_side=True) if context else stream as inner:
                        inner.settimeout(300)
                        told.extend(inner.recv(4096))
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1], told
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def options(port, **given):
    return ConnectOptions((Endpoint("localhost", port),), "reader", PASSWORD, timeout_s=300, **given)


def test_a_certificate_of_the_system_s_authorities_is_none_of_the_cafile_s(ours, theirs):
    with listening(theirs) as (port, told), pytest.raises(ConnectionFailed, match="not trusted"):
        connect(options(port, tls=TlsOptions(cafile=str(ours.ca_pem))))
    assert PASSWORD.encode() not in told


def test_nor_of_the_authorities_in_the_certfile(ours, theirs):
    with listening(theirs) as (port, told), pytest.raises(ConnectionFailed, match="not trusted"):
        connect(options(port, tls=TlsOptions(str(ours.single_pem))))
    assert PASSWORD.encode() not in told


@pytest.mark.parametrize("check_hostname", [True, False])
def test_one_of_the_cafile_is_trusted(ours, check_hostname):
    tls = TlsOptions(cafile=str(ours.ca_pem), check_hostname=check_hostname)
    with listening(ours) as (port, told), pytest.raises((HandshakeError, ConnectionFailed)):
        connect(options(port, tls=tls))
    assert PASSWORD.encode() in told


def test_the_system_s_authorities_count_where_no_other_is_named(ours, theirs):
    """A client certificate alone does not name an authority."""
    tls = TlsOptions(str(ours.cert_pem), str(ours.encrypted_key), ours.password)
    with listening(theirs) as (port, told), pytest.raises((HandshakeError, ConnectionFailed)):
        connect(options(port, tls=tls))
    assert PASSWORD.encode() in told


def test_without_a_name_to_check_the_certificate_is_still_checked(ours, theirs):
    tls = TlsOptions(cafile=str(ours.ca_pem), check_hostname=False)
    with listening(theirs) as (port, told), pytest.raises(ConnectionFailed, match="not trusted"):
        connect(options(port, tls=tls))
    assert PASSWORD.encode() not in told


def test_without_a_name_and_an_authority_anybody_would_do(ours, theirs):
    tls = TlsOptions(str(ours.cert_pem), str(ours.encrypted_key), ours.password, check_hostname=False)
    with listening(theirs) as (port, told):
        with pytest.raises(ConfigError, match=r"check_hostname = false.*name the authority.*cafile"):
            connect(options(port, tls=tls))
        assert not told


# Addresses


@pytest.fixture
def configured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)
    path = tmp_path / "ignite-tf.toml"
    path.write_text(f'[cluster]\naddresses = ["db1", "db2:7"]\nusername = "u"\npassword = "{PASSWORD}"\n')
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("authority", ["evil:10800", "db1:10801", "db2"])
def test_who_is_named_in_an_address_and_is_not_configured_is_told_nothing(configured, authority):
    with pytest.raises(ConfigError, match=rf"igfs://{authority}/.*db1:10800, db2:7.*addresses") as refused:
        cluster_of(authority, {})
    assert PASSWORD not in str(refused.value)
    found = cluster_of(authority, {}, with_credentials=False)
    assert (found.username, found.password) == (None, None)


def test_who_is_configured_is(configured):
    for authority in ("db1", "db1:10800", "db2:7"):
        assert cluster_of(authority, {}).password == PASSWORD


def test_a_worker_knows_the_endpoints_that_were_configured(tmp_path):
    secrets = tmp_path / "secrets.json"
    known = {"username": "u", "password": PASSWORD, "endpoints": "db1:10800,db2:10800"}
    secrets.write_text(json.dumps(known))
    secrets.chmod(0o600)
    env = {"IGNITE_DATASET_HOST": "near", "IGNITE_DATASET_CREDENTIALS_FILE": str(secrets)}
    for authority in ("db2", "near", ""):
        assert cluster_of(authority, env).password == PASSWORD
    with pytest.raises(ConfigError, match="igfs://evil/"):
        cluster_of("evil", env)


def test_a_node_s_loopback_is_not_this_machine_s(monkeypatch):
    """Another user of this machine may listen on the loopback port that a remote node reports."""
    with listening() as (port, told):
        node = Node(uuid_of(1), (Endpoint("127.0.0.1", port),))
        far = ConnectOptions((Endpoint("203.0.113.1"),), "reader", PASSWORD, timeout_s=5)
        with pytest.raises(ConnectionFailed, match=rf"127.0.0.1:{port}: .*this machine.*not sent"):
            Router(far).open_to(node)
        assert not told
        near = replace(far, endpoints=(Endpoint("localhost"),))
        with pytest.raises((ConnectionFailed, HandshakeError)):
            Router(near).open_to(node)
    assert PASSWORD.encode() in told


def uuid_of(number):
    import uuid

    return uuid.UUID(int=number)


# Files


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_configuration_with_a_password_that_others_may_read(configured, mode):
    configured.chmod(mode)
    for path in (None, configured):
        with pytest.raises(
            ConfigError, match=r"ignite-tf.toml.*password.*others may read it.*chmod 600"
        ) as refused:
            read_config(path, {})
        assert PASSWORD not in str(refused.value)


def test_one_without_a_password_may_be_read_by_all(configured):
    configured.write_text('[cluster]\naddresses = ["db1"]\nusername = "u"\n')
    configured.chmod(0o644)
    assert read_config(None, {}).cluster.username == "u"


def test_the_password_of_a_key_is_one(configured):
    configured.write_text('[cluster]\naddresses = ["db1"]\ncertfile = "c.pem"\ncert_password = "x"\n')
    configured.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it"):
        read_config(None, {})


def test_a_configuration_into_which_others_may_write_is_not_found(configured):
    """A configuration names programs to run. A file that others can write is not the user's own."""
    configured.write_text('[cluster]\naddresses = ["db1"]\n')
    configured.chmod(0o666)
    with pytest.raises(ConfigError, match=r"others may write.*chmod go-w"):
        read_config(None, {})
