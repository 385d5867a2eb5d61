"""Pull, push, exchange and call between pairs of nodes over TCP, answered while the training loop goes on."""
