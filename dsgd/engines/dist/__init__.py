"""The engine of real processes: the same algorithm texts, over TCP."""
