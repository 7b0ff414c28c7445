# `make help` lists the targets.
PYTHON = $(shell sh tools/find-python.sh)
SUITES =

.PHONY: help
help:  ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

.PHONY: setup
setup:  ## build every environment, with the test tools
	@$(PYTHON) tools/setup.py

.PHONY: demo
demo:  ## run the demonstration job
	@bin/crosstrain demo

.PHONY: test
test:  ## run all tests, each suite in its own environment (SUITES="common torch" chooses)
	@$(PYTHON) tools/test.py $(SUITES)

.PHONY: fault-suite
fault-suite:  ## plant known faults in real engines: caught, named, false alarms
	@$(PYTHON) tools/run.py -m tests.fault_suite

.PHONY: parallel-suite
parallel-suite:  ## every engine, strategy and number of ranks against one rank, with planted faults
	@$(PYTHON) tools/run.py -m tests.parallel_suite

.PHONY: e2e-compose
e2e-compose:  ## build the images, run and test the compose stack (OPTIONS="--help" explains); not a part of test
	@$(PYTHON) tools/run.py -m tests.compose $(OPTIONS)

.PHONY: lint
lint:  ## ruff, mypy, vermin and buf
	@$(PYTHON) tools/lint.py

.PHONY: protos
protos:  ## regenerate the Python package of the API
	@$(PYTHON) tools/protos.py generate

.PHONY: clean-cache
clean-cache:  ## remove the built environments
	@$(PYTHON) tools/setup.py --remove
