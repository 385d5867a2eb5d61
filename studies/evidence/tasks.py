"""The tasks on which claims about learning are judged. Every pipeline trains on one of them."""

from __future__ import annotations

from collections.abc import Mapping

TASKS: Mapping[str, tuple[str, ...]] = {
    "shapes": ("experiment=real_shapes",),
    "fashion": ("experiment=real_fashion", "model=mlp", "~model.width", "model.hidden=[128]"),
    "resnet8": ("experiment=real_fashion",),  # a spot check
    "text": ("experiment=real_text", "data.path=kjv.txt", "data.test_share=0.07266"),  # 10,000 windows for test
}
IMAGES = ("shapes", "fashion")  # of every claim about learning; the text is of those about language models alone
TARGETS: Mapping[str, float] = {"shapes": 0.3, "fashion": 0.4, "resnet8": 0.32}  # test losses
# of each worker, where the end is compared: with 8 workers 2 epochs of shapes, 6 of fashion, 0.7 of text
STEPS: Mapping[str, int] = {"shapes": 5120, "fashion": 2560, "text": 2560}
FIRST: Mapping[str, int] = {"shapes": 2560, "fashion": 640}  # steps that slow contenders try first in a race
BATCHES: Mapping[str, int] = {"shapes": 8, "fashion": 16, "resnet8": 16, "text": 4}  # of a worker
TRAIN_SIZES: Mapping[str, int] = {"shapes": 144_000, "fashion": 54_000}  # without the tenth that is held out for tuning
# more test images, where half a point of accuracy counts: there are no more of Fashion-MNIST
MOST_TESTED: Mapping[str, str] = {"shapes": "data.test_size=100000", "fashion": ""}


def contender(*options: str) -> str:
    """Return a contender of an algorithm and its options, without those that are empty."""
    return " ".join(option for option in options if option)
