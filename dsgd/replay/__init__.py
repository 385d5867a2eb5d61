"""Replay a training job on the simulator's clock, without gradients: the same samples by other methods and networks."""
