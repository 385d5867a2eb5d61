"""Compare the simulator with tables of times that others measured. The tables are in tables.yaml."""
