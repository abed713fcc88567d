from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.settings.options import (
    Config,
    Endpoint,
    HostOptions,
    LaunchOptions,
    OnRebalance,
    SshConfig,
    configured_cluster,
    load_config_file,
    read_config,
    state_dir,
)

FULL = """
[cluster]
addresses = ["db1:10800", "[fd00::2]:10801"]
username = "reader"
certfile = "client.pem"

[ssh]
config = "ssh/config"
known_hosts = "/etc/ssh/known"
user = "me"
connect_timeout_s = 5
via = "bastion"

[launch]
python = "/opt/py/bin/python"
ports = "40000-40999"
log_limit = "1.5 GiB"
tunnel = true
max_restarts = 0
deadline_s = 3600
on_rebalance = "ignore"
warm_s = 60

[hosts.db1]
addresses = ["172.17.0.2", "fd00::2"]
node_ids = ["node-1"]
ssh = "db1.example"
python = "python3.11"
root = "/scratch/me"
tf_address = "10.0.0.5"

[hosts."10.0.0.6"]
python = "python3.12"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, with no configuration in any other place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)
    return tmp_path


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ignite-tf.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_file_everything_has_its_default(here):
    assert read_config() == Config()
    assert configured_cluster() is None


def test_a_whole_file(here):
    path = write(here, FULL)
    found = read_config()
    assert found.path == path
    assert found.cluster is not None
    assert found.cluster.endpoints == (Endpoint("db1", 10800), Endpoint("fd00::2", 10801))
    assert found.cluster.username == "reader"
    assert found.cluster.tls is not None
    assert found.cluster.tls.certfile == str(here / "client.pem")
    assert found.ssh == SshConfig(here / "ssh/config", Path("/etc/ssh/known"), "me", 5.0, "bastion")
    assert found.launch == LaunchOptions(
        "/opt/py/bin/python", (40000, 40999), 3 << 29, 0, 3600.0, OnRebalance.IGNORE, 60.0, tunnel=True
    )
    assert found.hosts == (
        HostOptions(
            name="db1",
            addresses=("172.17.0.2", "fd00::2"),
            node_ids=("node-1",),
            ssh="db1.example",
            python="python3.11",
            root="/scratch/me",
            tf_address="10.0.0.5",
        ),
        HostOptions("10.0.0.6", python="python3.12"),
    )
    assert configured_cluster() == found.cluster
    assert read_config(path) == load_config_file(path) == found


@pytest.mark.parametrize(("text", "expected"), [("", None), ("warm_s = 0", 0.0), ("warm_s = 0.5", 0.5)])
def test_whether_hosts_stay_warm_is_said_or_left_to_who_starts(here, text, expected):
    write(here, f"[launch]\n{text}\n")
    assert read_config().launch.warm_s == expected


def test_the_working_directory_comes_before_the_user_s_directory(here):
    write(here / "user" / "ignite_tf_magic", '[cluster]\naddresses = ["far"]\ncertfile = "c.pem"')
    far = read_config().cluster
    assert far is not None and far.tls is not None
    assert far.endpoints == (Endpoint("far"),)
    assert far.tls.certfile == str(here / "user" / "ignite_tf_magic" / "c.pem")
    write(here, '[cluster]\naddresses = ["near"]')
    near = configured_cluster()
    assert near is not None and near.endpoints == (Endpoint("near"),)


def test_a_working_directory_that_was_removed_is_said_to_be(here, tmp_path, monkeypatch):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="was removed or replaced; go to one that exists"):
        configured_cluster()


def test_a_file_that_is_named_comes_before_the_environment_and_that_before_a_file_that_is_found(here):
    path = write(here, '[cluster]\naddresses = ["file"]\nusername = "u"')
    env = {"IGNITE_TF_CLUSTER": "env:1,env:2"}
    found, named = read_config(env=env).cluster, read_config(path, env).cluster
    assert found is not None and named is not None
    assert found.endpoints == (Endpoint("env", 1), Endpoint("env", 2))
    assert found.username == "u"
    assert named.endpoints == (Endpoint("file"),)
    other = write(here / "other", "[launch]\nmax_restarts = 3")
    without = read_config(other, env)
    assert without.cluster is not None and without.cluster.endpoints == found.endpoints
    assert without.launch.max_restarts == 3


def test_a_fault_in_another_table_does_not_hinder_who_needs_only_the_cluster(here):
    write(here, '[cluster]\naddresses = ["db1"]\n[launch]\nportz = 1')
    assert configured_cluster() is not None
    with pytest.raises(ConfigError, match=r"\[launch\] has no key 'portz'; did you mean 'ports'\?"):
        read_config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[clutser]", r"the top of the file has no key 'clutser'; did you mean 'cluster'\?"),
        ("[cluster]\nxyz = 1", r"\[cluster\] has no key 'xyz'; it may hold addresses, "),
        ('[cluster]\naddresses = "db1"', r"\[cluster\] addresses = 'db1': a list of names"),
        ('[cluster]\naddresses = ["db1:x"]', r"\[cluster\] addresses: 'db1:x' is not an Ignite address"),
        ("[cluster]\nusername = 5", r"\[cluster\] username = 5: a text"),
        ('cluster = "db1"', r"cluster must be a table; write \[cluster\]"),
        ('[launch]\nports = "5"', r"\[launch\] ports = '5': two port numbers"),
        ('[launch]\nports = "9-5"', r"\[launch\] ports = '9-5': two port numbers"),
        ('[launch]\nports = "1-70000"', "two port numbers"),
        ("[launch]\nports = 40000", "two port numbers"),
        ("[launch]\ntunnel = 1", "tunnel = 1: true or false"),
        ('[launch]\nlog_limit = "lots"', r"\[launch\] log_limit = 'lots': a size"),
        ("[launch]\nlog_limit = 0", "a size above 0"),
        ("[launch]\nlog_limit = true", "a size above 0"),
        ("[launch]\nmax_restarts = -1", "a whole number from 0 up"),
        ("[launch]\nmax_restarts = true", "a whole number from 0 up"),
        ("[launch]\nmax_restarts = 99999999999", "a whole number from 0 up \\(1000000000 at most\\)"),
        ("[launch]\ndeadline_s = 1e300", "seconds above 0 \\(1000000000 at most\\)"),
        ("[ssh]\nconnect_timeout_s = 1e300", "seconds above 0 \\(1000000000 at most\\)"),
        (f"[launch]\nlog_limit = '{'9' * 400}TiB'", "below 8 EiB"),
        ("[launch]\ndeadline_s = 0", "seconds above 0"),
        ("[launch]\ndeadline_s = nan", "seconds above 0"),
        ("[launch]\ndeadline_s = true", "seconds above 0"),
        ("[launch]\nwarm_s = false", "seconds from 0 up"),
        ("[launch]\nwarm_s = -1", "seconds from 0 up"),
        ('[launch]\non_rebalance = "stop"', r"on_rebalance = 'stop': \"restart\" or \"ignore\" is needed"),
        ("[launch]\non_rebalance = []", "on_rebalance"),
        ('[launch]\npython = " "', r"\[launch\] python = ' ': a text"),
        ('[ssh]\nvia = "-oProxyCommand=x"', r"\[ssh\] via .* not beginning with '-'"),
        ('[ssh]\nvia = "a b"', "without blanks"),
        ("[ssh]\nconnect_timeout_s = -1", "seconds above 0"),
        ("hosts = 5", r"hosts must be a table"),
        ("[hosts]\ndb1 = 5", r"write \[hosts.db1\]"),
        ('[hosts."a,b"]\n', "no blanks, no commas"),
        ('[hosts."-a"]\n', "no blanks, no commas"),
        ('[hosts.a]\nadress = ["x"]', r"\[hosts.a\] has no key 'adress'; did you mean 'addresses'\?"),
        ('[hosts.a]\naddresses = ["10.0.0.1:10800"]', r"\[hosts.a\]: '10.0.0.1:10800' has a port"),
        (
            '[hosts.a]\naddresses = ["1.2.3.4"]\n[hosts.b]\naddresses = ["1.2.3.4"]',
            r"1.2.3.4 is both in \[hosts.a\] and in \[hosts.b\]",
        ),
        ("a = ", "cannot read"),
    ],
)
def test_what_is_wrong_is_said_with_file_table_and_key(here, text, message):
    path = write(here, text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config()
    assert str(path) in str(caught.value)


def test_no_message_shows_a_password(here):
    write(here, '[cluster]\naddresses = ["a"]\npassword = 31337')
    with pytest.raises(ConfigError, match=r"\[cluster\] password: a text") as caught:
        read_config()
    assert "31337" not in str(caught.value)


def test_credentials_come_from_their_own_file(here):
    secret = here / "secret.json"
    secret.write_text('{"username": "u", "password": "hush"}')
    secret.chmod(0o600)
    write(here, '[cluster]\naddresses = ["a"]\ncredentials_file = "secret.json"')
    found = read_config().cluster
    assert found is not None
    assert (found.username, found.password) == ("u", "hush")
    assert "hush" not in repr(found)


def test_values_of_a_credentials_file_are_text_or_truth_values(here):
    secret = here / "secret.json"
    secret.write_text('{"cafile": "ca.pem", "check_hostname": false, "username": null}')
    secret.chmod(0o600)
    write(here, '[cluster]\naddresses = ["a"]\ncredentials_file = "secret.json"')
    assert read_config().cluster.tls.check_hostname is False
    secret.write_text('{"password": 31337}')
    with pytest.raises(
        ConfigError, match=r"password in .*secret\.json must be text; put it into quotes"
    ) as caught:
        read_config()
    assert "31337" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [('"1GiB"', 1 << 30), ('"500MB"', 500_000_000), ('"1.5 kib"', 1536), ("4096", 4096), ('"7 b"', 7)],
)
def test_sizes(here, text, num_bytes):
    write(here, f"[launch]\nlog_limit = {text}")
    assert read_config().launch.log_limit_bytes == num_bytes


def test_a_file_from_windows_is_read(here):
    (here / "ignite-tf.toml").write_bytes(b'\xef\xbb\xbf[cluster]\r\naddresses = ["a"]\r\n')
    assert read_config().cluster is not None


def test_files_that_cannot_be_read(here):
    with pytest.raises(ConfigError, match="cannot read the configuration .*none.toml: No such file"):
        read_config(here / "none.toml")
    (here / "big.toml").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load_config_file(here / "big.toml")
    (here / "binary.toml").write_bytes(b"\x80\x81")
    with pytest.raises(ConfigError, match="binary.toml"):
        load_config_file(here / "binary.toml")


def test_spring_xml_gives_the_addresses_and_the_toml_the_rest(here):
    write(here, FULL)
    path = here / "ignite.conf"
    path.write_text(
        """<?xml version="1.0"?>
        <beans xmlns="http://www.springframework.org/schema/beans">
          <bean class="org.apache.ignite.configuration.ClientConnectorConfiguration">
            <property name="sslEnabled" value="true"/></bean>
          <bean class="org.apache.ignite.spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder">
            <property name="addresses"><list><value>x1:47500..47509</value><value>x2</value></list></property>
          </bean></beans>"""
    )
    found = load_config_file(path, {"IGNITE_TF_CLUSTER": "env"})
    assert found.cluster is not None
    assert found.cluster.endpoints == (Endpoint("x1"), Endpoint("x2"))
    assert found.cluster.username == "reader"
    assert [note for note in found.notes if "TLS" in note]
    assert found.launch.ports == (40000, 40999)


def test_the_state_directory_needs_no_library_when_it_is_named(tmp_path):
    code = """
import sys
sys.modules["platformdirs"] = None
from ignite_tf_magic.settings.options import state_dir
print(state_dir())
"""
    home = tmp_path / "deep" / "home"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"IGNITE_TF_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.strip() == str(home)
    assert home.stat().st_mode & 0o777 == 0o700


HOST = socket.gethostname().partition(".")[0]


def test_the_state_directory_is_the_one_of_the_agents(tmp_path, monkeypatch):
    monkeypatch.delenv("IGNITE_TF_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert sys.platform == "win32" or state_dir() == tmp_path / "ignite_tf_magic" / HOST
    (tmp_path / "ignite_tf_magic" / "runs").mkdir()  # from an earlier version
    assert sys.platform == "win32" or state_dir() == tmp_path / "ignite_tf_magic"
