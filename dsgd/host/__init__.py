"""The launcher of this process, the resources of its machine, and the signals that end a run."""
