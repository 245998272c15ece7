# make demo   compile the example program on a local model and compare it (needs about 2 GB of disk)
# make test   install what is needed and run the tests
# make check  lint, format, types
# make bench  the larger measurement behind the README's table (about two hours on two cores)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check format bench clean

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
	$(BIN)/python -m pytest $(PYTEST)

check: $(BIN)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(BIN)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BIN)/.installed
	$(BIN)/python -m benchmarks.learning --task country_records

clean:
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache
