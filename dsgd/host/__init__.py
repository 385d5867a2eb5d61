"""What this process is given: its launcher, its cores, GPUs and memory."""
