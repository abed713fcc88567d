"""Checks the documents against the code: commands, options, keys, links, messages, and the lines to type."""

import argparse
import ast
import builtins
import doctest
import json
import re
import symtable
import sys
from collections import Counter
from pathlib import Path

import pytest

from docs import performance, reference
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.settings.options import read_config
from ignite_tf_magic.ui.commands.command import CommandParser
from ignite_tf_magic.ui.commands.table import commands, make_parser
from ignite_tf_magic.ui.notebook.arguments import parse_line
from ignite_tf_magic.ui.notebook.sql import parse_sql_magic

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Pages that `docs/conf.py` builds from documents outside docs/.
TAKEN_IN = ("architecture", "changelog", "contributing", "benchmarks", "matrix", "modes")
WRITTEN = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
WRITTEN += sorted(DOCS.glob("*.md"))
MESSAGES = tomllib.loads((DOCS / "troubleshooting.toml").read_text(encoding="utf-8"))["message"]


@pytest.fixture(scope="module")
def made():
    """The generated pages by file name."""
    return {**reference.pages(), "performance.md": performance.page()}


def leaves(parser, name=()):
    """Return the parser of each command by the command's full name."""
    within = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not within:
        return {" ".join(name): parser}
    return {
        full: leaf
        for action in within
        for word, each in action.choices.items()
        for full, leaf in leaves(each, (*name, word)).items()
    }


def test_every_command_and_every_option_is_in_the_reference(made):
    page = made["commands.md"]
    for name, parser in leaves(make_parser(CommandParser, "ignite-tf", ["help"])).items():
        anchor = f"(command-{name.replace(' ', '-')})="
        assert page.count(anchor) == 1, name
        section = page.partition(anchor)[2].partition("\n(command-")[0]
        everywhere = {"-h", "--help", "-V", "--version"}
        for option in {*parser._option_string_actions} - everywhere:
            assert re.search(rf"`(\S+, )?{re.escape(option)}[ ,`]", section), f"{name} {option}"


