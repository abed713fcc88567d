"""Paths and addresses: any name that a disk allows, and the cluster that an address means."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.errors import ConfigError, InvalidPath
from ignite_tf_magic.igfs import addresses, paths
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1).filter(
    lambda name: name not in (".", "..") and len(name.encode()) <= paths.MAX_NAME_BYTES
)
HOSTILE = [
    "a b",
    " ",
    "#",
    "a#b?c%20d",
    "C:\\x",
    "~",
    "...",
    "*[x]",
    "a\nb",
    "\u202e\ud7ff",
    "日本語",
    "e\u0301",
    "\u00e9",
    "🦉" * 200,
    "x" * 1000,
    "igfs:",
    "-rf",
    "a:b@c",
]


@given(st.lists(NAMES, max_size=20).map(tuple))
def test_a_path_is_read_as_it_is_written(path):
    assert paths.parse(paths.render(path)) == path
    assert paths.parse(f"igfs://{paths.render(path)}") == path
    assert paths.parse(f"igfs://db1:10800{paths.render(path)}") == path


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_names(name):
    assert paths.parse(f"/d/{name}/f") == ("d", name, "f")
    assert paths.parse(f"igfs:///d/{name}") == ("d", name)


@pytest.mark.parametrize(
    "path", ["", "/", "//", "/./", ".", "igfs://", "igfs:///", "igfs://host:1/", "igfs:"]
)
def test_paths_of_the_root(path):
    assert paths.parse(path) == ()


@pytest.mark.parametrize(
    ("path", "same"),
    [
        *[("a//b", "/a/b"), ("/a/./b/", "/a/b"), ("./a", "/a")],
        *[("/a/../b", "/b"), ("/a/b/../..", "/"), ("/../b", "/b"), ("..", "/"), ("/a/..b/...", "/a/..b/...")],
    ],
)
def test_empty_names_are_left_out_and_dots_lead_back(path, same):
    assert paths.render(paths.parse(path)) == same


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/a\0b", "NUL"),
        ("/a/\ud800", "surrogate"),
        ("/" + "x" * 4097, "4,097"),
        ("/" + "é" * 2049, "4,098"),
        ("/" + "/".join(["x" * 4000] * 17), "65,536"),
    ],
)
def test_paths_that_no_file_can_have(path, why):
    with pytest.raises(InvalidPath, match=why) as caught:
        paths.parse(path)
    assert isinstance(caught.value, OSError)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("uri", "authority", "path"),
    [
        ("igfs://db1:10800/a/b", "db1:10800", "/a/b"),
        ("igfs:///a", "", "/a"),
        ("igfs://db1", "db1", ""),
        ("/a/igfs://b", "", "/a/igfs://b"),
        ("igfs://[::1]:10800/a", "[::1]:10800", "/a"),
    ],
)
def test_uris_are_divided(uri, authority, path):
    assert paths.split_uri(uri) == (authority, path)


@pytest.mark.parametrize("authority", ["db1:port", "db1:0", "db1:99999", ":1"])
def test_an_authority_that_is_none(authority):
    with pytest.raises(InvalidPath, match="HOST:PORT"):
        paths.endpoint_of(authority)


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch, tmp_path):
    """Ensure that no cluster is configured and none runs for this user."""
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("authority", "env", "endpoints"),
    [
        ("db1:10801", {}, [("db1", 10801)]),
        ("db1", {}, [("db1", 10800)]),
        ("db1:1", {"IGFS_HOST": "old", "IGNITE_DATASET_HOST": "near"}, [("db1", 1)]),
        ("", {"IGFS_HOST": "old"}, [("old", 10800)]),
        ("", {"IGFS_HOST": "old", "IGFS_PORT": "10500"}, [("old", 10800)]),
        ("", {"IGFS_HOST": "old", "IGFS_PORT": "11800"}, [("old", 11800)]),
        ("", {"IGFS_PORT": "11800", "IGNITE_TF_CLUSTER": "c:1"}, [("c", 1)]),
        ("", {"IGFS_HOST": "old", "IGNITE_DATASET_HOST": "near"}, [("old", 10800)]),
        ("", {"IGNITE_DATASET_HOST": "near", "IGNITE_TF_CLUSTER": "c:1"}, [("near", 10800)]),
        ("", {"IGNITE_DATASET_HOST": "near", "IGNITE_DATASET_PORT": "7"}, [("near", 7)]),
        ("", {"IGNITE_TF_CLUSTER": "c:1,d:2"}, [("c", 1), ("d", 2)]),
    ],
)
def test_which_cluster_is_meant(authority, env, endpoints):
    assert addresses.cluster_of(authority, env).endpoints == tuple(Endpoint(*e) for e in endpoints)


def test_no_cluster_at_all_says_what_to_do():
    with pytest.raises(ConfigError, match=r"IGNITE_TF_CLUSTER=.*ignite-tf local up"):
        addresses.cluster_of("", {})


def test_a_port_that_is_none():
    with pytest.raises(ConfigError, match="IGFS_PORT='x'"):
        addresses.cluster_of("", {"IGFS_HOST": "old", "IGFS_PORT": "x"})


def test_an_address_is_reached_as_the_same_user(tmp_path):
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"username": "u", "password": "p", "cafile": "ca.pem"}))
    secrets.chmod(0o600)
    env = {"IGNITE_DATASET_HOST": "near", "IGNITE_DATASET_CREDENTIALS_FILE": str(secrets)}
    for found in (addresses.cluster_of("near", env), addresses.cluster_of("", env)):
        assert (found.username, found.password) == ("u", "p")
        assert found.tls is not None
        assert found.tls.cafile == "ca.pem"
    assert addresses.cluster_of("", {"IGNITE_DATASET_HOST": "h", "IGNITE_DATASET_USERNAME": "w"}) == (
        ConnectOptions((Endpoint("h"),), "w")
    )


def test_the_name_of_the_file_system():
    assert addresses.name_of_file_system({}) == "igfs"
    assert addresses.name_of_file_system({"IGFS_FS_NAME": "other"}) == "other"
