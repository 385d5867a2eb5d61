"""The coordinator: membership, marks, checkpoints, evaluation, and how a run ends."""
