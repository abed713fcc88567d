"""Tests that archives are unpacked safely, and that a refused archive leaves nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile

import pytest

from tests.launch.relay_client import Refusal, clean_host, relay_at

MAX_BYTES = 1 << 20


@pytest.fixture
def relay(home):
    with clean_host(home) as relay:
        yield relay


def member(name: str, **fields) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def archive(*members, compress=True) -> bytes:
    """Return an archive of members: names, (name, bytes) pairs and TarInfo objects."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for each in members:
            info, data = each if isinstance(each, tuple) else (each, b"")
            info = info if isinstance(info, tarfile.TarInfo) else member(info, mode=0o644)
            info.size = len(data) or info.size
            tar.addfile(info, io.BytesIO(data) if data else None)
    return gzip.compress(raw.getvalue(), mtime=0) if compress else raw.getvalue()


def put(relay, data: bytes, *, digest: str | None = None, piece: int = 1 << 20, **bounds) -> str:
    digest = digest or hashlib.sha256(data).hexdigest()
    bounds = {"max_bytes": MAX_BYTES, "max_entries": 100, **bounds}
    starts = range(0, max(len(data), 1), piece)
    for part, start in enumerate(starts):
        last = part == len(starts) - 1
        relay.call("put", data[start : start + piece], digest=digest, part=part, last=last, **bounds)
    return digest


@pytest.mark.parametrize("compress", [True, False])
def test_a_tree_arrives_whole_and_private(relay, home, compress):
    data = archive(
        member("bin", type=tarfile.DIRTYPE),
        (member("bin/run", mode=0o777), b"#!"),
        ("deep/er/file", b"x" * 5000),
        "empty",
        member("link", type=tarfile.SYMTYPE, linkname="deep/er/../er/file"),
        member("hard", type=tarfile.LNKTYPE, linkname="bin/run"),
        compress=compress,
    )
    digest = put(relay, data, piece=100)
    tree = home / "parcels" / digest
    assert (tree / "deep/er/file").read_bytes() == b"x" * 5000
    assert (tree / "link").read_bytes() == b"x" * 5000
    assert (tree / "hard").read_bytes() == b"#!"
    assert (tree / "empty").read_bytes() == b""
    assert [(tree / name).stat().st_mode & 0o777 for name in ("bin/run", "hard", "empty", "bin")] == [
        *(0o700, 0o700, 0o600, 0o700)
    ]
    assert relay.call("has", digests=[digest, "0" * 64])["have"] == [digest]
    put(relay, data)  # a second upload changes nothing
    assert [path.name for path in (home / "parcels").iterdir()] == [digest]


