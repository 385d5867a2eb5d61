"""Evaluators of the simulator: the gradients of many workers in one call."""
