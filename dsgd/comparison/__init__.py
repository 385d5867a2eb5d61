"""Comparisons of algorithms, each with the rates that suit it: what to run next, and what was found."""
