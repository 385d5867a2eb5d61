"""What both engines share: driving coroutines, the rules of a step, server shards, marks, traces."""
