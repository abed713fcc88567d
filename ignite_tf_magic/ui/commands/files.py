"""`fs ...`: commands for files in igfs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import datetime

from ignite_tf_magic.errors import ConfigError, IgniteTfError, TransferError
from ignite_tf_magic.session.files import CopyOutcome, Files, SyncOutcome, start_mount, unmount
from ignite_tf_magic.ui.commands.command import Add, Command, Group, flags
from ignite_tf_magic.ui.render import files_view, size_text, usage_view
from ignite_tf_magic.ui.screen import Screen, say_json

_ROOT = "igfs:///"
_WATCH_S = 2.0


def _ls(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        infos = [info for path in options.path for info in files.listing(path, recursive=options.recursive)]
    if options.json:
        say_json(screen, [info.to_dict() for info in infos])
    elif infos:
        screen.show(files_view(infos, datetime.now().astimezone()))


def _cat(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        for path in options.path:
            for chunk in files.read(path):
                screen.write(chunk)


def _get(options: argparse.Namespace, screen: Screen) -> None:
    *sources, target = options.path if len(options.path) > 1 else [*options.path, "."]
    with Files(report=screen.note) as files, screen.copying() as progress:
        outcome = files.get(sources, target, recursive=options.recursive, progress=progress)
    _say_copied(options, screen, outcome)


def _put(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files, screen.copying() as progress:
        outcome = files.put(options.local, options.target, recursive=options.recursive, progress=progress)
    _say_copied(options, screen, outcome)


def _cp(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files, screen.copying() as progress:
        outcome = files.copy(options.source, options.target, recursive=options.recursive, progress=progress)
    _say_copied(options, screen, outcome)


def _say_copied(options: argparse.Namespace, screen: Screen, outcome: CopyOutcome) -> None:
    if options.json:
        say_json(screen, {"files": outcome.num_files, "bytes": outcome.num_bytes, "seconds": outcome.seconds})
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
        usages = []
        for path in options.path:
            answers = files.usage(path)
            usages += answers[-1:] if options.summarize else answers
    if options.json:
        say_json(screen, [usage.to_dict() for usage in usages])
    else:
        screen.show(usage_view(usages))


def _sync(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        while True:
            try:
                with screen.copying() as progress:
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
        say_json(screen, answer)
    elif outcome.copied or outcome.removed or not options.watch:
        copied, removed = len(outcome.copied), len(outcome.removed)
        screen.say(f"{copied:,} copied ({size_text(outcome.num_bytes)}), {removed:,} removed")


def _mount(options: argparse.Namespace, screen: Screen) -> None:
    if screen.outlives_commands or options.background:
        log = start_mount(options.path, options.directory, report=screen.note)
        screen.say(f"{options.path} is mounted in {options.directory}; to end it: {screen.command_name} fs unmount "
                   f"{options.directory}\nlog: {log}")  # fmt: skip
        return
    with Files(report=screen.note) as files:
        files.mount(options.path, options.directory)


def _unmount(options: argparse.Namespace, screen: Screen) -> None:
    unmount(options.directory)
    screen.say(f"unmounted {options.directory}")


def _fsck(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        report = files.check(options.path, repair=options.repair)
    if options.json:
        answer = {"clean": report.is_clean, "files": report.num_files, "directories": report.num_directories,
                  "bytes": report.num_bytes, "blocks": report.num_blocks, "waiting": report.num_waiting,
                  "problems": report.problems, "repaired": report.repaired}  # fmt: skip
        say_json(screen, answer)
    else:
        for line in (*report.problems, *(f"repaired: {line}" for line in report.repaired)):
            screen.say(line)
        directories = (
            "1 directory" if report.num_directories == 1 else f"{report.num_directories:,} directories"
        )
        num_bytes, blocks = size_text(report.num_bytes), _count(report.num_blocks, "block")
        screen.say(f"{_count(report.num_files, 'file')}, {directories}, {num_bytes} in {blocks}")
    if not report.is_clean:
        hint = (
            "" if options.repair else f"; {screen.command_name} fs fsck --repair removes what leads nowhere"
        )
        raise IgniteTfError(f"the file system has {_count(len(report.problems), 'problem')}{hint}")


def _mkfs(options: argparse.Namespace, screen: Screen) -> None:
    with Files(report=screen.note) as files:
        files.create(options.name, options.path)
    screen.say(
        f"file system {options.name} is there; IGFS_FS_NAME={options.name} in the environment chooses it"
    )


_RECURSIVE = ("-r", "--recursive", "directories with all that is in them")


def _paths(count: str, default: str | None = None, *named: tuple[str, ...]) -> Add:
    """Return a function that adds PATH with this `nargs`, and options without a value."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("path", nargs=count, default=[default], metavar="PATH")
        flags(parser, *named)

    return add


