# Nightjar, from a clone to an answer. Every target creates .venv when it is missing.
#
#   make demo                 install the CPU service, classify the sample alerts, stop
#   make demo ALERTS=PATH     the same, and every packet in PATH (a file or a folder)
#   make serve                the same service, left running (NIGHTJAR_HOST, NIGHTJAR_PORT)
#   make test                 install what the tests need, run them
#   make bench                measure; writes build/bench.json
#   make soak                 kill a hundred stream workers in their work; then half an hour of load on the service
#
# PYTHON picks the interpreter (3.11 or newer); PIP_ARGS is handed to every `pip install`.

PYTHON ?= python3
PIP_ARGS ?=
ALERTS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint deploy/constraints.txt

# PyPI's torch brings gigabytes of CUDA. Where pip has not been pointed at a mirror or at local wheels, the tests
# therefore take torch from PyTorch's own CPU index; where it has, that choice stands.
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
torch_args = $$($(BIN)/python -m pip config list | grep -qE 'find-links|index-url' || echo "--extra-index-url $(TORCH_CPU_INDEX)")

# Debian packages are installed where that is allowed (root on a Debian system) and named where it is not.
may_apt = [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null
apt_install = apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends

.PHONY: help demo serve test bench soak lock
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   make/make/p' Makefile

demo: $(VENV)/.cpu
	$(BIN)/nightjar demo $(if $(ALERTS),"$(ALERTS)")

serve: $(VENV)/.cpu
	$(BIN)/nightjar serve

test: $(VENV)/.test
	@command -v promtool >/dev/null || { $(may_apt) && $(apt_install) prometheus >/dev/null; } \
		|| echo "make test: Prometheus is not installed and cannot be installed here: its tests will be skipped"
	@command -v redis-server >/dev/null || { $(may_apt) && $(apt_install) redis-server >/dev/null; } \
		|| echo "make test: Redis is not installed and cannot be installed here: its tests will be skipped"
	$(BIN)/python -m pytest -q

bench: $(VENV)/.cpu
	$(BIN)/python -m deploy.bench --output build/bench.json

soak: $(VENV)/.test
	SOAK_KILLS=100 $(BIN)/python -m pytest -q -s tests/service/stream/test_faults.py
	$(BIN)/python -m deploy.bench.soak

# Writes deploy/constraints.txt: the newest versions that satisfy pyproject.toml, for service, training and tests.
lock: $(VENV)/.cpu
	$(BIN)/python deploy/lock.py > deploy/constraints.txt.new
	mv deploy/constraints.txt.new deploy/constraints.txt

$(BIN)/python:
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(may_apt) && $(apt_install) python3-venv; }
	$(PYTHON) -m venv $(VENV)

# The two stamps share one environment: what the tests need contains what the service needs, so neither undoes the other.
$(VENV)/.cpu: pyproject.toml deploy/constraints.txt | $(BIN)/python
	$(INSTALL) $(PIP_ARGS) --editable '.[cpu]'
	@touch $@

$(VENV)/.test: pyproject.toml deploy/constraints.txt | $(BIN)/python
	$(INSTALL) $(PIP_ARGS) $(torch_args) --editable '.[cpu,otel,redis,stream,train,dev]'
	@touch $(VENV)/.cpu $@
