# make demo | test | lint | bench; everything lives in .venv and the user's cache directory.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INPUTS := setup.cfg setup.py pyproject.toml ignite_tf_magic/protocol/_rows.c

.PHONY: demo test lint bench quickstart golden pictures clean

demo: $(VENV)/.all
	$(BIN)/ignite-tf demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# The golden bytes of tests/protocol, captured anew from a real node.
golden: $(VENV)/.dev
	$(BIN)/python tests/protocol/capture.py

$(VENV)/bin/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

# uv installs in seconds what pip does in minutes; pip knows index settings that uv does not.
$(VENV)/.all: $(INPUTS) | $(VENV)/bin/uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[all]' \
	  || $(BIN)/python -m pip install --quiet --editable '.[all]'
	touch $@

$(VENV)/.dev: $(INPUTS) | $(VENV)/bin/uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev]' \
	  || $(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.all

clean:
	rm -rf $(VENV) build dist *.egg-info ignite_tf_magic/protocol/*.so
