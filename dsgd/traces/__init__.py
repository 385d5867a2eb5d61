"""Read the traces that a profiled job leaves behind, and describe its cluster by them."""
