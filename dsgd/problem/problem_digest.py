"""Say in a few letters which model on which data a problem is, see `dsgd.data.digest`."""

from __future__ import annotations

from collections.abc import Mapping

from dsgd.data.digest import Digest, data_digest, difference, hashed
from dsgd.problem.problem import Problem

PARAMETERS, BUFFERS = "parameters", "buffers"


def problem_digest(problem: Problem) -> Digest:
    """Return what tells a problem from others: that of its data; names, shapes and types of parameters and buffers.

    Raises DataLost for a sample that cannot be read."""
    module = problem.module
    kinds = {PARAMETERS: module.named_parameters(), BUFFERS: module.named_buffers()}
    layouts = {
        kind: {"all": hashed(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors)}
        for kind, tensors in kinds.items()
    }
    return data_digest(problem.data) | layouts


def start_digest(problem: Problem) -> str:
    """Return a hash of the vectors that training starts from."""
    return hashed([problem.start, problem.start_buffers])


def complaint(
    digest: Mapping[str, Mapping[str, str]], other: Mapping[str, Mapping[str, str]], than: str = ""
) -> str | None:
    """Return in what a problem differs from another, `other data than rank 0: training labels differ`; None if in
    nothing that is known of both. than: whose the other one is."""
    part = difference(digest, other)
    if part is None:
        return None
    what = "another model" if part in (PARAMETERS, BUFFERS) else "other data"
    return f"{what}{than and f' than {than}'}: {part} differ"