OUT = "../../../../../outside"
HOSTILE = {
    "parent": archive(("../evil", b"x")),
    "hidden parent": archive(("a/../../evil", b"x")),
    "absolute": archive(("/tmp/evil", b"x")),
    "link out": archive(member("l", type=tarfile.SYMTYPE, linkname=OUT)),
    "absolute link": archive(member("l", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    "through a link": archive(member("l", type=tarfile.SYMTYPE, linkname="."), ("l/file", b"x")),
    "link by links": archive(
        member("d/e/f", type=tarfile.DIRTYPE),
        member("d/e/f/up", type=tarfile.SYMTYPE, linkname="../../.."),
        member("out", type=tarfile.SYMTYPE, linkname="d/e/f/up/.."),
    ),
    "hard link out": archive(member("l", type=tarfile.LNKTYPE, linkname="../../agents")),
    "absolute hard link": archive(member("l", type=tarfile.LNKTYPE, linkname="/etc/passwd")),
    "hard link to a link": archive(
        member("s", type=tarfile.SYMTYPE, linkname="f"), member("l", type=tarfile.LNKTYPE, linkname="s")
    ),
    "hard link to nothing": archive(member("l", type=tarfile.LNKTYPE, linkname="nothing")),
    "device": archive(member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "pipe": archive(member("fifo", type=tarfile.FIFOTYPE)),
    "twice": archive(("a", b"1"), ("a", b"2")),
    "file as directory": archive(("a", b"1"), ("a/b", b"2")),
    "no archive": b"hello, world" * 100,
    "damaged gzip": b"\x1f\x8b" + bytes(100),
    "cut off": archive(("a", bytes(range(256)) * 100), compress=False)[:9000],
    "cut off gzip": archive(("a", hashlib.sha256(b"").digest() * 1000))[:-40],
    "no name": archive((".", b"x")),
    "name too long": archive(("n" * 300, b"x")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(relay, home, name):
    with pytest.raises(Refusal) as refused:
        put(relay, HOSTILE[name])
    assert refused.value.kind == "bad_archive", refused.value
    assert list((home / "parcels").iterdir()) == []
    assert not list(home.parent.glob("**/evil"))


@pytest.mark.parametrize(
    "data",
    [
        archive(("zeros", bytes(8 << 20))),
        archive(*[(f"f{number}", bytes(300 << 10)) for number in range(4)]),
        gzip.compress(bytes(256 << 20), compresslevel=1),
        archive(*[member(f"{number}") for number in range(101)]),
    ],
    ids=["one file", "many files", "zeros after the end", "number"],
)
def test_a_bomb_is_refused(relay, home, data):
    with pytest.raises(Refusal) as refused:
        put(relay, data)
    assert refused.value.kind == "too_large"
    assert list((home / "parcels").iterdir()) == []


def test_a_huge_header_does_not_fill_the_memory(relay):
    raw = io.BytesIO()
    info = member("pax", type=tarfile.XHDTYPE, size=512 << 20)
    raw.write(info.tobuf())
    with pytest.raises(Refusal) as refused:
        put(relay, gzip.compress(raw.getvalue() + bytes(64 << 20), 1), max_bytes=1 << 30)
    assert refused.value.kind == "bad_archive"


def test_what_has_another_hash_is_refused(relay, home):
    with pytest.raises(Refusal) as refused:
        put(relay, archive(("a", b"1")), digest="0" * 64)
    assert refused.value.kind == "bad_archive"
    assert list((home / "parcels").iterdir()) == []


def test_parts_come_in_order_and_two_relays_do_not_disturb_each_other(relay, home):
    data = archive(("a", hashlib.sha256(b"").digest() * 10))
    digest = hashlib.sha256(data).hexdigest()
    with relay_at(home) as other:
        for part in range(2):
            for each in (relay, other):
                piece = data[:50] if part == 0 else data[50:]
                each.call("put", piece, digest=digest, part=part, last=part == 1, max_bytes=MAX_BYTES)
    assert (home / "parcels" / digest / "a").stat().st_size == 320
    with pytest.raises(Refusal) as refused:
        relay.call("put", b"x", digest="1" * 64, part=1, last=False, max_bytes=MAX_BYTES)
    assert refused.value.kind == "bad_request"


@pytest.mark.parametrize("digest", ["../../x", "A" * 64, "", None, 5])
def test_a_digest_is_a_digest(relay, digest):
    with pytest.raises(Refusal) as refused:
        relay.call("put", b"x", digest=digest, part=0, last=True, max_bytes=MAX_BYTES)
    assert refused.value.kind == "bad_request"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("place", [".", "deep", "deep/file", "deep/planted.py"])
def test_a_tree_in_which_another_account_has_left_something_is_refused(relay, home, place):
    digest = put(relay, archive(("deep/file", b"x")))
    path = home / "parcels" / digest / place
    if not path.exists():
        path.write_text("import os")
    os.chown(path, 54321, 54321)
    with pytest.raises(Refusal, match=f"foreign: .*{path}.* another account,.*remove .*{digest}"):
        relay.call("has", digests=[digest])
    os.chown(path, 0, 0)
    assert relay.call("has", digests=[digest])["have"] == [digest]
