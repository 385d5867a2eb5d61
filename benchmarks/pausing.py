"""The digits, as an accelerator would train on them: every gradient takes a while, and hardly any of the processor."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from dsgd.data import Data, Digits


@dataclass(frozen=True)
class PausingDigits(Digits):
    pause_s: float = 0.05  # in every gradient

    def load(self, *arguments: Any, **named: Any) -> Any:
        return Pausing(super().load(*arguments, **named), self.pause_s)


class Pausing:
    """Loaded data whose batches come late."""

    def __init__(self, data: Data, pause_s: float) -> None:
        self._data = data
        self._pause_s = pause_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def batch(self, rank: int, step: int) -> Any:
        time.sleep(self._pause_s)
        return self._data.batch(rank, step)
