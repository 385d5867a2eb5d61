"""Comparisons of algorithms, each with tuned rates: the next runs, and the results."""
