# Everything here sets up .venv by itself, once, from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
ALGORITHMS := sync,easgd,downpour,gossip,dpsgd,delayfree
NINE := [{algo: sync}, {algo: localsgd}, {algo: diloco}, {algo: compressed, algo.code_s: 0.046}, {algo: adpsgd}, \
    {algo: sgp, topology: one_peer_exponential}, {algo: dpsgd}, {algo: gossip}, {algo: delayfree}]
CONDITIONS := {cluster.bandwidth: [1e8, 3e8, 1e9, 3e9, 1e10], cluster.slow_nodes.15: [1, 1.5, 2, 4]}
DEMO ?=

.PHONY: demo test test-all test-long lint docs docs-serve dist bench figures phases papers reproduce clean

demo: $(READY)  ## six algorithms, each tuned, on a slow network with one slow node: table, verdict, figure
	rm -rf outputs/demo
	$(BIN)/dsgd-compare --folder outputs/demo experiment=slow_network algo=$(ALGORITHMS) $(DEMO)

test: $(READY)  ## the tests
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not long"

test-all: $(READY)  ## both of them, collected once
	$(BIN)/python -m pytest -n auto --dist worksteal

test-long: $(READY)  ## campaigns, clusters, and further cases of what the others check
	$(BIN)/python -m pytest -n auto --dist worksteal -m long

lint: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(READY)  ## the documentation site: build/site/index.html; a dead link is an error
	$(BIN)/python scripts/stage_docs.py build/docs
	cd build && ../$(BIN)/zensical build --strict -f zensical.toml

docs-serve: docs  ## the site at http://127.0.0.1:8000; type it again after an edit
	cd build && ../$(BIN)/zensical serve -f zensical.toml

dist: $(READY)  ## source distribution, and from it a wheel for this machine: dist/
	$(BIN)/python -m build

bench: $(READY)  ## speed and memory of the simulator, and of whole runs; of real processes and data: run by name
	for benchmark in gradients logistic timing_only memory whole_runs; do $(BIN)/python benchmarks/$$benchmark.py || exit 1; done

figures: $(READY)  ## the committed comparisons, made again: results/compare, and with one rate for all results/slow_network
	rm -rf outputs/compare
	$(BIN)/dsgd-compare --folder outputs/compare experiment=slow_network algo=$(ALGORITHMS)
	mkdir -p results/compare
	cp outputs/compare/contest.csv outputs/compare/contest.md outputs/compare/contest.png outputs/compare/verdict.txt results/compare
	$(BIN)/python scripts/terminal_picture.py results/compare/terminal.svg -- $(BIN)/dsgd-compare --folder outputs/compare \
	    experiment=slow_network algo=$(ALGORITHMS)
	rm -rf outputs/figures
	$(BIN)/dsgd-run -m experiment=slow_network algo=$(ALGORITHMS) seed=0,1,2 hydra.sweep.dir=outputs/figures
	$(BIN)/dsgd-plot outputs/figures --out results/slow_network

phases: $(READY)  ## the map of who wins, over the bandwidth and a slow node, made again: results/phases
	rm -rf outputs/phases
	$(BIN)/dsgd-compare --folder outputs/phases experiment=newer_small nodes=16 budget.epochs=20 target.loss=0.5 cluster.bandwidth=1e9 \
	    'cluster.slow_nodes={15: 1.0}' compare.seeds=3 'compare.contenders=$(NINE)' 'compare.whatif=$(CONDITIONS)'
	mkdir -p results/phases
	cp outputs/phases/contest.md outputs/phases/whatif.csv outputs/phases/whatif.md outputs/phases/whatif.png results/phases

papers: $(READY)  ## the papers' pages and figures, drawn again from the logged runs: results/papers
	$(BIN)/dsgd-reproduce --redraw

reproduce: $(READY)  ## every run of the papers' claims, anew, then their pages
	rm -rf outputs/papers/small
	$(BIN)/dsgd-reproduce all --anew

clean:  ## what this Makefile made, but for outputs/papers, hours of runs; never results/
	rm -rf .venv build dist *.egg-info outputs/demo outputs/compare outputs/figures outputs/phases

$(READY): pyproject.toml setup.py constraints.txt $(wildcard csrc/*)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(READY)
