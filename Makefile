PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install quickstart test

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## +/\t/' | expand -t 14

install: .venv/installed   ## build .venv with .venv/bin/tailgauge in it

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip -c constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group dev -e '.[engine]'
	touch $@
