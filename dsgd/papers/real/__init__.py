"""One file per paper: the studies of its claims about learning, by the protocol of docs/explanation/papers.md."""
