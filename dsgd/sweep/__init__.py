"""Many runs as jobs of SLURM: which there are, what each needs, where they stand. cli/sweep.py composes them."""
