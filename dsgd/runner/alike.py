"""Check that a resumed run has the data and the model that it began with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgd.data import DataLost
from dsgd.data.digest import Digest
from dsgd.problem.problem import Problem
from dsgd.problem.problem_digest import complaint, problem_digest
from dsgd.runner.resume import Checkpoint
from dsgd.runner.values import ConfigError

DIGEST = "digest"  # in checkpoints


def checked_digest(problem: Problem, checkpoint: Checkpoint | None) -> Digest:
    """Return the digest of a problem. Raises ConfigError if that of its checkpoint is another one."""
    try:
        digest = problem_digest(problem)
    except DataLost as error:
        raise ConfigError(str(error)) from error
    stored: Any = None if checkpoint is None else checkpoint.header.get(DIGEST)
    if isinstance(stored, Mapping):  # earlier versions stored none
        known = {part: hashes for part, hashes in stored.items() if isinstance(hashes, dict)}
        if differs := complaint(digest, known):
            raise ConfigError(f"resume must find the data and the model that the run began with, got {differs}")
    return digest
