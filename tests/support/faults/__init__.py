"""The processes of a run, and what can be done to them."""
