"""`ignite-tf fs` and `%ignite_tf fs`: arguments in, `files` called, outcome shown on a screen of either kind."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol

from ignite_tf_magic.errors import ConfigError, IgniteTfError, TransferError
from ignite_tf_magic.session.files import CopyOutcome, CopyProgress, Files, SyncOutcome, start_mount, unmount
from ignite_tf_magic.ui.render import View, files_view, size_text, usage_view
from ignite_tf_magic.serialization.terminal_text import visible_line

COMMANDS = "ls|cat|get|put|cp|mv|rm|mkdir|du|sync|mount|unmount|fsck|mkfs"
_ROOT = "igfs:///"
_WATCH_S = 2.0
_BAR_AFTER_S = 2.0


class Screen(Protocol):
    """Where the answers are shown: a shell or a notebook."""

    own_name: str
    mounts_in_background: bool

    def show(self, view: View) -> None:
        """Show a table."""

    def say(self, line: str) -> None:
        """Print a line of the answer."""

    def note(self, line: str) -> None:
        """Print a line beside the answer."""

    def write(self, data: memoryview) -> None:
        """Print content."""

    def progress(self) -> Any:
        """Open a `with` block that gives a `CopyProgress`."""


def run_fs(options: argparse.Namespace, screen: Screen) -> None:
    """Carry out a command that a parser of `add_fs_commands` has read."""
    options.fs(options, screen)


@contextmanager
def bar_after_a_while(console: Any) -> Iterator[CopyProgress]:
    """Show a bar when copying takes more than two seconds; `console` is one of rich."""
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    began, bar = time.monotonic(), None
    columns = (
        "{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )

    def advance(name: str, done: int, total: int) -> None:
        nonlocal bar
        if bar is None and time.monotonic() - began > _BAR_AFTER_S:
            bar = Progress(*columns, console=console, transient=True)
            bar.add_task(escape(visible_line(name)), total=total)
            bar.start()
        if bar is not None:
            bar.update(bar.task_ids[0], description=escape(visible_line(name)), completed=done, total=total)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def _ls(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        found = [info for path in options.path for info in files.listing(path, recursive=options.recursive)]
    if options.json:
        screen.say(json.dumps([info.to_dict() for info in found], indent=1))
    elif found:
        screen.show(files_view(found, datetime.now().astimezone()))


def _cat(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        for path in options.path:
            for chunk in files.read(path):
                screen.write(chunk)


def _get(options: argparse.Namespace, screen: Screen) -> None:
    *sources, target = options.path if len(options.path) > 1 else [*options.path, "."]
    with Files(report=screen.note) as files, screen.progress() as progress:
        outcome = files.get(sources, target, recursive=options.recursive, progress=progress)
    _say_copied(options, screen, outcome)


def _put(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files, screen.progress() as progress:
        outcome = files.put(options.local, options.target, recursive=options.recursive, progress=progress)
    _say_copied(options, screen, outcome)


def _cp(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files, screen.progress() as progress:
        outcome = files.copy(options.source, options.target, recursive=options.recursive, progress=progress)
    _say_copied(options, screen, outcome)


def _say_copied(options: argparse.Namespace, screen: Screen, outcome: CopyOutcome) -> None:
    if options.json:
        screen.say(
            json.dumps({"files": outcome.num_files, "bytes": outcome.num_bytes, "seconds": outcome.seconds})
        )
        return
    what = f"{_count(outcome.num_files, 'file')}, {size_text(outcome.num_bytes)}"
    screen.say(f"{what}, copied in {outcome.seconds:.1f} s")


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _mv(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        files.move(options.source, options.target)


def _rm(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        for path in options.path:
            try:
                files.remove(path, recursive=options.recursive)
            except FileNotFoundError:
                if not options.force:
                    raise


def _mkdir(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        for path in options.path:
            files.make_directory(path, parents=options.parents)


def _du(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        found = []
        for path in options.path:
            answers = files.usage(path)
            found += answers[-1:] if options.summarize else answers
    if options.json:
        screen.say(json.dumps([usage.to_dict() for usage in found], indent=1))
    else:
        screen.show(usage_view(found))


def _sync(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        while True:
            try:
                with screen.progress() as progress:
                    outcome = files.sync(
                        options.source, options.target, delete=options.delete, progress=progress
                    )
                _say_synced(options, screen, outcome)
            except IgniteTfError as error:
                if not options.watch or isinstance(error, TransferError | ConfigError):
                    raise
                screen.note(f"tried again in {_WATCH_S:g} s: {error}")
            if not options.watch:
                return
            time.sleep(_WATCH_S)


def _say_synced(options: argparse.Namespace, screen: Screen, outcome: SyncOutcome) -> None:
    if options.json:
        answer = {"copied": outcome.copied, "removed": outcome.removed, "bytes": outcome.num_bytes}
        screen.say(json.dumps(answer))
    elif outcome.copied or outcome.removed or not options.watch:
        copied, removed = len(outcome.copied), len(outcome.removed)
        screen.say(f"{copied:,} copied ({size_text(outcome.num_bytes)}), {removed:,} removed")


def _mount(options: argparse.Namespace, screen: Screen) -> None:
    if screen.mounts_in_background or options.background:
        log = start_mount(options.path, options.directory, report=screen.note)
        screen.say(f"{options.path} is mounted in {options.directory}; to end it: {screen.own_name} fs unmount "
                   f"{options.directory}\nlog: {log}")  # fmt: skip
        return
    with Files(report=screen.note) as files:
        files.mount(options.path, options.directory)


def _unmount(options: argparse.Namespace, screen: Screen) -> None:
    unmount(options.directory)
    screen.say(f"unmounted {options.directory}")


def _fsck(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        found = files.check(options.path, repair=options.repair)
    if options.json:
        answer = {"clean": found.is_clean, "files": found.num_files, "directories": found.num_directories,
                  "bytes": found.num_bytes, "blocks": found.num_blocks, "waiting": found.num_waiting,
                  "problems": found.problems, "repaired": found.repaired}  # fmt: skip
        screen.say(json.dumps(answer, indent=1))
    else:
        for line in (*found.problems, *(f"repaired: {line}" for line in found.repaired)):
            screen.say(line)
        directories = (
            "1 directory" if found.num_directories == 1 else f"{found.num_directories:,} directories"
        )
        num_bytes, blocks = size_text(found.num_bytes), _count(found.num_blocks, "block")
        screen.say(f"{_count(found.num_files, 'file')}, {directories}, {num_bytes} in {blocks}")
    if not found.is_clean:
        hint = "" if options.repair else f"; {screen.own_name} fs fsck --repair removes what leads nowhere"
        raise IgniteTfError(f"the file system has {_count(len(found.problems), 'problem')}{hint}")


def _mkfs(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        files.create(options.name, options.path)
    screen.say(
        f"file system {options.name} is there; IGFS_FS_NAME={options.name} in the environment chooses it"
    )


def add_fs_commands(
    fs: argparse.ArgumentParser,
    complete: Callable[[argparse.ArgumentParser], None] = lambda _: None,
    **options: Any,
) -> None:
    """Give a parser the commands; `complete` adds what all have, `options` are those of `add_subparsers`."""
    fs.epilog = (
        "PATH is igfs:///path or /path in the configured or the embedded cluster, or igfs://HOST:PORT/path; "
        "in it * ? [a-z] stand for parts of names, and ** for directories at any depth."
    )
    commands = fs.add_subparsers(required=True, metavar=COMMANDS, **options)

    def add(
        name: str, act: Callable[[argparse.Namespace, Screen], None], what: str
    ) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
        added.set_defaults(fs=act)
        complete(added)
        return added

    ls = _with_paths(add("ls", _ls, "list a directory"), "*", _ROOT)
    _flags(ls, ("-R", "--recursive", "also what is below it"), _JSON)
    _with_paths(add("cat", _cat, "print files"), "+")
    get = add("get", _get, "copy files to this machine")
    get.add_argument("path", nargs="+", metavar="PATH", help="the files, then where to (.)")
    _flags(get, _RECURSIVE, _JSON)
    put = add("put", _put, "copy files of this machine to igfs")
    put.add_argument("local", nargs="+", metavar="FILE")
    _flags(put, _RECURSIVE, _JSON)
    cp = _with_sources(add("cp", _cp, "copy files within igfs, or to another cluster"))
    _flags(cp, _RECURSIVE, _JSON)
    _with_sources(add("mv", _mv, "move files or whole directories, each as one step"))
    put.add_argument("target", metavar="PATH")
    rm = _with_paths(add("rm", _rm, "remove files"), "+")
    _flags(rm, _RECURSIVE, ("-f", "--force", "what is not there is no error"))
    mkdir = _with_paths(add("mkdir", _mkdir, "create directories"), "+")
    _flags(mkdir, ("-p", "--parents", "and those above, unless they are there"))
    du = _with_paths(add("du", _du, "add up sizes"), "*", _ROOT)
    _flags(du, ("-s", "--summarize", "only the sum"), _JSON)
    _add_sync(add("sync", _sync, "copy what is newer from igfs to a directory, or back"))
    mount = add("mount", _mount, "show igfs as a directory, through FUSE")
    mount.add_argument("path", metavar="PATH")
    mount.add_argument("directory", metavar="DIR")
    _flags(mount, ("-b", "--background", "in a process of its own, until unmount"))
    add("unmount", _unmount, "end a mount").add_argument("directory", metavar="DIR")
    fsck = add("fsck", _fsck, "check the file system, while it is in use")
    fsck.add_argument("path", nargs="?", default=_ROOT, metavar="igfs://HOST:PORT/")
    _flags(fsck, ("--repair", "remove what is unreachable, and names that lead nowhere"), _JSON)
    mkfs = add("mkfs", _mkfs, "create a file system of another name than igfs")
    mkfs.add_argument("name", metavar="NAME")
    mkfs.add_argument("path", nargs="?", default=_ROOT, metavar="igfs://HOST:PORT/")


def _add_sync(sync: argparse.ArgumentParser) -> None:
    sync.add_argument("source", metavar="FROM", help="igfs:///PATH or a local directory")
    sync.add_argument("target", metavar="TO", help="the other of the two")
    _flags(
        sync,
        ("--watch", f"go on, looking every {_WATCH_S:g} s"),
        ("--delete", "remove there what is not here"),
        _JSON,
    )


_RECURSIVE = ("-r", "--recursive", "directories with all that is in them")
_JSON = ("--json", "print JSON")


def _flags(parser: argparse.ArgumentParser, *flags: Sequence[str]) -> None:
    for *names, what in flags:
        parser.add_argument(*names, action="store_true", help=what)


def _with_paths(
    parser: argparse.ArgumentParser, count: str, default: str | None = None
) -> argparse.ArgumentParser:
    parser.add_argument("path", nargs=count, default=[default], metavar="PATH")
    return parser


def _with_sources(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("source", nargs="+", metavar="PATH")
    parser.add_argument("target", metavar="TARGET")
    return parser
