"""Write IDX files as torchvision leaves them, with random images."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from dsgd.data.idx import COLLECTIONS, SUBSETS


def idx_bytes(array: np.ndarray) -> bytes:
    """Return the content of an IDX file with an array of bytes."""
    return struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.tobytes()


def write_idx(
    root: Path, collection: str, subset: str | None = None, packed: bool = False, each: int = 40
) -> dict[str, np.ndarray]:
    """Write the four files of a collection below a root; return their arrays by name."""
    rng = np.random.default_rng(0)
    folder = root / COLLECTIONS[collection].folder / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    classes, first = (SUBSETS[subset], int(subset == "letters")) if subset else (10, 0)
    prefix = f"emnist-{subset}-" if subset else ""
    arrays: dict[str, np.ndarray] = {}
    for part in ("train", "test" if subset else "t10k"):
        labels = first + rng.integers(0, classes, each)
        arrays[f"{prefix}{part}-images-idx3-ubyte"] = rng.integers(0, 256, (each, 28, 28), dtype=np.uint8)
        arrays[f"{prefix}{part}-labels-idx1-ubyte"] = labels.astype(np.uint8)
    for name, array in arrays.items():
        content = idx_bytes(array)
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return arrays
