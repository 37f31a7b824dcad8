# Everything a fresh machine needs besides make and Python 3.11 is installed into .venv by the first target that wants it.
.PHONY: help demo test check format lock clean
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/ready
MODEL ?= densecap-flickr8k
PHOTOGRAPHS := astronaut.png camera.png motorcycle_left.png

# One thread a process: the tests run in two processes, and more threads than cores make torch slower, not faster.
TEST_ENV := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1

help:
	@echo "make demo    describe real photographs with the shipped model, drawn into demo/"
	@echo "make test    linter, formatter, type checker and all tests"
	@echo "make check   the same without the tests"
	@echo "make format  format the code and repair what the linter can"
	@echo "make lock    write requirements.txt from pyproject.toml (UPGRADE=1: with the newest versions)"
	@echo "make clean   remove the environment and what the demo wrote"

# One call a photograph, because a call for a single picture prints its table.
demo: $(READY)
	@photographs=$$($(BIN)/python -c "import skimage; print(skimage.data_dir)") && \
	for name in $(PHOTOGRAPHS); do \
		echo "saywhere describe $$name --out demo --top 5 --threshold 0.5"; \
		$(BIN)/saywhere describe $$photographs/$$name --out demo --top 5 --threshold 0.5 --model $(MODEL) || exit; \
	done
	@echo "The photographs with boxes and captions drawn: $(PHOTOGRAPHS:%=demo/%)"

test: check
	$(TEST_ENV) $(BIN)/python -m pytest -n 2

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# uv, the installer, is fetched by pip in the version and with the hashes of the lock; uv then installs the rest in parallel.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))" \
		|| { echo "error: the locked environment needs Python 3.11; name it: make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements.txt > .venv/uv.txt
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement .venv/uv.txt
	$(BIN)/uv pip install --python $(BIN)/python --require-hashes --requirement requirements.txt
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml --extra dev --generate-hashes --no-header --no-annotate --quiet \
		--python-version 3.11 --python-platform x86_64-manylinux_2_28 $(if $(UPGRADE),--upgrade) --output-file requirements.txt

clean:
	rm -rf .venv demo
