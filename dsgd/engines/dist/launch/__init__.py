"""Starts the processes of a run: by fork on one machine, by rendezvous across machines."""
