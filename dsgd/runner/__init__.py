"""One run, from its configuration to its summary, by any engine: no Hydra, no command line."""
