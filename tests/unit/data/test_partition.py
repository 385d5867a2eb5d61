from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.data.partition import Partition, _permutation, check_share
from tests.support.each_row import each_row


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    nodes = draw(st.integers(1, 12))
    share = draw(st.integers(1, 40))
    samples = nodes * share + draw(st.integers(0, nodes - 1))
    return Partition(samples, nodes, draw(st.integers(1, share)), draw(st.integers(0, 2**40)))


def epoch_of(partition: Partition, epoch: int) -> np.ndarray:
    """All batches of all workers in one epoch: [nodes, steps, batch_size]."""
    steps = range(epoch * partition.steps_per_epoch, (epoch + 1) * partition.steps_per_epoch)
    return np.array([[partition.indices(rank, step) for step in steps] for rank in range(partition.nodes)])


@given(partitions(), st.integers(0, 5))
def test_no_sample_is_seen_twice_in_an_epoch_and_only_remainders_are_left_out(partition: Partition, epoch: int):
    """Over all workers and steps: distinct, in range, and fewer left out than fill one more batch for every worker."""
    seen = epoch_of(partition, epoch)
    assert seen.shape == (partition.nodes, partition.steps_per_epoch, partition.batch_size)
    assert seen.dtype == np.int64
    assert seen.min() >= 0
    assert seen.max() < partition.samples
    assert len(np.unique(seen)) == seen.size
    assert partition.samples - seen.size < partition.nodes * (partition.batch_size + 1)


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 6), st.integers(0, 99), st.integers(0, 5))
def test_an_epoch_covers_all_samples_when_they_divide_evenly(nodes: int, batch: int, steps: int, seed: int, epoch: int):
    """samples = nodes * batch * steps: the union over the workers is everything."""
    partition = Partition(nodes * batch * steps, nodes, batch, seed)
    assert partition.steps_per_epoch == steps
    assert np.array_equal(np.sort(epoch_of(partition, epoch), axis=None), np.arange(partition.samples))


@given(partitions(), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 400)), min_size=1, max_size=30))
def test_indices_are_a_pure_function_of_rank_and_step(partition: Partition, asked: list[tuple[int, int]]):
    """Asked in any order, after the cache was emptied, and after a caller wrote into what it got: the same."""
    asked = [(rank % partition.nodes, step) for rank, step in asked]
    first = {key: partition.indices(*key).copy() for key in asked}
    for key in asked:
        partition.indices(*key).fill(-1)
    for key in reversed(asked):
        assert np.array_equal(partition.indices(*key), first[key])
    _permutation.cache_clear()
    for key in asked:
        assert np.array_equal(partition.indices(*key), first[key])


def test_epochs_seeds_and_workers_differ():
    """Another order in every epoch and for every seed; other samples for every worker."""
    one, two = Partition(1000, 4, 50, seed=1), Partition(1000, 4, 50, seed=2)
    batches = [one.indices(0, 0), one.indices(1, 0), one.indices(0, 1), one.indices(0, 5), two.indices(0, 0)]
    assert len({tuple(batch) for batch in batches}) == len(batches)


@each_row(("rank", "step"), [(-1, 0), (4, 0), (0, -1)])
def test_ranks_and_steps_that_do_not_exist_are_refused(rank: int, step: int):
    """A negative index would silently be another worker's share."""
    with pytest.raises(ValueError, match=r"^(rank must be in \[0, 4\)|step must be >= 0), got "):
        Partition(100, 4, 5, seed=0).indices(rank, step)


def test_the_largest_batch_that_fits_into_a_workers_share_is_accepted():
    check_share(1437, 32, 44)
