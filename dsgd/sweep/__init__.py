"""Submit many runs as jobs of SLURM and follow them: the command line is cli/sweep.py."""
