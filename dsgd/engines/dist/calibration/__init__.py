"""Measure a real cluster and describe it for the simulator."""