def _words(*words: tuple[str, str, str | None], named: tuple[tuple[str, ...], ...] = ()) -> Add:
    """Return a function that adds arguments, each as (name, metavar, nargs), and options without a value."""

    def add(parser: argparse.ArgumentParser) -> None:
        for name, shown, count in words:
            parser.add_argument(name, metavar=shown, nargs=count)
        flags(parser, *named)

    return add


def _add_system(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", default=_ROOT, metavar="igfs://HOST:PORT/")


def _add_fsck(fsck: argparse.ArgumentParser) -> None:
    _add_system(fsck)
    flags(fsck, ("--repair", "remove what is unreachable, and names that lead nowhere"))


def _add_mkfs(mkfs: argparse.ArgumentParser) -> None:
    mkfs.add_argument("name", metavar="NAME")
    _add_system(mkfs)


def _add_sync(sync: argparse.ArgumentParser) -> None:
    sync.add_argument("source", metavar="FROM", help="igfs:///PATH or a local directory")
    sync.add_argument("target", metavar="TO", help="the other of the two")
    flags(
        sync,
        ("--watch", f"repeat every {_WATCH_S:g} s"),
        ("--delete", "remove files from TO that FROM does not have"),
    )


def _fs(
    name: str,
    act: Callable[[argparse.Namespace, Screen], None],
    add: Add,
    what: str,
    example: str,
    *,
    has_json: bool = False,
) -> Command:
    return Command(f"fs {name}", what, act, add, example=example, of_cluster=False, has_json=has_json)


_COPIED = (("source", "PATH", "+"), ("target", "TARGET", None))
_PARENTS = ("-p", "--parents", "also create missing parent directories")

GROUP = Group(
    "files in igfs, the file system inside Ignite",
    "PATH is igfs:///path or /path in the configured or the embedded cluster, or igfs://HOST:PORT/path; "
    "in it * ? [a-z] stand for parts of names, and ** for directories at any depth.",
)
COMMANDS = (
    _fs(
        "ls",
        _ls,
        _paths("*", _ROOT, ("-R", "--recursive", "also what is below it")),
        "list a directory",
        "/runs",
        has_json=True,
    ),
    _fs("cat", _cat, _paths("+"), "print files", "/runs/*/metrics.jsonl"),
    _fs(
        "get",
        _get,
        _paths("+", None, _RECURSIVE),
        "copy files to this machine (the last PATH; .)",
        "-r /runs/k3f-digits-1121-0412 .",
        has_json=True,
    ),
    _fs(
        *("put", _put, _words(("local", "FILE", "+"), ("target", "PATH", None), named=(_RECURSIVE,))),
        "copy files of this machine to igfs",
        "train.csv labels.csv /data",
        has_json=True,
    ),
    _fs(
        *(
            "cp",
            _cp,
            _words(*_COPIED, named=(_RECURSIVE,)),
            "copy files within igfs, or to another cluster",
            "-r /data igfs://10.0.0.7:10800/data",
        ),
        has_json=True,
    ),
    _fs(
        "mv",
        _mv,
        _words(*_COPIED),
        "move files or whole directories, each as one step",
        "/data/new.csv /data/old.csv",
    ),
    _fs(
        "rm",
        _rm,
        _paths("+", None, _RECURSIVE, ("-f", "--force", "ignore files that do not exist")),
        "remove files",
        "-r /data/old",
    ),
    _fs("mkdir", _mkdir, _paths("+", None, _PARENTS), "create directories", "-p /data/2026/november"),
    _fs(
        "du",
        _du,
        _paths("*", _ROOT, ("-s", "--summarize", "only the total")),
        "add up sizes",
        "-s /runs",
        has_json=True,
    ),
    _fs(
        "sync",
        _sync,
        _add_sync,
        "copy what is newer from igfs to a directory, or back",
        "/runs ./runs --watch",
        has_json=True,
    ),
    _fs(
        *("mount", _mount),
        _words(
            *(("path", "PATH", None), ("directory", "DIR", None)),
            named=(("-b", "--background", "in a process of its own, until unmount"),),
        ),
        "show igfs as a directory, through FUSE",
        "/ ~/igfs --background",
    ),
    _fs("unmount", _unmount, _words(("directory", "DIR", None)), "end a mount", "~/igfs"),
    _fs("fsck", _fsck, _add_fsck, "check the file system, while it is in use", "", has_json=True),
    _fs("mkfs", _mkfs, _add_mkfs, "create a file system of another name than igfs", "scratch"),
)
