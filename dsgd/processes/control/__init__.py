"""Messages between the coordinator and all other processes of a run."""
