# One word per job. Every target brings its own environment (.venv, from the lock).
PYTHON ?= python3
PY := .venv/bin/python
.PHONY: picture setup demo test test-pythons verify fmt test-engines test-all test-e2e engines bench bench-engines bench-operator lock clean \
  cluster-build cluster-up cluster-down test-cluster cluster-helm crash-full image sbom

setup: .venv/.done

.venv/.done: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Stanch needs Python 3.10 or later; set PYTHON=")'
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: setup
	$(PY) -m stanch demo

test: setup
	$(PY) -m pytest -m unit -n 4 --dist loadfile

# The kit under the other Pythons of engine images, as far as this machine has them.
test-pythons: setup
	$(PY) -m tests.connector.pythons

verify: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache
	$(PY) -m tests.generated --check

fmt: setup
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .
	$(PY) -m tests.generated

picture: setup
	$(PY) -m tests.picture

engines: setup
	$(PY) -m tests.engine.install
	$(PY) -m tests.connector.conformance.sources

test-engines: engines
	$(PY) -m pytest -m engine

# A real Kubernetes in namespaces of its own (docs/bed.md). BED=another-name for a second one.
BED ?= stanch
ON_BED := $(PY) -m tests.bed --name $(BED)

cluster-build: setup
	$(ON_BED) build

cluster-up: setup
	$(ON_BED) up

cluster-down: setup
	$(ON_BED) down

# On the cluster of STANCH_TEST_KUBECONFIG where that is set; else on the bed, started for it unless it is up.
test-cluster: setup
	$(if $(STANCH_TEST_KUBECONFIG),,$(ON_BED) run --) $(PY) -m pytest -m cluster

# Every kill and every fault (docs/reliability.md, whose tables it writes); test-cluster has a choice of them.
crash-full: setup
	$(if $(STANCH_TEST_KUBECONFIG),,$(ON_BED) run --) $(PY) -m tests.cluster.crash_full $(FILE)

cluster-helm: setup
	$(ON_BED) helm

# The operator and real engines in pods. They come from the node's own files, so it is the bed always.
test-e2e: engines
	$(ON_BED) run -- $(PY) -m pytest -m e2e

test-all: test test-engines test-cluster test-e2e

bench: setup
	$(PY) -m bench.kit
	$(PY) -m bench.detect
	$(PY) -m bench.reader
	$(PY) -m bench.fleet_days
	$(PY) -m bench.scrape
	$(PY) -m bench.scrape --growth --seconds 40
	$(PY) -m bench.prometheus

# With real engines; a machine that does nothing else says more.
bench-engines: engines
	$(PY) -m bench.kit --engines

# On an API server of its own (root); 45 minutes, of which 40 are little work.
bench-operator: setup
	$(PY) -m bench.operator

# Versions move only when this is run; hashes, no addresses.
lock: setup
	.venv/bin/uv pip compile pyproject.toml --universal --python-version 3.10 --all-extras --group dev \
	  --generate-hashes --no-emit-index-url --no-header --upgrade -o requirements.lock
	.venv/bin/uv pip compile pyproject.toml --extra operator $(PART) -o requirements-operator.lock
	.venv/bin/uv pip compile --group build $(PART) -o requirements-build.lock

# What the image holds, and what builds it: the same versions.
PART := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -c requirements.lock

# The image of operator and engine kit (docs/image.md). TAG: its name; BASE: what it stands on, where not the
# Dockerfile's; IMAGE_FLAGS: more for the builder.
TAG ?= stanch
BUILDER ?= $(firstword $(foreach one,buildah podman docker,$(shell command -v $(one))))
image:
	$(or $(BUILDER),$(error an image is built with buildah, podman or docker: install one)) build --tag $(TAG) \
	  $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg REVISION=$$(git rev-parse HEAD) $(IMAGE_FLAGS) .

# What that image is made of, as CycloneDX.
SAVED := dist/image.tar
sbom: setup
	mkdir -p dist && rm -f $(SAVED)
	$(BUILDER) $(if $(filter buildah,$(notdir $(firstword $(BUILDER)))),push $(TAG) docker-archive:$(SAVED):$(TAG),save --output $(SAVED) $(TAG))
	$(PY) -m tests.image.sbom $(SAVED) requirements-operator.lock dist/stanch.cdx.json
	rm $(SAVED)

clean:
	rm -rf .venv build dist
