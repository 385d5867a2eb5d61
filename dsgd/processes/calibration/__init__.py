"""Measures a cluster for the simulator."""
