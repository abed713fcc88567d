"""Tests that every launcher must pass. Test classes inherit them and define `launcher` and `host`."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest

from ignite_tf_magic.errors import LaunchError
from tests.alive import is_alive
from tests.launch.launchers import Command, Launcher, Process
from tests.waiting import until


def python(code: str, **options) -> Command:
    return Command([sys.executable, "-c", code], **options)


def wait_for_text(path: Path, text: str) -> str:
    until(lambda: text in path.read_text(), what=lambda: f"{text!r} in {path.read_text()!r}")
    return path.read_text()


class LauncherContract:
    @pytest.fixture
    def launcher(self) -> Launcher:
        raise NotImplementedError

    @pytest.fixture
    def host(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def output(self, tmp_path) -> Path:
        return tmp_path / "output.log"

    @pytest.fixture
    def start(self, launcher, host, output):
        started: list[Process] = []

        def start(command: Command) -> Process:
            started.append(launcher.start(host, command, output))
            return started[-1]

        yield start
        for process in started:
            process.kill()
            assert process.wait(300) is not None

    def test_output_and_errors_are_kept_in_the_order_in_which_they_were_written(self, start, output):
        code = "import os\nfor i in range(100): os.write(1 + i % 2, b'%d ' % i)"
        assert start(python(code)).wait(300) == 0
        assert output.read_text().split() == [str(i) for i in range(100)]

    def test_output_is_appended_to_what_is_there(self, start, output):
        output.write_text("before ")
        start(python("print('after')")).wait(300)
        assert output.read_text() == "before after\n"

    @pytest.mark.skipif(os.name != "posix", reason="file modes")
    def test_only_the_owner_may_read_the_output(self, start, output):
        start(python("pass")).wait(300)
        assert stat.S_IMODE(output.stat().st_mode) == 0o600

    @pytest.mark.parametrize("code", [0, 1, 77])
    def test_the_exit_code_is_given_more_than_once(self, start, code):
        process = start(python(f"raise SystemExit({code})"))
        assert process.wait(300) == code
        assert process.poll() == code
        assert process.wait() == code

    def test_a_signal_is_a_negative_exit_code(self, start):
        process = start(python("import os; os.kill(os.getpid(), 9)"))
        assert process.wait(300) == -signal.SIGKILL

    def test_poll_and_wait_give_nothing_while_the_process_runs(self, start):
        process = start(python("import time; time.sleep(60)"))
        assert process.poll() is None
        assert process.wait(0.1) is None

    def test_pid_is_that_of_the_process(self, start, output):
        process = start(python("import os, time; print(os.getpid(), flush=True); time.sleep(60)"))
        assert int(wait_for_text(output, "\n")) == process.pid

    def test_input_is_empty_unless_given(self, start, output):
        start(python("import sys; print(repr(sys.stdin.read()))")).wait(300)
        assert output.read_text() == "''\n"

    def test_input_of_any_size_arrives_even_where_nobody_reads_it_at_once(self, start, output):
        text = "secret ü" * 200_000
        code = "import sys, time; time.sleep(0.2); print(len(sys.stdin.buffer.read().decode()))"
        start(python(code, stdin_text=text)).wait(300)
        assert int(output.read_text()) == len(text)

    def test_variables_are_added_to_the_hosts(self, start, output):
        code = "import os; print(os.environ['ADDED'], bool(os.environ.get('PATH')))"
        start(python(code, env={"ADDED": "a b'c"})).wait(300)
        assert output.read_text() == "a b'c True\n"

    def test_arguments_reach_the_program_as_they_are(self, start, output):
        arguments = ["", "a b", "$HOME", "'", '"', "; exit 3", "ü"]
        code = "import sys; print(sys.argv[1:])"
        process = start(Command([sys.executable, "-X", "utf8", "-c", code, *arguments]))
        assert process.wait(300) == 0
        assert output.read_text() == f"{arguments}\n"

    def test_working_directory(self, start, output, tmp_path):
        start(python("import os; print(os.getcwd())", cwd=tmp_path)).wait(300)
        assert Path(output.read_text().strip()) == tmp_path.resolve()

    def test_terminate_lets_the_process_clean_up(self, start, output):
        code = (
            "import signal, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
            "print('ready', flush=True)\n"
            "time.sleep(60)"
        )
        process = start(python(code))
        wait_for_text(output, "ready")
        process.terminate()
        assert process.wait(300) == 5

    def test_kill_ends_the_children_too_and_nothing_else(self, start, output):
        bystander = start(python("import time; time.sleep(60)"))
        family = (
            "import subprocess, sys, time\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "print(child.pid, flush=True)\n"
            "time.sleep(60)"
        )
        process = start(python(family))
        child = psutil.Process(int(wait_for_text(output, "\n")))
        process.kill()
        assert process.wait(300) == -signal.SIGKILL
        child.wait(300)
        assert bystander.poll() is None

    def test_children_that_are_left_behind_are_ended_with_the_process(self, start, output):
        code = (
            "import subprocess, sys\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "print(child.pid, flush=True)"
        )
        assert start(python(code)).wait(300) == 0
        child = int(output.read_text())
        # This timeout ends before the child would exit by itself.
        until(lambda: not is_alive(child), timeout_s=40)

    def test_ending_a_process_that_has_ended_does_nothing(self, start):
        process = start(python("pass"))
        assert process.wait(300) == 0
        process.terminate()
        process.kill()
        assert process.poll() == 0

    def test_an_interrupt_of_our_terminal_does_not_reach_the_process(self, start, output):
        process = start(python("import os, time; print(os.getpgid(0), flush=True); time.sleep(60)"))
        assert int(wait_for_text(output, "\n")) == process.pid != os.getpgid(0)

    def test_no_such_program(self, start):
        with pytest.raises(LaunchError, match="no-such-python"):
            start(Command(["/no-such-python", "-V"]))

    def test_no_such_directory(self, start, tmp_path):
        with pytest.raises(LaunchError, match="missing"):
            start(python("pass", cwd=tmp_path / "missing"))
