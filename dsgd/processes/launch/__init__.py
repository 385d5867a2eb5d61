"""How processes come to be: forked on one machine, found by rendezvous across machines."""
