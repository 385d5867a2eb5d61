# Everything here sets up .venv by itself, once, from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
ALGORITHMS := sync,easgd,downpour,gossip,dpsgd,delayfree
NINE := [{algo: sync}, {algo: localsgd}, {algo: diloco}, {algo: compressed, algo.code_s: 0.046}, {algo: adpsgd}, \
    {algo: sgp, topology: one_peer_exponential}, {algo: dpsgd}, {algo: gossip}, {algo: delayfree}]
CONDITIONS := {cluster.bandwidth: [1e8, 3e8, 1e9, 3e9, 1e10], cluster.slow_nodes.15: [1, 1.5, 2, 4]}
EIGHT := [{algo: sync}, {algo: sync, algo.overlap: false, algo.backups: 2}, {algo: diloco}, {algo: decoupled, algo.quorum: 8}, \
    {algo: asyncdiloco, algo.tau: 20, algo.olr: 0.07, algo.slow_nodes: "\$${cluster.slow_nodes}"}, {algo: gossip, algo.tau: 10}, {algo: adpsgd}, {algo: noloco}]
FAULTS := cluster.bandwidth: [1e8, 1e10], cluster.failures.every_s: [2.5e2, 2.5e4]
DEMO ?=

.PHONY: demo test test-all lint docs docs-serve dist bench figures phases phases_faults papers reproduce clean

demo: $(READY)  ## six algorithms, each tuned, on a slow network with one slow node: table, verdict, figure
	rm -rf outputs/demo
	$(BIN)/dsgd-compare --folder outputs/demo experiment=slow_network algo=$(ALGORITHMS) $(DEMO)

test: $(READY)  ## the tests of a process and of both engines, and the commands' most important ones
	$(BIN)/python -m pytest -n auto --dist worksteal tests/unit tests/engine tests/system/core

test-all: $(READY)  ## all tests: also clusters, faults, browsers, campaigns
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(READY)  ## the documentation site: build/site/index.html; a dead link is an error
	$(BIN)/python scripts/reference_pages.py
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
	$(BIN)/dsgd-compare --folder outputs/compare --width single experiment=slow_network algo=$(ALGORITHMS)
	mkdir -p results/compare
	cp outputs/compare/contest.csv outputs/compare/contest.md outputs/compare/contest.png outputs/compare/verdict.txt results/compare
	rm -rf outputs/figures
	$(BIN)/dsgd-run -m experiment=slow_network algo=$(ALGORITHMS) seed=0,1,2 hydra.sweep.dir=outputs/figures
	$(BIN)/dsgd-plot outputs/figures --out results/slow_network

phases: $(READY)  ## the map of who wins, over the bandwidth and a slow node, made again: results/phases
	rm -rf outputs/phases
	$(BIN)/dsgd-compare --folder outputs/phases experiment=newer_small nodes=16 budget.epochs=20 target.loss=0.5 cluster.bandwidth=1e9 \
	    'cluster.slow_nodes={15: 1.0}' compare.seeds=3 'compare.contenders=$(NINE)' 'compare.whatif=$(CONDITIONS)'
	mkdir -p results/phases
	cp outputs/phases/contest.md outputs/phases/whatif.csv outputs/phases/whatif.md outputs/phases/whatif.png results/phases

phases_faults: $(READY)  ## the maps of who wins where nodes fail, over the bandwidth, with equal workers and beside a slow one: results/phases_faults
	rm -rf outputs/phases_faults
	mkdir -p results/phases_faults
	for slow in 1 4; do \
	    $(BIN)/dsgd-compare --folder outputs/phases_faults experiment=newer_small nodes=16 budget.epochs=10 target.loss=0.6 target.stop=true \
	        cluster.bandwidth=1e9 cluster.server_bandwidth=1e10 'cluster.slow_nodes={15: 1.0}' 'cluster.failures={every_s: 2.5e4, repair_s: 30}' \
	        compare.seeds=3 'compare.contenders=$(EIGHT)' "compare.whatif={$(FAULTS), cluster.slow_nodes.15: [$$slow]}" || exit 1; \
	    for kind in csv md png; do cp outputs/phases_faults/whatif.$$kind results/phases_faults/slow_$$slow.$$kind || exit 1; done; \
	done
	cp outputs/phases_faults/contest.md results/phases_faults

papers: $(READY)  ## the papers' pages and figures, drawn again from the logged runs: results/papers
	$(BIN)/dsgd-reproduce --redraw

reproduce: $(READY)  ## the runs of the papers' claims that are missing, then their pages
	$(BIN)/dsgd-reproduce all

clean:  ## what this Makefile made, but for outputs/papers, hours of runs; never results/
	rm -rf .venv build dist *.egg-info outputs/demo outputs/compare outputs/figures outputs/phases outputs/phases_faults

$(READY): pyproject.toml setup.py constraints.txt $(wildcard csrc/*)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(READY)
