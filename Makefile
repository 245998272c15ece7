# make demo   compile the example program on a local model and compare it (needs about 2 GB of disk)
# make test   install what is needed and run the tests
# make check  lint, format, types
# make docs   build the documentation into site/
# make bench  every variant of the loop on three seeds (a night on two cores; goes on where it was stopped)
# make bench-quick  every optimizer at an equal budget on a simulated model (about five minutes on two cores)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check format docs bench bench-quick clean

# INSTALL=floor takes the lowest versions that pyproject.toml allows, instead of the newest.
INSTALL ?= newest

$(BIN)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
ifeq ($(INSTALL),floor)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --resolution lowest-direct --editable '.[dev]'
else
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
endif
	touch $@

demo: $(BIN)/.installed
	$(BIN)/python -m programs.country_records compare --train 8 --val 6 --test 10 --ood 8

test: $(BIN)/.installed
	$(BIN)/python -m pytest --numprocesses auto $(PYTEST)

check: $(BIN)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(BIN)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(BIN)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(BIN)/.installed
	$(BIN)/python -m benchmarks.compare --task country_records

# Two processes, a pair of tasks each.
QUICK = --lm simulated/0 --budget 200 --seeds 0 1 2 3 4 --test 30 --ood 15
bench-quick: $(BIN)/.installed
	@dir=$$(mktemp -d) && command="$(BIN)/python -m benchmarks.compare $(QUICK) --out $$dir/results" && \
	{ $$command --runs-dir $$dir/runs --task sim_formats sim_noisy & } && first=$$! && \
	$$command --runs-dir $$dir/runs --task sim_classes sim_traps && wait $$first && \
	$$command --summary && echo "Simulated; every cell is a file in $$dir/results."

clean:
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache
