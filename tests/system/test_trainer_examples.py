"""The examples around Trainer of Hugging Face and around PyTorch Lightning, where these packages are installed
(`pip install '.[examples]'`): `sync` has the losses of DistributedDataParallel, and `diloco` learns. With `trainers` in
DSGD_REQUIRE, a missing package is a failure."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.support.required import need
from tests.system.test_examples import loops, printed

PACKAGES = {"hf_trainer": "transformers", "lightning_strategy": "lightning"}


@pytest.mark.parametrize("name", PACKAGES)
def test_sync_within_a_trainer_has_the_losses_of_data_parallel(name: str) -> None:
    need("trainers", None if find_spec(PACKAGES[name]) else f"needs {PACKAGES[name]}")
    lines = loops(name)
    assert list(lines) == ["ddp", "sync", "diloco"]
    losses, other = (printed(lines[algo], name) for algo in ("sync", "diloco"))
    assert losses == pytest.approx(printed(lines["ddp"], name), abs=1e-6)
    for path in (losses, other):
        assert path[-2] < 0.3 * path[0]  # the last number is of the test
