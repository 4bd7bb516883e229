# Nightjar, from a clone to an answer. Every target creates .venv when it is missing.
#
#   make demo                 install the CPU service, classify the sample alerts, stop
#   make demo ALERTS=PATH     the same, and every packet in PATH (a file or a folder)
#   make serve                the same service, left running (NIGHTJAR_HOST, NIGHTJAR_PORT)
#   make lint                 check style, types, import rules and generated tables of docs/: 90 seconds
#   make fast                 run the tests that train nothing and start no broker, service or benchmark
#   make test                 run `make lint`, install what the tests need and run them: twenty minutes on two cores
#   make nightly              run experiments, unshipped networks, benchmarks' tests, brokers, soaks and peers, in parts
#   make nightly PART=soak    one of them: experiments, networks, benchmarks, brokers, faults, kills, catalog, soak, peers or containers
#   make docs                 write the generated tables of docs/
#   make native               build the native kernels again, after a change of their sources
#   make bench                measure; writes build/bench.json
#   make fuzz                 fuzz every decoder, for MINUTES=1 each
#   make lock                 resolve the newest versions into deploy/constraints.txt and the files with hashes
#   make audit                look for known vulnerabilities of the dependencies, and for secrets; needs the network
#   make sbom                 write the bill of materials of the service, as CycloneDX: build/sbom.json
#   make containers           build the image and run it, the compose file and the pods; needs podman (or ENGINE=docker)
#   make release              build the committed sdist and wheels, with bill of materials and checksums, into dist/
#   make kafka                fetch a Kafka into build/kafka (NIGHTJAR_KAFKA_HOME), for the tests that break brokers
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

# Tests start hundreds of processes, which would compile every module again.
fast test nightly: export PYTHONDONTWRITEBYTECODE =

# Every run prints the fifty slowest tests and fixtures, and records all in build/tests/NAME.xml.
pytest = $(BIN)/python -m pytest -q --durations=50 --junitxml=build/tests/$(1).xml
# Two processes, whatever the machine: many tests start processes of their own. Files with slow tests start first
# (tests/conftest.py), and a process that has finished its half takes tests from the other.
PARALLEL := -n 2 --dist worksteal

# PyPI's torch brings gigabytes of CUDA. Where pip has not been pointed at a mirror or at local wheels, the tests
# therefore take torch from PyTorch's own CPU index; where it has, that choice stands.
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
torch_args = $$($(BIN)/python -m pip config list | grep -qE 'find-links|index-url' || echo "--extra-index-url $(TORCH_CPU_INDEX)")

