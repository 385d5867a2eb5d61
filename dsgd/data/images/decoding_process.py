"""The program of a decoding process: take a request, write the pixels into shared memory, answer.

It keeps no state, so whichever process takes a request, the pixels are the same. It ends with the process that started
it, however that ends.
"""

from __future__ import annotations

import mmap
import os
import socket
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from dsgd.data.images.augment import DRAWS, evaluation_pixels, train_pixels
from dsgd.data.images.decode import BrokenImage, open_image, read
from dsgd.data.images.pool import CHUNK_BYTES, CHUNK_SHAPE
from dsgd.data.slot_pool import answer_requests
from dsgd.host.resources import keep_freed_memory
from dsgd.streams import stream


def serve(channel: int, memory: int, parent: int, decoder: str, max_pixels: int) -> None:
    """Answer requests until the parent is gone.

    channel: a SOCK_SEQPACKET socket that all decoding processes of the parent share, so that an idle one takes each
    request. memory: the chunks of pixels, [slots, CHUNK, 3, 224, 224]. Both are file descriptors."""
    warnings.filterwarnings("ignore", module="PIL")  # about metadata that nobody reads
    torch.set_num_threads(1)
    keep_freed_memory()
    slots = os.fstat(memory).st_size // CHUNK_BYTES
    chunks = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(slots, *CHUNK_SHAPE)
    with torch.inference_mode():
        link = socket.socket(fileno=channel)
        answer_requests(link, parent, lambda request: _answer(request, chunks, decoder, max_pixels))


@lru_cache(4)
def _draws(seed: int, rank: int, step: int, rows: int) -> np.ndarray:
    """Return the random numbers of a batch, [rows, DRAWS]. Cached: a batch comes in several requests."""
    return stream("augmentation", seed, rank, step).random((rows, DRAWS))


def _answer(request: dict[str, Any], chunks: np.ndarray, decoder: str, max_pixels: int) -> dict[str, Any]:
    """Decode into a slot; return `broken`, [position, reason] of each broken image.

    request: slot; images, each [position in the slot, row of the batch, file, offset, length]; draws: [seed, rank,
    step, batch size] for training, null for evaluation."""
    draws = None if request["draws"] is None else _draws(*request["draws"])
    broken: list[tuple[int, str]] = []
    for position, row, path, offset, length in request["images"]:
        out = chunks[request["slot"], position]
        try:
            picture = open_image(read(path, offset, length), decoder, max_pixels)
            if draws is None:
                evaluation_pixels(picture, out)
            else:
                train_pixels(picture, draws[row].tolist(), out)
        except BrokenImage as error:
            broken.append((position, str(error)))
    return {"broken": broken}
