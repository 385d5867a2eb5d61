"""Generated photographs in the folders that ImageNet has: for those who have none, and for measuring.

    python scripts/make_images.py FOLDER [--classes 10] [--samples-per-class 100] [--test-per-class 20]
                                         [--side 500]

The same numbers give the same bytes, and `data=imagenet-like data.path=FOLDER` with the same numbers takes the folder
as it is. It appears when it is complete; nothing is written over.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.progress import Progress

from dsgd.data.imagenet import IMAGES_SEED, Generated, ImageNetLike


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0, or 2 for what cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name in ("classes", "samples_per_class", "test_per_class", "side"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(ImageNetLike, name))
    options = parser.parse_args(argv)
    try:
        config = ImageNetLike(options.classes, options.samples_per_class, options.test_per_class, options.side)
        images = Generated(config.classes, config.samples_per_class, config.test_per_class, IMAGES_SEED, config.side)
        folder = options.folder.expanduser().absolute()
        if images.check(folder):
            print(f"{folder} is there already")
            return 0
        count = config.classes * (config.samples_per_class + config.test_per_class)
        with Progress() as progress:
            task = progress.add_task("generating", total=count)
            images.make(folder, made=lambda: progress.advance(task))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{count} images in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
