"""The data sets of a user's function, in every process that reads them.

A process that is forked after they were loaded shares them. If they hold open files, connections or threads, sharing
would silently give wrong samples: two processes would move one position in a file. So every process opens the files
again. If the sets hold connections or threads, it loads the sets again.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from dsgd.data import DataLost
from dsgd.host.fork import Holdings, open_in_forks, surplus
from dsgd.models import call_by_path, first_line

T = TypeVar("T")
SHOWN = 3  # of the things held, in a line


class Samples(Protocol):
    """A map-style data set, as torch.utils.data.Dataset has it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, int]:
        """Return the input, a tensor or array of the same shape for every index, and the label, from 0."""
        ...


Sets = tuple[Samples, Samples]
Sizes = tuple[int, int]  # which the sets have had since they were loaded: user code may answer otherwise later


class OwnSets:
    """Training and test set of `data.target`, called with arguments.

    sizes: sizes of both."""

    def __init__(self, target: str, arguments: Mapping[str, Any], read: Callable[[Sets, Sizes], None]) -> None:
        """read: reads the first and last samples of both, and raises DataLost for an invalid one. Raises ValueError
        unless the function gives two data sets."""
        self.name = f"data.target={target}"
        self._target, self._arguments, self._read = target, arguments, read
        self._lock = threading.Lock()
        self._pid = os.getpid()
        before = Holdings.now()
        self._sets, self.sizes = self._called()
        self._held_by_call = Holdings.now().since(before).others
        self._files, self._others = list[str](), list[str]()
        self._made: dict[object, Any] = {}
        try:
            read(self._sets, self.sizes)
        except DataLost as error:
            raise ValueError(str(error)) from error
        self._hold(before)

    @property
    def sets(self) -> Sets:
        """Return the two sets of this process. Raises DataLost if they must be loaded again and cannot be."""
        if self._others and self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._load_again()
        return self._sets

    def made(self, key: object) -> Any:
        """Return the stored result of `once` for a key, or None."""
        return self._made.get(key)

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Return the result of `make`, called once for each key: results that all runs on these sets share."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    @property
    def why(self) -> str | None:
        """Return a line on how a forked process treats files and connections of the sets; None if they hold none."""
        if self._others:
            return f"{self.name} is loaded in every process by itself, as it holds {_listed(self._others)}"
        if self._files:
            return f"{self.name} holds open files, which every process opens for itself: {_listed(self._files)}"
        return None

    def _hold(self, before: Holdings) -> None:
        """Note the files and connections opened since `before`."""
        held = Holdings.now().since(before)
        open_in_forks(held.files)
        self._files = list(dict.fromkeys([*self._files, *held.files.values()]))
        self._others += held.others

    def _load_again(self) -> None:
        """Load the sets in a process that was forked of the one that has loaded them."""
        before = Holdings.now()
        try:
            sets, sizes = self._called()
        except ValueError as error:
            raise DataLost(str(error)) from error
        self._check(self._held_by_call, before)
        if sizes != self.sizes:
            rule = f"{self.name} must give the same sets in every process, {self.sizes[0]} and {self.sizes[1]} samples"
            raise DataLost(f"{rule}, got {sizes[0]} and {sizes[1]}")
        self._read(sets, sizes)
        self._check(self._others, before)
        self._inherited = self._sets  # kept: closing a connection here would end the other process's connection
        self._sets, self._pid = sets, os.getpid()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the files and connections that reading samples inside of the block leaves open."""
        before = Holdings.now()
        yield
        self._hold(before)

    def _check(self, held: Sequence[str], before: Holdings) -> None:
        """Raise DataLost unless this process has opened its own counterparts of its parent's connections."""
        if missing := surplus(held, Holdings.now().since(before).others):
            rule = f"{self.name} must open what it reads from whenever it is called, as processes cannot share it"
            raise DataLost(f"{rule}, got {_listed(missing)}, opened once")

    def _called(self) -> tuple[Sets, Sizes]:
        from torch.utils.data import IterableDataset

        given = call_by_path(self._target, self._arguments, "data.target")
        pair = isinstance(given, Sequence) and len(given) == 2
        if not pair:
            what = f"{len(given)} things" if isinstance(given, Sequence) else type(given).__name__
            raise ValueError(f"{self.name} must give two data sets, for training and for test, got {what}")
        for dataset in given:
            indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
            if not indexed or isinstance(dataset, IterableDataset):
                rule = f"{self.name} must give two data sets with len(...) and [index], got {type(dataset).__name__}"
                iterable = hasattr(dataset, "__iter__")
                raise ValueError(f"{rule}, which is only iterable: a list of its samples will do" if iterable else rule)
        train, test = given
        try:
            sizes = len(train), len(test)
        except Exception as error:  # a user's code may raise anything
            raise ValueError(f"{self.name} must give two data sets with a length: {first_line(error)}") from error
        if not all(sizes):
            raise ValueError(f"{self.name} must give samples, got sets of {sizes[0]} and {sizes[1]}")
        return (train, test), sizes


def check_length(name: str, samples: Samples, size: int, kind: str) -> None:
    """Raise DataLost unless a set has the length that it had when it was loaded."""
    try:
        now: Any = len(samples)
    except Exception as error:  # a user's code may raise anything
        now = first_line(error)
    if now != size:
        raise DataLost(f"{name} must keep its length, {size} samples{kind}, got {now}")


class OwnSamples:
    """One of two sets, as this process has it. index: 0, for training, or 1."""

    def __init__(self, source: OwnSets, index: int) -> None:
        self._source = source
        self._place = index

    def __len__(self) -> int:
        return self._source.sizes[self._place]

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._source.sets[self._place][index]


_shared: dict[str, OwnSets] | None = None  # that the configurations of this process have in common


@contextmanager
def sharing(known: dict[str, OwnSets]) -> Iterator[None]:
    """Load the sets of a target once for all configurations made inside of the block. known: loaded sets, extended
    here."""
    global _shared
    before, _shared = _shared, known
    try:
        yield
    finally:
        _shared = before


def own_sets(target: str, arguments: Mapping[str, Any], classes: int, read: Callable[[Sets, Sizes], None]) -> OwnSets:
    """Return the sets of a target, loaded now unless they are shared. classes: number of classes that `read` checks.
    Otherwise as `OwnSets`."""
    if _shared is None:
        return OwnSets(target, arguments, read)
    key = json.dumps([target, arguments, classes], sort_keys=True, default=repr)
    if key not in _shared:
        _shared[key] = OwnSets(target, arguments, read)
    return _shared[key]


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