@pytest.mark.parametrize("table", ["cluster", "launch", "ssh", "hosts.NAME"])
def test_every_key_of_a_table_is_in_the_reference(made, table, tmp_path):
    (file := tmp_path / "ignite-tf.toml").write_text(f"[{table}]\n_ = 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="it may hold") as caught:
        read_config(file, env={})
    keys = str(caught.value).partition("it may hold ")[2].split(", ")
    section = made["configuration.md"].partition(f"## [{table}]")[2].partition("\n## ")[0]
    assert [key for key in keys if f"| `{key}` |" not in section] == []


def test_what_is_missed_is_said(made):
    assert "## What is missed" in made["performance.md"]


def test_times_of_the_panel_are_those_of_its_benchmark(made):
    section = made["performance.md"].partition("\n## The panel\n")[2].partition("\n## ")[0]
    rows = json.loads((performance.RESULTS / "panel.json").read_text(encoding="utf-8"))
    [again] = [row["ms"] for row in rows if row["variant"] == "again"]
    [share] = [row["cpu_percent"] for row in rows if row["case"] == "idle"]
    assert f"| each later look | {again} ms |" in section
    assert f"| {share:.2g} % of a core |" in section
    assert section.count("| drawing ") == sum(row["case"] == "draw" for row in rows)


FRONTEND = {
    "first word": ({"median_s": 0.03, "most_s": 0.104}, "until it says anything | 0.03 s; 0.10 at most |"),
    "new user": ({"s": 91}, "| a new user, from nothing to a trained model | 91 s |"),
    "typing": ({"median_ms": 40.2, "most_ms": 120}, "10,000 lines a second | 40 ms; 120 at most |"),
    "notebook": ({"kb": 1800}, "| the saved notebook after that | 1,800 kB |"),
    "of another time": ({}, None),
}


@pytest.mark.parametrize("cases", [[*FRONTEND], *([case] for case in FRONTEND), []], ids=str)
def test_what_a_person_waits_for_is_told_as_far_as_it_was_measured(cases, tmp_path, monkeypatch):
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    rows = [{"case": case, **FRONTEND[case][0]} for case in cases]
    if cases:
        (tmp_path / "frontend.json").write_text(json.dumps(rows), encoding="utf-8")
    page = performance.page()
    told = [FRONTEND[case][1] for case in cases if FRONTEND[case][1]]
    assert [line for line in told if line not in page] == []
    assert ("## Before the screen" in page) == bool(told)
    assert ("frontend" in page.partition("Not measured yet: ")[2].partition("\n")[0]) != bool(told)


def slugs(text):
    """Yield the anchors of a page: headings as GitHub and MyST name them, and explicit anchors."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = Counter()
    for title in re.findall(r"^#{1,6} +(.*?) *$", text, flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        yield f"{slug}-{found[slug]}" if found[slug] else slug
        found[slug] += 1
    yield from re.findall(r"^\(([\w-]+)\)=$", text, flags=re.MULTILINE)


def links(text):
    """Return the targets of a page's links, except links to other sites."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    return [each for each in re.findall(r"\]\(([^)\s]+)\)", text) if not each.startswith(("http:", "https:"))]


def check_links(place, text, made):
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = (place.parent / path).resolve() if path else place
        is_made = target.parent == DOCS / "_generated"
        if is_made and target.stem in TAKEN_IN:
            continue
        assert target.name in made if is_made else target.exists(), f"{place.name}: {link}"
        if anchor:
            found = made[target.name] if is_made else target.read_text(encoding="utf-8")
            assert anchor in set(slugs(found)), f"{place.name}: {link}"


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_links_lead_somewhere(path, made):
    check_links(path, path.read_text(encoding="utf-8"), made)


def test_links_of_made_pages_lead_somewhere(made):
    for name, text in made.items():
        check_links(DOCS / "_generated" / name, text, made)


def strings(path):
    """Return the strings of a module, one per line. "\\0" replaces inserted values; backslash escapes are removed."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            found.append(
                "\0".join(part.value if isinstance(part, ast.Constant) else "" for part in node.values)
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(re.sub(r"\\(.)", r"\1", node.value))
    return "\n".join(found)


@pytest.fixture(scope="module")
def words_of_the_package():
    return "\n".join(strings(path) for path in (ROOT / "ignite_tf_magic").rglob("*.py"))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["words"][0].strip())
def test_messages_are_said_and_tested(message, words_of_the_package):
    tested = strings(ROOT / message["test"])
    for words in message["words"]:
        assert words in words_of_the_package or message.get("of")
        assert words.strip() in tested


def test_the_page_of_messages_and_their_list_have_the_same():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (.*)$", page, flags=re.MULTILINE)
    told = [
        [heading for heading in headings if all(words.strip() in heading for words in message["words"])]
        for message in MESSAGES
    ]
    assert all(len(each) == 1 for each in told), [each for each in told if len(each) != 1]
    assert {heading for each in told for heading in each} == set(headings)


def lines_to_type(text):
    """Return the lines of code blocks, fenced or indented. Lines continued with a backslash are joined."""
    text = re.sub(r" \\\n\s*", " ", text)
    fenced = re.findall(r"^```(?:python|text)?\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    (\S.*)$", rest, flags=re.MULTILINE)
    return [line.strip() for block in fenced for line in block.splitlines()] + indented


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        *(
            f"docs/{path.name}"
            for path in sorted(DOCS.glob("*.md"))
            if path.name not in {"decisions.md", "migration.md"}
        ),
    ],
)
def test_lines_to_type_are_understood(name):
    for line in lines_to_type((ROOT / name).read_text(encoding="utf-8")):
        words = line if line.startswith("%ignite_tf ") else re.sub(r"  +#.*", "", line).strip()
        magic, _, rest = words.partition(" ")
        if magic in ("%ignite_sql", "%%ignite_sql"):
            assert parse_sql_magic(rest, "SELECT 1") is not None, line
        elif magic in ("%ignite_tf", "%%ignite_tf", "ignite-tf") and not re.search(r"[|[]", rest):
            parse_line(rest)  # raises if the line is not valid


def test_python_in_the_tutorial_can_be_compiled():
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        if "%%ignite_sql" not in block:
            ast.parse(re.sub(r"^%.*$", "", block, flags=re.MULTILINE))


def test_functions_in_the_tutorial_find_the_names_that_they_use():
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    tables, known = [], {*dir(builtins), *re.findall(r"-o (\w+)", text)}
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        if "%%ignite_sql" not in block:
            table = symtable.symtable(re.sub(r"^%.*$", "", block, flags=re.MULTILINE), "tutorial.md", "exec")
            known |= {
                each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()
            }
            tables += [each for each in table.get_children() if each.get_type() == "function"]
    assert tables
    for table in tables:
        used = {each.get_name() for each in table.get_symbols() if each.is_global()}
        assert used <= known, f"{table.get_name()}: {used - known}"


def test_exit_codes_of_runs_are_the_same_on_both_pages(made):
    page = made["exit_codes.md"].partition("## Runs")[2].partition("\n## ")[0]
    told = (
        (DOCS / "cluster.md")
        .read_text(encoding="utf-8")
        .partition("Exit codes of runs: ")[2]
        .partition("`ignite-tf`")[0]
    )
    assert re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE) == sorted(
        set(re.findall(r"\b\d+\b", told)) - {"128"}, key=int
    )


def test_commands_that_take_no_configuration_are_named():
    told = (DOCS / "cluster.md").read_text(encoding="utf-8").partition(" alone: what is to hold ")[2]
    named = re.findall(r"`([a-z]+)`", told.partition("do not take them")[0])
    takes_none = {command.name.partition(" ")[0] for command in commands()[0] if not command.of_cluster}
    assert sorted(named) == sorted(takes_none)


def test_examples_of_the_tutorial_hold():
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\{doctest\}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        test = doctest.DocTestParser().get_doctest(block, {}, "tutorial", "tutorial.md", 0)
        assert doctest.DocTestRunner().run(test).failed == 0
