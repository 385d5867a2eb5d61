"""Runs in real processes to which faults happen: drawn from a number, carried out, and judged by rules."""
