"""Compares _filesystem.h with TensorFlow's header, and checks the binary's requirements."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ignite_tf_magic.tfplugin import registration
from ignite_tf_magic.tfplugin.codes import Code

SOURCES = Path(registration.__file__).parent
OURS = SOURCES / "_filesystem.h"
STRUCTS = [
    *("TF_RandomAccessFile", "TF_WritableFile", "TF_ReadOnlyMemoryRegion", "TF_Filesystem"),
    *("TF_FileStatistics", "TF_RandomAccessFileOps", "TF_WritableFileOps", "TF_ReadOnlyMemoryRegionOps"),
    *("TF_FilesystemOps", "TF_FilesystemPluginOps", "TF_FilesystemPluginInfo"),
]
MAY_END_EARLIER = {"TF_FilesystemOps"}


def include() -> Path:
    import tensorflow as tf

    return Path(tf.sysconfig.get_include())


def interface() -> Path:
    return include() / "tensorflow/c/experimental/filesystem/filesystem_interface.h"


def members(header: str, struct: str) -> list[str]:
    """Return the members of a struct, one text each, without comments and with single spaces."""
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.S)
    body = re.search(rf"typedef struct {struct} \{{(.*?)\}} {struct};", bare, re.S)
    assert body, f"{struct} is not there"
    return [" ".join(member.split()).replace("( ", "(") for member in body[1].split(";") if member.strip()]


@pytest.mark.parametrize("struct", STRUCTS)
def test_members_and_signatures_are_tensorflows(struct):
    theirs = interface().read_text() + (include() / "tensorflow/c/tf_file_statistics.h").read_text()
    ours, expected = members(OURS.read_text(), struct), members(theirs, struct)
    assert ours == (expected[: len(ours)] if struct in MAY_END_EARLIER else expected)


def name_of(member: str) -> str:
    pointer = re.search(r"\(\*(\w+)\)", member)
    return pointer[1] if pointer else member.split()[-1].lstrip("*")


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
def test_sizes_offsets_and_codes_are_tensorflows(tmp_path):
    checks = []
    for struct in STRUCTS:
        if struct not in MAY_END_EARLIER:
            checks.append(f"static_assert(sizeof(ours::{struct}) == sizeof(::{struct}));")
        checks += [
            f"static_assert(offsetof(ours::{struct}, {name}) == offsetof(::{struct}, {name}));"
            for name in map(name_of, members(OURS.read_text(), struct))
        ]
    checks += [f"static_assert(TF_{code.name} == {code.value});" for code in Code]
    in_c = re.search(r"enum \{\s*(TF_OK.*?)\};", (SOURCES / "_filesystem.c").read_text(), re.S)
    assert in_c
    checks += [f"static_assert({line});" for line in re.sub("(?<!=)=(?!=)", "==", in_c[1]).split(",")]
    for table in ("FILESYSTEM", "RANDOM_ACCESS_FILE", "WRITABLE_FILE", "READ_ONLY_MEMORY_REGION"):
        checks.append(f"static_assert(TF_{table}_OPS_ABI == ours::TF_ABI_OF_OPS);")
        checks.append(f"static_assert(TF_{table}_OPS_API == ours::TF_API_OF_OPS);")
    # Their TF_Status is a typedef of another struct; ours is only used through pointers.
    ours = OURS.read_text().replace("typedef struct TF_Status TF_Status;", "typedef ::TF_Status TF_Status;")
    (tmp_path / "ours.h").write_text(ours)
    program = tmp_path / "compare.cc"
    program.write_text(
        f'#include "{interface()}"\nnamespace ours {{\n#include "ours.h"\n}}\n' + "\n".join(checks)
    )
    command = ["g++", "-std=c++17", "-fsyntax-only", "-I", include(), program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[:3000]


def objdump(option: str) -> str:
    if not shutil.which("objdump"):
        pytest.skip("no objdump")
    path = registration._library_path()
    return subprocess.run(
        ["objdump", option, path], capture_output=True, text=True, timeout=300, check=True
    ).stdout


def test_the_binary_needs_no_more_than_glibc_2_17():
    versions = re.findall(r"GLIBC_([0-9.]+)", objdump("-T"))
    assert versions
    assert max(tuple(map(int, version.split("."))) for version in versions) <= (2, 17)


def test_the_binary_links_only_libc():
    needed = re.findall(r"NEEDED\s+(\S+)", objdump("-p"))
    assert {name.partition(".")[0] for name in needed} <= {"libc", "libpthread"}


def test_the_binary_shows_only_its_entry_points():
    shown = re.findall(r"\.text.*?(\w+)$", objdump("-T"), re.M)
    assert {name for name in shown if name not in ("_init", "_fini")} == {
        "TF_InitPlugin",
        "itm_control",
        "PyInit__filesystem",
    }
