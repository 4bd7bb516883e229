# Nightjar, from a clone to an answer. Every target creates .venv when it is missing.
#
#   make demo                 install the CPU service, classify the sample alerts, stop
#   make demo ALERTS=PATH     the same, and every packet in PATH (a file or a folder)
#   make serve                the same service, left running (NIGHTJAR_HOST, NIGHTJAR_PORT)
#   make lint                 check style, types, import rules and generated tables of docs/: a minute
#   make fast                 run the tests that train nothing and start no broker or benchmark: four minutes
#   make test                 run `make lint`, install what the tests need and run them: a quarter of an hour on two cores
#   make docs                 write the generated tables of docs/
#   make native               build the kernels of our own, which answer faster, for this machine
#   make bench                measure; writes build/bench.json
#   make fuzz                 feed every decoder with strange bytes, MINUTES=1 each
#   make audit                look for known vulnerabilities and secrets; asks servers
#   make sbom                 list what serves, as CycloneDX: build/sbom.json
#   make release              build what is committed, with its bill of materials and sums, into dist/
#   make kafka                fetch a Kafka into build/kafka (NIGHTJAR_KAFKA_HOME), for the tests that break brokers
#   make soak                 kill a hundred stream workers in their work; then half an hour of load on the service
#
# PYTHON picks the interpreter (3.11 or newer); PIP_ARGS is handed to every `pip install`.

PYTHON ?= python3
PIP_ARGS ?=
ALERTS ?=
MINUTES ?= 1
KAFKA_VERSION ?= 4.2.1
KAFKA_URL ?= https://archive.apache.org/dist/kafka/$(KAFKA_VERSION)

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint deploy/constraints.txt

# Two processes, whatever the machine: many tests start processes of their own. A file stays in one process, and files with
# slow tests start first (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -q
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

# PyPI's torch brings gigabytes of CUDA. Where pip has not been pointed at a mirror or at local wheels, the tests
# therefore take torch from PyTorch's own CPU index; where it has, that choice stands.
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
torch_args = $$($(BIN)/python -m pip config list | grep -qE 'find-links|index-url' || echo "--extra-index-url $(TORCH_CPU_INDEX)")

# Debian packages are installed where that is allowed (root on a Debian system) and named where it is not.
may_apt = [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null
apt_install = apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends

.PHONY: help demo serve native lint fast test docs bench fuzz soak lock audit sbom release kafka
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   make/make/p' Makefile

demo: $(VENV)/.cpu
	$(BIN)/nightjar demo $(if $(ALERTS),"$(ALERTS)")

serve: $(VENV)/.cpu
	$(BIN)/nightjar serve

native: $(VENV)/.cpu
	$(BIN)/python -m nightjar_alerts.models.native

# mypy takes most of the time, on one core; the other checks run in parallel with it.
lint: $(VENV)/.test
	@began=$$(date +%s); $(BIN)/python -m mypy src/nightjar_alerts deploy tests & types=$$!; \
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && $(BIN)/python -m deploy.pages --check; \
	rest=$$?; wait $$types || rest=1; echo "make lint: $$(($$(date +%s) - began)) s"; exit $$rest

fast: $(VENV)/.test
	$(PYTEST) $(PARALLEL) -m "not slow and not serial"

test: lint
	@command -v promtool >/dev/null || { $(may_apt) && $(apt_install) prometheus >/dev/null; } \
		|| echo "make test: Prometheus is not installed and cannot be installed here: its tests will be skipped"
	@command -v redis-server >/dev/null || { $(may_apt) && $(apt_install) redis-server >/dev/null; } \
		|| echo "make test: Redis is not installed and cannot be installed here: its tests will be skipped"
	@command -v nginx >/dev/null || { $(may_apt) && $(apt_install) nginx-light >/dev/null; } \
		|| echo "make test: nginx is not installed and cannot be installed here: its tests will be skipped"
	$(PYTEST) $(PARALLEL) -m "not serial"
	$(PYTEST) -m serial

docs: $(VENV)/.test
	$(BIN)/python -m deploy.pages

bench: $(VENV)/.cpu
	$(BIN)/python -m deploy.bench --output build/bench.json

fuzz: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) 'atheris>=3.0' \
		|| echo "make fuzz: atheris cannot be installed here: inputs will not follow coverage"
	PYTHONPATH=tests:. $(BIN)/python -m fuzz --minutes $(MINUTES)

soak: $(VENV)/.test
	SOAK_KILLS=100 $(BIN)/python -m pytest -q -s tests/service/stream/test_faults.py
	SOAK_KILLS=100 NIGHTJAR_SOAK=1 $(BIN)/python -m pytest -q -s tests/service/stream/cluster
	$(BIN)/python -m deploy.bench.soak

# A broker for the tests that break one: Kafka as Apache publishes it, by its SHA-512; needs Java 17 at run time.
kafka: build/kafka/libs

build/kafka/libs:
	mkdir -p build/kafka
	curl -fsSL -o build/kafka.tgz $(KAFKA_URL)/kafka_2.13-$(KAFKA_VERSION).tgz
	curl -fsSL $(KAFKA_URL)/kafka_2.13-$(KAFKA_VERSION).tgz.sha512 | tr -d ' \n' | cut -d: -f2 | tr A-F a-f | \
		sed 's|$$|  build/kafka.tgz|' | sha512sum --check -
	tar -xzf build/kafka.tgz -C build/kafka --strip-components=1
	rm build/kafka.tgz

# Writes deploy/constraints.txt: the newest versions that satisfy pyproject.toml, for service, training and tests.
lock: $(VENV)/.cpu
	$(BIN)/python deploy/lock.py > deploy/constraints.txt.new
	mv deploy/constraints.txt.new deploy/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) uv
	$(BIN)/python deploy/lock.py --hashes $(BIN)/uv

# Known vulnerabilities of what serves, and secrets in the history. The first asks a server that CI does not reach, the
# second needs a tool that it has not; secrets in the files themselves are looked for by the tests.
audit: $(VENV)/.cpu
	$(BIN)/python -m deploy.secret_scan
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) pip-audit
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --requirement deploy/requirements.txt
	! command -v gitleaks >/dev/null || gitleaks git --no-banner

sbom: $(VENV)/.cpu
	mkdir -p build && $(BIN)/python -m deploy.sbom > build/sbom.json

# Wheel, source archive, bill of materials and sums of what is committed; the image, with the bill that buildx makes of
# all of it, Debian's packages included, where there is a Docker.
release: $(VENV)/.cpu
	$(BIN)/python -m deploy.release dist
	! docker buildx version >/dev/null 2>&1 || git archive HEAD | docker buildx build --file deploy/Dockerfile \
		--sbom=true --provenance=mode=max --output type=oci,dest=dist/nightjar-image.tar -

$(BIN)/python:
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(may_apt) && $(apt_install) python3-venv; }
	$(PYTHON) -m venv $(VENV)

# The two stamps share one environment: what the tests need contains what the service needs, so neither undoes the other.
# What serves, and what builds it, is installed by hash: a file that was exchanged at the index is refused.
$(VENV)/.cpu: pyproject.toml deploy/requirements.txt deploy/build-requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --require-hashes \
		--requirement deploy/build-requirements.txt --requirement deploy/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.test: pyproject.toml deploy/constraints.txt | $(BIN)/python
	$(INSTALL) $(PIP_ARGS) $(torch_args) --editable '.[cpu,otel,redis,stream,train,dev]'
	@touch $(VENV)/.cpu $@
