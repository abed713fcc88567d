"""Tests of the frame codec and of the agent file that is sent to hosts."""

from __future__ import annotations

import ast
import json
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.launch.agent import (
    LOADER,
    MAX_PAYLOAD_BYTES,
    FrameDecoder,
    FrameError,
    agent_source,
    encode_frame,
    loader_arguments,
)

values = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
headers = st.dictionaries(st.text(max_size=8).filter(lambda key: key != "size"), values, max_size=5)
frames = st.lists(st.tuples(headers, st.binary(max_size=300)), max_size=5)


@given(frames, st.integers(1, 50))
def test_frames_survive_any_cutting(sent, step):
    data = b"".join(encode_frame(header, payload) for header, payload in sent)
    decoder = FrameDecoder()
    found = []
    for start in range(0, len(data), step):
        found += decoder.feed(data[start : start + step])
    assert [({k: v for k, v in header.items() if k != "size"}, payload) for header, payload in found] == sent


def framed(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n",
        b"\xff\xff\xff\xff",
        framed(b"[1]"),
        framed(b"{"),
        framed(b'{"size": -1}'),
        framed(b'{"size": true}'),
        framed(b'{"size": "1"}'),
        framed(json.dumps({"size": MAX_PAYLOAD_BYTES + 1}).encode()),
        framed(b'{"a": "\xff"}'),
    ],
)
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(FrameError):
        FrameDecoder().feed(data)


def test_too_large_frames_are_not_made():
    encode_frame({}, bytes(MAX_PAYLOAD_BYTES))
    with pytest.raises(FrameError):
        encode_frame({}, bytes(MAX_PAYLOAD_BYTES + 1))


def test_the_loader_passes_through_every_shell():
    assert not set("\n'!") & set(LOADER)
    assert "\\\\" not in LOADER
    assert len(LOADER) < 2000
    assert loader_arguments("0" * 64, 5, "/r", "py") == ["py", "-I", "-S", "-c", LOADER, "0" * 64, "5", "/r"]
    assert loader_arguments("0" * 64, 5)[-1] == "5"


def test_the_shipped_file_is_for_python_3_8_and_stands_alone():
    tree = ast.parse(agent_source(), feature_version=(3, 8))
    ast.parse(LOADER, feature_version=(3, 4))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [str(getattr(node, "module", ""))] + [alias.name for alias in node.names]
            assert not any(name.startswith("ignite_tf_magic") for name in names), ast.unparse(node)
        assert not isinstance(node, ast.ImportFrom) or node.level == 0


def test_no_two_modules_of_the_shipped_file_use_one_name():
    names = []
    for node in ast.parse(agent_source()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    names = [name for name in names if name != "TYPE_CHECKING"]
    assert sorted(names) == sorted(set(names))


def test_the_agent_loads_few_modules_at_its_start(tmp_path):
    """Each command on each host pays for these imports."""
    (tmp_path / "agent.py").write_bytes(agent_source())
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import agent; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    slow = {
        "ctypes",
        "socket",
        "subprocess",
        "threading",
        "typing",
        "dataclasses",
        "pathlib",
        "tempfile",
        "shutil",
    }
    slow |= {"tarfile", "hashlib", "logging", "inspect", "contextlib", "pwd"}
    assert not slow & set(done.stdout.split())
