"""One run, from its configuration to its summary, whichever engine computes it: no Hydra, no command line."""