# Debian packages are installed where that is allowed (root on a Debian system) and named where it is not.
may_apt = [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null
apt_install = apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends

.PHONY: help demo serve native lint fast programs test parallel nightly docs bench fuzz lock audit sbom containers release kafka
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
	$(call pytest,fast) $(PARALLEL) -m "not slow and not serial and not nightly"

# What is neither here nor can be installed is named, and the tests that need it are skipped.
needs = @command -v $(1) >/dev/null || { $(may_apt) && $(apt_install) $(2) >/dev/null; } \
	|| echo "$(1) is not installed and cannot be installed here: its tests will be skipped"

programs:
	$(call needs,promtool,prometheus)
	$(call needs,redis-server,redis-server)
	$(call needs,nginx,nginx-light)
	$(call needs,chromium,chromium fonts-dejavu-core)

# mypy shares the cores with tests that wait.
test: $(VENV)/.test programs
	$(MAKE) --no-print-directory --jobs 2 lint parallel
	$(call pytest,serial) -m "serial and not nightly" $(SERIAL)

parallel: $(VENV)/.test
	$(call pytest,test) $(PARALLEL) -m "not serial and not nightly"

SERIAL = $(shell grep -rl --include='test_*.py' 'pytest\.mark\.serial' tests)

# One after the other, each in less than 80 minutes. Where Kafka, Redis or the network is missing, what needs it is skipped.
NIGHTLY := experiments networks benchmarks brokers faults kills catalog soak peers containers
night = $(call pytest,$@) -m nightly

nightly: $(VENV)/.test programs
	@failed=; for part in $(or $(PART),$(NIGHTLY)); do began=$$(date +%s); \
		timeout 80m $(MAKE) --no-print-directory nightly-$$part || failed="$$failed $$part"; \
		echo "make nightly PART=$$part: commit $$(git describe --always --dirty), $$(date -u +%F)," \
			"$$((($$(date +%s) - began + 59) / 60)) minutes"; done; \
	test -z "$$failed" || { echo "make nightly: failed:$$failed" >&2; exit 1; }

nightly-experiments:
	$(night) $(PARALLEL) tests/training/experiments

nightly-networks:
	$(night) $(PARALLEL) tests/models tests/training --ignore tests/training/experiments

nightly-benchmarks:
	$(night) tests --ignore tests/models --ignore tests/training --ignore tests/service \
		--ignore tests/catalog --ignore tests/containers

nightly-brokers:
	NIGHTJAR_SOAK=1 $(night) tests/service --ignore tests/service/stream/cluster/test_kills.py

nightly-faults:
	SOAK_KILLS=100 $(call pytest,$@) -s tests/service/stream/test_faults.py

nightly-kills:
	SOAK_KILLS=100 NIGHTJAR_SOAK=1 $(night) -s tests/service/stream/cluster/test_kills.py

nightly-catalog:
	$(night) -s tests/catalog
	$(BIN)/python -W ignore -m deploy.bench.catalog --output build/catalog.json

nightly-soak:
	$(BIN)/python -m deploy.bench.soak

nightly-peers:
	$(BIN)/python -m deploy.bench --parts '["peers"]' --output build/peers.json

nightly-containers: containers

# The record of a run on committed files stands in docs/results. BUILD is handed to `build`, as --build-arg BASE=IMAGE.
ENGINE ?= podman
BUILD ?=
BUILDER ?= $(ENGINE) build $(BUILD)
# Labels by option: podman 4.3 takes a LABEL with a build argument from its cache, with the value of an earlier build.
label = --label org.opencontainers.image
labels = $(label).version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) \
	$(label).revision=$$(git rev-parse HEAD) $(label).created=$$(date -u +%FT%TZ)

containers: $(VENV)/.test
	@command -v $(ENGINE) >/dev/null || { echo "make containers: not run: $(ENGINE) is not installed"; exit 0; }; set -e; \
	$(BUILDER) -f deploy/Dockerfile -t nightjar $(labels) .; \
	$(BUILDER) -f deploy/nginx.Dockerfile -t nightjar-proxy deploy; \
	$(BUILDER) -f tests/containers/parts.Dockerfile -t nightjar-parts tests/containers; \
	$(BUILDER) -f tests/containers/systemd.Dockerfile -t nightjar-systemd --build-arg IMAGE=nightjar tests/containers; \
	NIGHTJAR_CONTAINERS=$(ENGINE) NIGHTJAR_IMAGE=nightjar NIGHTJAR_PROXY_IMAGE=nightjar-proxy \
		NIGHTJAR_PARTS_IMAGE=nightjar-parts NIGHTJAR_SYSTEMD_IMAGE=nightjar-systemd \
		NIGHTJAR_CONTAINER_RECORD=docs/results/containers.json \
		$(call pytest,containers) -m nightly tests/containers

docs: $(VENV)/.test
	$(BIN)/python -m deploy.pages
	$(BIN)/python -m deploy.sizing

bench: $(VENV)/.cpu
	$(BIN)/python -m deploy.bench --output build/bench.json

fuzz: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) 'atheris>=3.0' \
		|| echo "make fuzz: atheris cannot be installed here: inputs will not follow coverage"
	PYTHONPATH=tests:. $(BIN)/python -m fuzz --minutes $(MINUTES)

# A broker for the tests that break one: Kafka as Apache publishes it, by its SHA-512; needs Java 17 at run time.
kafka: build/kafka/libs

build/kafka/libs:
	mkdir -p build/kafka
	curl -fsSL -o build/kafka.tgz $(KAFKA_URL)/kafka_2.13-$(KAFKA_VERSION).tgz
	curl -fsSL $(KAFKA_URL)/kafka_2.13-$(KAFKA_VERSION).tgz.sha512 | tr -d ' \n' | cut -d: -f2 | tr A-F a-f | \
		sed 's|$$|  build/kafka.tgz|' | sha512sum --check -
	tar -xzf build/kafka.tgz -C build/kafka --strip-components=1
	rm build/kafka.tgz

