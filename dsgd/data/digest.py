"""Say in a few letters which data these are, so that processes, and a run and its resumption, can tell theirs apart.

A digest has parts, each with a hash for one or several numbers of samples: data that are read one by one are read for a
limited time only, so two digests are compared where both have come. Samples are taken in one order everywhere.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from dsgd.data import Data
from dsgd.data.in_memory import Classification
from dsgd.data.items import Items
from dsgd.data.protocols import NamedSamples, SingleSamples
from dsgd.streams import seeded_streams, stream

Digest = dict[str, dict[str, str]]  # by part, by number of samples
LIMIT_S = 0.5  # for reading the samples of one set
LEAST = 8  # samples, however long they take
AT_ONCE = 256  # inputs of a set in memory; of its labels all


def data_digest(data: Data | Items) -> Digest:
    """Return what tells these data from others: sizes, types, all labels that are in memory, samples of the inputs.

    Raises DataLost for a sample that cannot be read."""
    shape = " x ".join(map(str, data.input_shape))
    digest = {
        "training samples": {"1": str(data.samples)},
        "input shapes": {"1": str(shape)},
        "numbers of classes": {"1": str(data.classes)},
    }
    if isinstance(data, SingleSamples):
        source = data.source if isinstance(data, Items) else None
        with source.watched() if source is not None else nullcontext():
            for test, kind in ((False, "training"), (True, "test")):
                digest |= {f"{kind} {part}": hashes for part, hashes in _of_samples(data, test).items()}
        return digest
    for test, kind in ((False, "training"), (True, "test")):
        digest |= {f"{kind} {part}": hashes for part, hashes in _in_memory(data, test).items()}
    return digest


def difference(digest: Mapping[str, Mapping[str, str]], other: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the first part in which two digests differ where both have come; None if there is none."""
    for part, hashes in digest.items():
        others = other.get(part, {})
        if any(hashes[count] != others[count] for count in hashes if count in others):
            return part
    return None


def hashed(parts: Iterable[Tensor | np.ndarray | str]) -> str:
    """Return a hash of arrays, with their types and shapes, and texts."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        _add(digest, part)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, part: Tensor | np.ndarray | str) -> None:
    if isinstance(part, Tensor):
        part = part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() if part.numel() else ""
    if isinstance(part, np.ndarray):
        digest.update(f"{part.dtype.str} {part.shape} ".encode())
        digest.update(np.ascontiguousarray(part).data)
    else:
        digest.update(f"{part}\0".encode())


def _in_memory(data: Data, test: bool) -> Digest:
    """Return the parts of a set whose labels are all in memory."""
    inputs: Iterable[Tensor | str]
    labels: Tensor | np.ndarray
    if isinstance(data, NamedSamples):
        labels = data.labels(test)
        inputs = (data.name(test, int(sample)) for sample in _order(len(labels))[:AT_ONCE])
    elif isinstance(data, Classification):  # 8-bit, as they are stored
        images, labels = data.test if test else data.train
        inputs = [torch.as_tensor(images[_order(len(images))[:AT_ONCE]])]
    else:
        values, labels = data.test_set if test else data.train_set
        inputs = [values[torch.from_numpy(_order(len(values))[:AT_ONCE])]]
    return {"samples": {"1": str(len(labels))}, "labels": {"all": hashed([labels])}, "inputs": {"some": hashed(inputs)}}


def _of_samples(data: SingleSamples, test: bool) -> Digest:
    """Return the parts of a set of the user's, in memory or read one by one: of the first samples in an order, of twice
    as many, and so on. Inputs that differ from one reading to the next, whatever is seeded, have none."""
    samples = data.count(test)
    order = _order(samples).tolist()
    with seeded_streams():
        again = [hashed(data.sample(test, index)) for index in order[:LEAST]]
    with seeded_streams():
        is_drawn = again != [hashed(data.sample(test, index)) for index in order[:LEAST]]
    inputs, labels = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    parts: Digest = {"samples": {"1": str(samples)}, "labels": {}, "inputs": {}}
    deadline, due = time.monotonic() + LIMIT_S, LEAST
    with seeded_streams():
        for count, index in enumerate(order, start=1):
            value, label = data.sample(test, index)
            _add(inputs, value)
            _add(labels, label)
            if count in (due, len(order)):
                parts["labels"][str(count)] = labels.hexdigest()
                if not is_drawn:
                    parts["inputs"][str(count)] = inputs.hexdigest()
                due *= 2
            if count >= LEAST and time.monotonic() > deadline:
                break
    return parts


def _order(samples: int) -> np.ndarray:
    return stream("digest").permutation(samples)
