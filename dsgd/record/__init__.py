"""Write and read the record of a run: one folder, enough to redraw every figure."""
