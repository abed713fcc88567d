"""Tests of `ignite-tf fs` and `%ignite_tf fs` on real nodes: output, refusals and effects."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from ignite_tf_magic.errors import ConfigError, PathNotFound
from ignite_tf_magic.session.files import Files
from ignite_tf_magic.ui.notebook.arguments import parse_line
from ignite_tf_magic.ui.notebook.magics import IgniteMagics
from ignite_tf_magic.ui.shell.cli import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cluster(here, ignite, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    return ignite


@pytest.fixture
def top(cluster):
    """A directory of igfs for this test alone."""
    path = f"/fs-{uuid.uuid4().hex[:8]}"
    with Files(report=print) as files:
        files.make_directory(path)
    return path


@pytest.fixture
def fs(capfdbinary):
    """Run a command in this process; return its output, or its errors if `code` is not 0."""

    def run(*words, code=0):
        capfdbinary.readouterr()
        assert main(["fs", *words]) == code, capfdbinary.readouterr()
        sys.stdout.flush()
        out, errors = capfdbinary.readouterr()
        return (errors if code else out).decode()

    return run


@pytest.fixture
def tree(here):
    """Files on this machine: small, empty, in a directory, and one of several blocks."""
    source = here / "source"
    (source / "sub dir").mkdir(parents=True)
    (source / "empty").touch()
    (source / "ü #1.txt").write_text("first\n")
    (source / "sub dir" / "large").write_bytes(os.urandom(2_500_000))
    os.utime(source / "ü #1.txt", ns=(0, 1_600_000_000_123_456_789))
    return source


def names_in(directory):
    return sorted(path.name for path in Path(directory).iterdir())


def content(directory):
    files = (path for path in Path(directory).rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def names(listing):
    return [line.split("  ")[-1] for line in listing.splitlines()[1:]]


def test_put_then_list_then_get_is_the_same(fs, top, tree):
    assert re.match(r"3 files, 2\.38 MiB, copied in \d", fs("put", "-r", str(tree), f"{top}/up"))
    assert names(fs("ls", f"igfs://{top}/up")) == [f"{top}/up/{n}" for n in ("empty", "sub dir/", "ü #1.txt")]
    assert f"{top}/up/sub dir/large" in names(fs("ls", "-R", f"{top}/up"))
    assert fs("cat", f"{top}/up/ü #1.txt", f"{top}/up/ü #1.txt") == "first\nfirst\n"
    fs("get", "-r", f"{top}/up", "down")
    assert content("down") == content(tree)
    assert Path("down/ü #1.txt").stat().st_mtime_ns == 1_600_000_000_123_456_789
    fs("get", "-r", f"{top}/up", "down")  # into an existing directory
    assert content("down/up") == content(tree)
    fs("put", str(tree / "empty"), str(tree / "ü #1.txt"), top)
    assert names(fs("ls", top)) == [f"{top}/empty", f"{top}/up/", f"{top}/ü #1.txt"]


def test_listing_tells_size_and_time(fs, top):
    Path("x").write_bytes(b"x" * 1536)
    os.utime("x", ns=(0, 1_600_000_000_123_456_789))
    fs("put", "x", top)
    assert re.search(rf"^1\.5 KiB  2020-09-1\d \d\d:\d\d:\d\d  {top}/x$", fs("ls", top), re.M)
    [info] = json.loads(fs("ls", "--json", top))
    assert info == {"path": f"{top}/x", "type": "file", "size": 1536, "mtime_ns": 1_600_000_000_123_456_789}
    [directory] = [each for each in json.loads(fs("ls", "--json")) if each["path"] == top]
    assert directory["type"] == "directory"


def test_an_address_with_a_node_is_kept_in_the_answers(fs, cluster, top):
    address = f"igfs://{cluster.connect_options.endpoints[0]}{top}"
    fs("mkdir", f"{address}/sub")
    assert names(fs("ls", address)) == [f"{address}/sub/"]


def test_patterns(fs, top):
    for name in ("a.txt", "b.txt", "[c].log"):
        Path(name).write_text(name)
    fs("mkdir", "-p", f"{top}/deep/er")
    fs("put", "a.txt", "b.txt", "[c].log", f"{top}/deep/er")
    assert fs("cat", f"{top}/deep/*/?.txt") == "a.txtb.txt"
    assert fs("cat", f"{top}/**/*.log") == "[c].log"
    assert fs("cat", f"{top}/deep/er/[c].log") == "[c].log"  # the name of an existing file is not a pattern
    assert "nothing in igfs matches" in fs("rm", f"{top}/*.txt", code=1)
    fs("rm", f"{top}/deep/er/*.txt")
    assert names(fs("ls", f"{top}/deep/er")) == [f"{top}/deep/er/[c].log"]


def test_copy_and_move(fs, top, tree):
    fs("put", "-r", str(tree), f"{top}/a")
    assert "3 files" in fs("cp", "-r", f"{top}/a", f"{top}/b")
    fs("mkdir", f"{top}/into")
    fs("mv", f"{top}/a", f"{top}/b", f"{top}/into")
    fs("mv", f"{top}/into/b", f"{top}/c")
    fs("get", "-r", f"{top}/c", "down")
    assert content("down") == content(tree)
    assert names(fs("ls", f"{top}/into")) == [f"{top}/into/a/"]
    assert "below itself" in fs("cp", "-r", f"{top}/c", f"{top}/c/d", code=1)


def test_sizes_add_up(fs, top, tree):
    fs("put", "-r", str(tree), f"{top}/up")
    found = {
        each["path"]: (each["size"], each["files"]) for each in json.loads(fs("du", "--json", f"{top}/up"))
    }
    assert found[f"{top}/up/sub dir"] == (2_500_000, 1)
    assert found[f"{top}/up"] == (2_500_006, 3)
    assert re.search(rf"^2\.38 MiB +3  {top}/up$", fs("du", "-s", f"{top}/up"), re.M)
    assert len(fs("du", "-s", f"{top}/up").splitlines()) == 2


def test_remove(fs, top, tree):
    fs("put", "-r", str(tree), f"{top}/up")
    assert "rm -r" in fs("rm", f"{top}/up", code=1)
    fs("rm", f"{top}/up/empty")
    fs("rm", "-r", f"{top}/up")
    assert fs("ls", top) == ""
    assert "no such file" in fs("rm", f"{top}/up", code=1)
    fs("rm", "-f", f"{top}/up")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cat", "{top}/none"], "no such file or directory in igfs"),
        (["get", "{top}"], "get -r"),
        (["put", "nothing", "{top}"], "no file nothing on this machine"),
        (["put", "-r", ".", "{top}/no/where"], "create it first"),
        (["get", "{top}/a", "no/such/directory/a"], "cannot write no/such/directory/a: No such file"),
        (["mkdir", "{top}/no/where"], "create it first"),
        (["mkdir", "{top}"], "already"),
        (["mv", "{top}", "igfs://127.0.0.1:1/x"], "127.0.0.1:1"),
        (["ls", "igfs://127.0.0.1:nope/"], "not an igfs address"),
        (["ls", "{top}/../../no-etc"], "no such file or directory in igfs: '/no-etc'"),
        (["rm", "-r", "/"], "the root cannot be removed"),
        (["sync", "{top}", "here"], "between igfs and this machine"),
        (["sync", "igfs://{top}/none", "here"], "no such directory to copy from"),
        (["unmount", "."], "not mounted"),
    ],
)
def test_errors_are_one_short_message(fs, top, words, said):
    Path("a").write_text("a")
    fs("put", "a", top)
    errors = fs(*(word.format(top=top) for word in words), code=1)
    assert said in errors
    assert len(errors.splitlines()) == 1


def test_interrupted_get_leaves_whole_files_only(top, cluster):
    Path("large").write_bytes(os.urandom(9_000_000))
    with Files(report=print) as files:
        files.put(["large"], top)
        Path("large").write_text("the old one")

        def interrupt(name, done, total):
            assert 0 < done < total == 9_000_000
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            files.get([f"{top}/large"], ".", progress=interrupt)
        assert Path("large").read_text() == "the old one"
        assert names_in(".") == ["large"]


def test_interrupted_put_leaves_the_old_file(top, cluster):
    Path("large").write_text("the old one")
    with Files(report=print) as files:
        files.put(["large"], top)
        Path("large").write_bytes(bytes(9_000_000))

        def interrupt(name, done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            files.put(["large"], top, progress=interrupt)
        assert b"".join(map(bytes, files.read(f"{top}/large"))) == b"the old one"


def test_closed_pipe_is_no_traceback(fs, top):
    Path("large").write_bytes(b"a line\n" * 1_000_000)
    fs("put", "large", top)
    shell = f"{sys.executable} -m ignite_tf_magic fs cat {top}/large | head -1"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("a line\n", "")


def test_sync_there_and_back(fs, top, tree):
    address = f"igfs://{top}/kept"
    first = json.loads(fs("sync", "--json", str(tree), address))
    assert sorted(first["copied"]) == ["empty", "sub dir", "sub dir/large", "ü #1.txt"]
    assert json.loads(fs("sync", "--json", str(tree), address)) == {"copied": [], "removed": [], "bytes": 0}
    assert "4 copied (2.38 MiB), 0 removed" in fs("sync", address, "mirror")
    assert content("mirror") == content(tree)
    assert json.loads(fs("sync", "--json", "mirror", address))["copied"] == []
    Path("mirror/ü #1.txt").write_text("second\n")
    assert json.loads(fs("sync", "--json", address, "mirror"))["copied"] == []  # the local copy is newer
    assert json.loads(fs("sync", "--json", "mirror", address))["copied"] == ["ü #1.txt"]
    assert fs("cat", f"{top}/kept/ü #1.txt") == "second\n"


def test_sync_deletes_only_when_asked(fs, top, tree):
    address = f"igfs://{top}/kept"
    fs("sync", str(tree), address)
    fs("sync", address, "mirror")
    fs("rm", "-r", f"{top}/kept/sub dir")
    assert json.loads(fs("sync", "--json", address, "mirror"))["removed"] == []
    assert json.loads(fs("sync", "--json", "--delete", address, "mirror"))["removed"] == ["sub dir"]
    assert sorted(names_in("mirror")) == ["empty", "ü #1.txt"]
    fs("rm", "-r", f"{top}/kept/*")
    assert "is empty" in fs("sync", "--delete", address, "mirror", code=1)
    assert sorted(names_in("mirror")) == ["empty", "ü #1.txt"]
    fs("mkdir", f"{top}/kept/empty")
    assert "a directory on one side and a file on the other" in fs("sync", address, "mirror", code=1)


def test_links_to_files_are_followed_and_those_to_directories_told(fs, top, here, capfdbinary):
    (here / "source" / "real").mkdir(parents=True)
    (here / "source" / "real" / "f").write_text("f")
    (here / "source" / "file").symlink_to("real/f")
    (here / "source" / "loop").symlink_to(".")
    assert main(["fs", "put", "-r", "source", f"{top}/up"]) == 0
    assert "left out: source/loop" in capfdbinary.readouterr()[1].decode()
    assert fs("cat", f"{top}/up/file") == "f"
    assert names(fs("ls", f"{top}/up")) == [f"{top}/up/file", f"{top}/up/real/"]


def test_another_file_system_and_its_check(fs, cluster, monkeypatch):
    monkeypatch.setenv("IGFS_FS_NAME", "second-igfs")
    Path("x").write_text("in the second one")
    assert "ignite-tf fs mkfs second-igfs" in fs("put", "x", "/only-here", code=1)
    assert "second-igfs is there" in fs("mkfs", "second-igfs")
    fs("put", "x", "/only-here")
    assert re.search(r"^1 file, 0 directories, 17 B in 0 blocks$", fs("fsck"), re.M)
    answer = json.loads(fs("fsck", "--json"))
    assert (answer["clean"], answer["files"], answer["problems"]) == (True, 1, [])
    monkeypatch.delenv("IGFS_FS_NAME")
    assert "no such file" in fs("cat", "/only-here", code=1)


def test_old_igfs_variables_are_understood(fs, cluster, top, monkeypatch):
    endpoint = cluster.connect_options.endpoints[0]
    monkeypatch.delenv("IGNITE_TF_CLUSTER")
    monkeypatch.setenv("IGFS_HOST", endpoint.host)
    monkeypatch.setenv("IGFS_PORT", str(endpoint.port))
    assert f"{top}/" in names(fs("ls"))


def test_without_a_configured_cluster_the_embedded_one_is_meant(fs, cluster, top, here, monkeypatch):
    monkeypatch.delenv("IGNITE_TF_CLUSTER")
    (here / "home").mkdir(mode=0o700)
    (here / "home" / "embedded").symlink_to(cluster.home)
    assert f"{top}/" in names(fs("ls", "igfs:///"))


def test_in_a_notebook(top, cluster, capsys):
    magics = IgniteMagics(InteractiveShell())
    Path("a b.txt").write_text("ü" * 5)
    magics.ignite_tf(f"fs put 'a b.txt' {top}")
    assert "1 file, 10 B, copied" in capsys.readouterr().out
    magics.ignite_tf(f"fs ls {top}")
    shown = capsys.readouterr().out
    assert f"{top}/a b.txt" in shown
    assert "<td" in shown
    magics.ignite_tf(f"fs cat '{top}/a b.txt'")
    assert capsys.readouterr().out == "ü" * 5
    with pytest.raises(PathNotFound):
        magics.ignite_tf(f"fs cat {top}/none")
    with pytest.raises(ConfigError, match="usage: %ignite_tf fs get"):
        magics.ignite_tf("fs get")
    Path("large").write_bytes(b"x" * 1_500_000)
    magics.ignite_tf(f"fs put large {top}")
    with pytest.raises(ConfigError, match="the first 1 MiB"):
        magics.ignite_tf(f"fs cat {top}/large")


def test_mount_is_a_command_of_the_notebook_by_itself():
    told = parse_line("mount igfs:///runs somewhere")
    assert vars(told) == vars(parse_line("fs mount igfs:///runs somewhere"))
