"""The process that sees the whole run: members, marks, checkpoints, evaluation, how it ends."""
