"""One file per paper, named by its key: the studies of its claims about learning, by the protocol of
docs/explanation/papers.md."""
