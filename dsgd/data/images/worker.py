"""What a decoding process does: take a request, write pixels into the shared memory, say that it is done.

It keeps no state, so whichever process takes a request, the pixels are the same. It ends when the process that started
it does, however that ended.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from dsgd.data.images.augment import DRAWS, evaluation_pixels, train_pixels
from dsgd.data.images.decode import Broken, opened, read
from dsgd.data.images.pool import CHUNK_BYTES, CHUNK_SHAPE, MESSAGE_BYTES
from dsgd.host.resources import keep_freed_memory
from dsgd.streams import stream

LOOK_S = 1.0  # how often to look whether the parent still lives


def serve(channel: int, memory: int, parent: int, decoder: str) -> None:
    """Answer requests until the parent is gone.

    channel: a SOCK_SEQPACKET socket that all processes of the parent share, so that each request goes to one that has
    nothing to do. memory: the chunks of pixels, [slots, CHUNK, 3, 224, 224]. Both are file descriptors."""
    warnings.filterwarnings("ignore", module="PIL")  # about metadata that nobody reads
    torch.set_num_threads(1)
    keep_freed_memory()  # for pixels, which come and go
    slots = os.fstat(memory).st_size // CHUNK_BYTES
    chunks = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(slots, *CHUNK_SHAPE)
    with socket.socket(fileno=channel) as link, torch.inference_mode():
        link.settimeout(LOOK_S)
        while os.getppid() == parent:
            try:
                message = link.recv(MESSAGE_BYTES)
            except TimeoutError:
                continue
            except ConnectionResetError:  # as the next line, with answers that nobody has taken
                return
            if not message:
                return
            answer = _answer(json.loads(message), chunks, decoder)
            while os.getppid() == parent:
                try:
                    link.send(answer)
                    break
                except TimeoutError:
                    continue
                except OSError:  # nobody is there any more
                    return


@lru_cache(4)
def _draws(seed: int, rank: int, step: int, rows: int) -> np.ndarray:
    """[rows, DRAWS]: of a batch, whose images come in several requests."""
    return stream("augmentation", seed, rank, step).random((rows, DRAWS))


def _answer(request: dict[str, Any], chunks: np.ndarray, decoder: str) -> bytes:
    """request: the slot to write to; images, each [position in the slot, row of the batch, file, offset, length]; and
    draws, which is [seed, rank, step, batch size] for training and null for evaluation."""
    draws = None if request["draws"] is None else _draws(*request["draws"])
    broken: list[tuple[int, str]] = []
    for position, row, path, offset, length in request["images"]:
        out = chunks[request["slot"], position]
        try:
            picture = opened(read(path, offset, length), decoder)
            if draws is None:
                evaluation_pixels(picture, out)
            else:
                train_pixels(picture, draws[row].tolist(), out)
        except Broken as error:
            broken.append((position, str(error)))
    return json.dumps({"slot": request["slot"], "broken": broken}).encode()
