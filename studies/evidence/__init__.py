"""Decide claims about learning: T*, the steps that a contender needs to a loss, over replicated pipelines.

`trial` has the runs and their archive, `pipeline` what is run and what comes out, `paired_t` the interval over
replicates, `make_trials` makes what is missing. The protocol: docs/explanation/papers.md."""
