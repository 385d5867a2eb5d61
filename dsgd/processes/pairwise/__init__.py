"""Pairs of nodes over TCP: pull, push, exchange and call, each answered without the training loop."""
