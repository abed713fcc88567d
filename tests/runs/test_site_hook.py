"""Tests of the hook in every Python process below a worker: real interpreters with the hook first on PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import ignite_tf_magic
from ignite_tf_magic.runs.bootstrap import _SITE_HOOK

NOTED = "import sys\ndef note(): print('noted', sorted({'imported_later', 'ignite_tf_magic'} & set(sys.modules)))\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "imported_later.py").write_text("print('itself')\n")
    (tmp_path / "noted.py").write_text(NOTED)
    return tmp_path


def run(folder, *argv, python=sys.executable, call="noted:note"):
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = os.pathsep.join([_SITE_HOOK, str(folder)])
    env = {**known, "PYTHONPATH": path, "IGNITE_TF_AFTER_IMPORT": f"other=a:b,imported_later={call}"}
    return subprocess.run(
        [str(python), *argv], env=env, cwd=folder, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    "argv", [["-c", "import imported_later"], ["-m", "imported_later_in"], ["imported_later_in.py"]]
)
def test_the_call_follows_the_import_however_python_was_started(folder, argv):
    (folder / "imported_later_in.py").write_text("import imported_later\n")
    done = run(folder, *argv)
    assert done.stdout == "itself\nnoted ['ignite_tf_magic', 'imported_later']\n", done.stderr


def test_nothing_is_loaded_before(folder):
    done = run(folder, "-c", "import sys; print('ignite_tf_magic' in sys.modules, sys.path)")
    assert done.stdout.startswith("False ["), done.stderr
    assert _SITE_HOOK not in done.stdout


def test_children_of_multiprocessing_are_told_too(folder):
    (folder / "main.py").write_text(
        "import multiprocessing, sys\n"
        "def work():\n"
        "    import imported_later\n"
        "    sys.stdout.flush()\n"
        "if __name__ == '__main__':\n"
        "    for kind in ('spawn', 'forkserver', 'fork'):\n"
        "        with multiprocessing.get_context(kind).Pool(1) as pool:\n"
        "            pool.apply(work)\n"
    )
    done = run(folder, "main.py")
    assert done.stdout == 3 * "itself\nnoted ['ignite_tf_magic', 'imported_later']\n", done.stderr


def test_the_sitecustomize_that_it_hides_is_run(folder):
    (folder / "sitecustomize.py").write_text("print('hidden', __name__)\n")
    done = run(folder, "-c", "import imported_later, sitecustomize; print(sitecustomize.__file__)")
    own = str(folder / "sitecustomize.py")
    assert (
        done.stdout == f"hidden sitecustomize\nitself\nnoted ['ignite_tf_magic', 'imported_later']\n{own}\n"
    )


def test_an_interpreter_without_this_package_finds_it(folder):
    venv.create(folder / "bare", with_pip=False)
    told = "import ignite_tf_magic, sys\ndef note(): print(ignite_tf_magic.__file__, sys.prefix)\n"
    (folder / "noted.py").write_text(told)
    done = run(folder, "-c", "import imported_later", python=folder / "bare" / "bin" / "python")
    assert done.stdout.splitlines()[1] == f"{ignite_tf_magic.__file__} {folder / 'bare'}", done.stderr


def test_an_interpreter_that_cannot_do_what_the_run_wants_says_so_and_goes_on(folder):
    (folder / "noted.py").write_text("import no_such_library\n")
    done = run(folder, "-c", "import imported_later; print('on')")
    assert done.stdout == "itself\non\n"
    assert f"{sys.executable} cannot run ignite_tf_magic (ModuleNotFoundError: " in done.stderr
    assert "it trains alone" in done.stderr


def test_an_error_of_the_call_reaches_who_imports(folder):
    (folder / "noted.py").write_text("def note(): raise ValueError('of the call')\n")
    done = run(folder, "-c", "import imported_later")
    assert done.returncode == 1
    assert "ValueError: of the call" in done.stderr


def test_a_process_that_has_nothing_to_do_with_a_run_is_left_alone(folder):
    path = {"PYTHONPATH": _SITE_HOOK, "PATH": os.environ["PATH"]}
    code = "import sys; print([type(each).__name__ for each in sys.meta_path][0])"
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, timeout=300)
    assert done.stdout != "_Waiting\n"
    assert done.stderr == ""


def test_it_is_part_of_the_package():
    assert Path(_SITE_HOOK, "sitecustomize.py").is_file()