# One resolution of everything into constraints.txt, and from it the files with hashes: what serves, and what builds.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --custom-compile-command 'make lock'
LOCKED = $(LOCK) --constraint deploy/constraints.txt --generate-hashes

lock: $(BIN)/uv
	$(LOCK) --upgrade pyproject.toml deploy/build-requirements.in --extra cpu --extra arrow --extra grpc --extra otel --extra stream \
		--extra tables --extra catalog --extra client --extra plot --extra train --extra dev --output-file deploy/constraints.txt
	$(LOCKED) pyproject.toml --extra cpu --extra grpc --extra otel --extra stream --output-file deploy/requirements.txt
	$(LOCKED) pyproject.toml --extra gpu --extra grpc --extra otel --extra stream --output-file deploy/requirements-gpu.txt
	$(LOCKED) deploy/build-requirements.in --output-file deploy/build-requirements.txt

# Passwords in the tests are made up. gitleaks, where it is installed, looks into the history as well.
audit: $(BIN)/uv
	$(BIN)/uvx pip-audit --strict --require-hashes --disable-pip --requirement deploy/requirements.txt
	$(BIN)/uvx pip-audit --strict --require-hashes --disable-pip --requirement deploy/requirements-gpu.txt
	git ls-files -z ':!tests' | xargs -0 $(BIN)/uvx --from detect-secrets detect-secrets-hook \
		$(addprefix --disable-plugin ,Base64HighEntropyString HexHighEntropyString KeywordDetector)
	! command -v gitleaks >/dev/null || gitleaks git --no-banner

sbom: $(BIN)/uv
	mkdir -p build
	$(BIN)/uvx --from cyclonedx-bom cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--output-file build/sbom.json deploy/requirements.txt

# The sdist, wheels for x86-64 and AArch64, the bill of materials and checksums, of the commit that is checked out; and
# the image, where Docker is installed, with the bill of materials that buildx makes of all that is in it.
release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
release: $(VENV)/.cpu sbom
	git diff --quiet HEAD || { echo "make release: there are changes that are not committed" >&2; exit 1; }
	rm -rf dist build/release && mkdir -p dist build/release && git archive HEAD | tar -x -C build/release
	NIGHTJAR_BUILD_MACHINE=x86_64 $(BIN)/python -m build --no-isolation --outdir dist build/release
	NIGHTJAR_BUILD_MACHINE=aarch64 $(BIN)/python -m build --no-isolation --wheel --outdir dist build/release
	cp build/sbom.json dist && cd dist && sha256sum -- * > SHA256SUMS
	! docker buildx version >/dev/null 2>&1 || git archive HEAD | docker buildx build --file deploy/Dockerfile $(labels) \
		--sbom=true --provenance=mode=max --output type=oci,dest=dist/nightjar-image.tar -

$(BIN)/uv: | $(BIN)/python
	$(INSTALL) $(PIP_ARGS) uv

$(BIN)/python:
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(may_apt) && $(apt_install) python3-venv; }
	$(PYTHON) -m venv $(VENV)

KERNELS := $(wildcard models/kernels/*.cc models/kernels/*.h)

# The two stamps share one environment: what the tests need contains what the service needs, so neither undoes the other.
# What serves, and what builds it, is installed by hash: a file that was exchanged at the index is refused. The editable
# install compiles the native kernels.
$(VENV)/.cpu: pyproject.toml deploy/requirements.txt deploy/build-requirements.txt $(KERNELS) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --require-hashes \
		--requirement deploy/build-requirements.txt --requirement deploy/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.test: pyproject.toml deploy/constraints.txt deploy/build-requirements.txt $(KERNELS) | $(BIN)/python
	$(INSTALL) $(PIP_ARGS) --require-hashes --requirement deploy/build-requirements.txt
	$(INSTALL) $(PIP_ARGS) $(torch_args) --no-build-isolation --editable '.[cpu,grpc,otel,stream,tables,catalog,train,dev]'
	@touch $(VENV)/.cpu $@
