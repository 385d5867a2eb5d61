"""Fashion-MNIST as Debian's package has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dsgd.data import Idx
from dsgd.data.idx import COLLECTIONS
from tests.support.required import need

SYSTEM = Path(COLLECTIONS["fashion_mnist"].system or "")


def need_fashion_mnist() -> None:
    """Skip the test where the package is not installed; with `fashion_mnist` in DSGD_REQUIRE it fails."""
    need("fashion_mnist", None if SYSTEM.is_dir() else f"no folder {SYSTEM}: apt-get install dataset-fashion-mnist")


def test_the_files_of_the_system_package_are_found_by_themselves(here: Path) -> None:
    """60,000 and 10,000 images of ten classes with equally many each, and the published mean of the pixels."""
    need_fashion_mnist()
    data = Idx().load(4, 32, 0, torch.float32)
    assert (data.train[0].shape, data.test[0].shape) == ((60000, 1, 28, 28), (10000, 1, 28, 28))
    assert np.bincount(data.train[1]).tolist() == [6000] * 10
    assert np.bincount(data.test[1]).tolist() == [1000] * 10
    assert data.train[0].mean() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert data.train[0].std() / 255 == pytest.approx(0.3530, abs=5e-5)
