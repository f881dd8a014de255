# Each target does everything from a bare checkout.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
READY = $(VENV)/.ready
# Tests of one file share what is costly to set up. They run side by side, so each keeps to one thread.
SIDE_BY_SIDE = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile

.PHONY: train test test-full test-slurm check config clean

train: $(READY)
	$(BIN)/snakemake --cores 1 train

test: $(READY) .venv-interop/.ready
	$(SIDE_BY_SIDE)

# The full counts of fuzz, kills and proofs; hours.
test-full: $(READY) .venv-interop/.ready
	$(SIDE_BY_SIDE) -m "full or not slurm"

# Several nodes on a real SLURM of this machine; needs root and the packages slurm-wlm and munge.
test-slurm: $(READY)
	$(BIN)/python -m pytest -q -m slurm -rs tests/slurm

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/snakemake --lint
	$(BIN)/mypy
	$(BIN)/python -m workflow_scripts.write_reference --check

# Writes config/schema.json and config/README.md from the typed settings.
config: $(READY)
	$(BIN)/python -m workflow_scripts.write_reference

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,slurm]"
	touch $@

# A second environment with the serving side's library, which caps transformers lower than we do.
.venv-interop/.ready: $(READY) tests/interop/create_environment.py
	$(BIN)/python tests/interop/create_environment.py
	touch $@

clean:
	rm -rf results logs .snakemake
