"""The processes of workers and parameter servers: gradients, collectives, the algorithm's coroutines."""
