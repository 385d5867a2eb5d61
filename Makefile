# Everything here sets up .venv by itself, once, from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
ALGORITHMS := sync,easgd,downpour,gossip,dpsgd,delayfree
DEMO ?=

.PHONY: demo test test-long lint bench figures papers reproduce clean

demo: $(READY)  ## six algorithms, each tuned, on a slow network with one slow node: table, verdict, figure
	rm -rf outputs/demo
	$(BIN)/dsgd-compare --folder outputs/demo experiment=slow_network algo=$(ALGORITHMS) $(DEMO)

test: $(READY)  ## the tests
	$(BIN)/python -m pytest -n auto -m "not long"

test-long: $(READY)  ## campaigns, clusters, and further cases of what the others check
	$(BIN)/python -m pytest -n auto -m long

lint: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(READY)  ## speed and memory of the simulator, and of whole runs; of real processes and data: run by name
	for benchmark in stacked logistic timing_only memory whole_runs; do $(BIN)/python benchmarks/$$benchmark.py || exit 1; done

figures: $(READY)  ## the committed comparisons, made again: results/compare, and with one rate for all results/slow_network
	rm -rf outputs/compare
	$(BIN)/dsgd-compare --folder outputs/compare experiment=slow_network algo=$(ALGORITHMS)
	mkdir -p results/compare
	cp outputs/compare/contest.csv outputs/compare/contest.md outputs/compare/contest.png outputs/compare/verdict.txt results/compare
	rm -rf outputs/figures
	$(BIN)/dsgd-run -m experiment=slow_network algo=$(ALGORITHMS) seed=0,1,2 hydra.sweep.dir=outputs/figures
	$(BIN)/dsgd-plot outputs/figures --out results/slow_network

papers: $(READY)  ## the papers' pages and figures, drawn again from the logged runs: results/papers
	$(BIN)/dsgd-reproduce --redraw

reproduce: $(READY)  ## every run of the papers' claims, anew, then their pages
	rm -rf outputs/papers/small
	$(BIN)/dsgd-reproduce --anew

clean:  ## what this Makefile made; never results/
	rm -rf .venv build dist *.egg-info outputs/demo outputs/compare outputs/figures

$(READY): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(READY)
