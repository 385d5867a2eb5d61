"""Text: windows of bytes, the grammar's sentences, and what is measured of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dsgd.data import Text
from dsgd.data.in_memory import TextWindows
from dsgd.data.text import generated_text
from dsgd.problem.problem import build_problem
from tests.support.simulate import experiment

torch.set_num_threads(1)

SMALL = ("model=gpt", "model.width=16", "model.depth=1", "model.heads=2", "data=text", "data.context=16", "nodes=2")


def loaded(config: Text) -> TextWindows:
    return config.load(2, 4, 0, torch.float32)


def test_windows_predict_every_byte_of_a_file_once(tmp_path: Path):
    """Of 1,003 bytes the last 100 are for test; the other 903 have 902 successors, in 90 windows of 10, 2 left over."""
    text = np.random.default_rng(0).integers(0, 256, 1003, dtype=np.uint8).tobytes()
    (tmp_path / "text").write_bytes(text)
    data = loaded(Text(path=str(tmp_path / "text"), context=10))
    for (inputs, targets), part in ((data.train_set, text[:903]), (data.test_set, text[903:])):
        count = (len(part) - 1) // 10
        assert inputs.shape == targets.shape == (count, 10)
        assert bytes(inputs.flatten().tolist()) == part[: 10 * count]
        assert bytes(targets.flatten().tolist()) == part[1 : 10 * count + 1]
    assert data.samples == 90
    for rank, step in [(0, 0), (1, 7)]:
        rows = torch.from_numpy(data.partition.indices(rank, step))
        for found, whole in zip(data.batch(rank, step), data.train_set, strict=True):
            assert torch.equal(found, whole[rows])


def test_windows_that_are_held_out_are_not_trained_on():
    """A tenth of them, at random; evaluated in place of the test set on request."""
    whole, kept = (loaded(Text(context=8, generated_bytes=2000, validation=share)) for share in (0.0, 0.1))
    held_out = loaded(Text(context=8, generated_bytes=2000, validation=0.1, evaluate="validation"))
    assert (len(whole.train), len(kept.train), len(held_out.test)) == (224, 202, 22)
    rows = sorted(map(bytes, [*kept.train, *held_out.test]))
    assert rows == sorted(map(bytes, whole.train))
    assert np.array_equal(kept.test, whole.test)


def test_the_grammars_text_depends_on_its_seed_alone():
    """Longer text begins with the shorter; the run's seed only orders the windows."""
    short, long = (generated_text(size, np.random.default_rng(5)) for size in (1000, 3000))
    assert (len(short), len(long)) == (1000, 3000)
    assert long.startswith(short)
    assert generated_text(1000, np.random.default_rng(6)) != short
    one, other = (Text(generated_bytes=3000).load(2, 4, seed, torch.float32) for seed in (0, 1))
    assert np.array_equal(one.train, other.train)
    assert not torch.equal(one.batch(0, 0)[0], other.batch(0, 0)[0])


def test_the_loss_is_the_mean_over_all_bytes():
    """By NumPy; one batch, and several in one call."""
    data = loaded(Text(context=5, generated_bytes=500))
    inputs, targets = data.batches([0, 1, 1], [0, 0, 3])
    outputs = torch.randn(3, 4, 256, 5, dtype=torch.float64)
    logits = outputs.numpy()
    log_sums = np.log(np.exp(logits).sum(axis=2))
    for row in range(3):
        each = [log_sums[row, i, t] - logits[row, i, targets[row, i, t], t] for i in range(4) for t in range(5)]
        assert float(data.loss(outputs[row], targets[row])) == pytest.approx(np.mean(each), rel=1e-12)
    assert inputs.shape == (3, 4, 5)


def test_accuracies_are_shares_of_all_bytes():
    """The next byte, and whether it is among the five most likely, of all windows."""
    of = build_problem(experiment(*SMALL, "precision=fp64", "data.generated_bytes=4000"))
    x = of.start + torch.randn(of.dimension, dtype=torch.float64)
    measured = of.evaluate(x, of.start_buffers, test=True)
    inputs, targets = of.data.test_set
    of.state.bind(x, of.start_buffers)
    with torch.no_grad():
        outputs = of.module(inputs).transpose(1, 2)
    assert targets.numel() == 24 * 16
    assert measured.accuracy == int((outputs.argmax(dim=2) == targets).sum()) / targets.numel()
    five = outputs.topk(5, dim=2).indices  # no two are equal
    assert measured.top5 == int((five == targets.unsqueeze(2)).sum()) / targets.numel()
    loss = float(of.data.loss(outputs.transpose(1, 2), targets))
    assert measured.loss == pytest.approx(loss, rel=1e-12)


def test_files_without_a_window_are_refused_before_work(tmp_path: Path):
    """Empty, too short for the context, or of both parts' 2 bytes only one."""
    path = tmp_path / "text"
    for size, context, message in [
        (0, 4, r"^data\.path must give 2 bytes each for training and test with data\.test_share=0\.5, got 0 bytes$"),
        (3, 1, r"^data\.path must give 2 bytes each .*, got 3 bytes$"),
        (9, 4, r"^data\.context must be <= 3 \(training and test have 5 and 4 bytes\), got 4$"),
    ]:
        path.write_bytes(b"x" * size)
        with pytest.raises(ValueError, match=message):
            Text(path=str(path), context=context, test_share=0.5).check(1, 1)
    path.write_bytes(b"x" * 10)
    Text(path=str(path), context=4, test_share=0.5).check(1, 1)
