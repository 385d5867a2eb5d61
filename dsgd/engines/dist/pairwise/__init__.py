"""Pull, push, exchange and call between pairs of nodes, and sums over all, by TCP, during training."""
