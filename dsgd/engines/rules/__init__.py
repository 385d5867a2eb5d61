"""Parts of both engines: driving coroutines, the rules of a step, server shards, marks, traces."""
