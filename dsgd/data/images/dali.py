"""Decoding by NVIDIA DALI, on the CPU, instead of processes of our own. Which samples, which crops, and what a broken
file means, stay ours: DALI is told which part of which bytes to decode, to what size to bring it, and how to turn it.

Only JPEG files without peculiarities go that way. CMYK, files turned by their EXIF tag, other formats, and files that
have lost their end are decoded as `data.loader=processes` does; so is everything that DALI would not decode, and it is
this second look that says what is broken.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from dsgd.data import DataLost
from dsgd.data.images import SIDE
from dsgd.data.images.augment import DRAWS, Part, evaluation_part, training_part, write_part
from dsgd.data.images.decode import END, Broken, JpegPicture, opened, read
from dsgd.data.images.pool import PATIENCE_S, Job, Substitute
from dsgd.streams import stream

PIECE = 32  # images in one run of the pipeline
DECODER = "simplejpeg"  # for headers, and for what DALI does not get
# (position in the piece, reason) of each broken image
Found = tuple[np.ndarray, list[tuple[int, str]]]


def installed() -> Any:
    """The package nvidia.dali. Raises ValueError, one line, if there is none or it cannot be loaded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("nvidia.dali")
    except ModuleNotFoundError as error:
        if error.name in ("nvidia", "nvidia.dali"):
            hint = "pip install nvidia-dali-cuda120"
            raise ValueError(f"data.loader must be processes without NVIDIA DALI ({hint}), got dali") from error
        raise ValueError(f"data.loader must be processes where NVIDIA DALI lacks {error.name}, got dali") from error
    except Exception as error:  # a library of its own is missing, or does not fit this machine
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise ValueError(
            f"data.loader must be processes where NVIDIA DALI does not load, got dali: {reason}"
        ) from error


class DaliPool:
    """In the place of `dsgd.data.images.pool.Pool`, with the same methods: a thread that feeds one pipeline of
    `threads` threads. Not to be used after a fork."""

    def __init__(self, threads: int, substitute: Substitute) -> None:
        self.owner = os.getpid()
        self.outstanding = 0  # images that have been submitted, and neither given out nor given up
        self.ahead = 2 * PIECE  # images to have outstanding, so that the pipeline does not wait
        self._threads = threads
        self._substitute = substitute
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dali")
        self._pipeline: Any = None  # of the thread
        self._coming: dict[Job, deque[tuple[slice, Future[Found]]]] = {}

    def close(self) -> None:
        """End the thread, with what it has in hand; nothing after a fork, where there is none."""
        if self.owner == os.getpid():
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._pipeline = None
        self._coming.clear()

    def submit(self, job: Job, in_advance: bool) -> bool:
        """Begin with a job. There is always room."""
        count = len(job.samples)
        pieces = [slice(start, min(start + PIECE, count)) for start in range(0, count, PIECE)]
        self._coming[job] = deque((rows, self._begin(job, range(rows.start, rows.stop))) for rows in pieces)
        self.outstanding += count
        return True

    def take(self, job: Job) -> Iterator[tuple[slice, np.ndarray]]:
        """(rows of the batch, their pixels [k, 3, 224, 224] uint8) until the job is complete. Raises DataLost for what
        `substitute` raised, or if nothing came for long."""
        pieces = self._coming[job]
        while pieces:
            rows, future = pieces[0]
            try:
                pixels = self._complete(job, rows, _result(future))
            except DataLost:
                self.give_up(job)
                raise
            pieces.popleft()
            self.outstanding -= rows.stop - rows.start
            yield rows, pixels
        self._coming.pop(job, None)

    def give_up(self, job: Job) -> None:
        """The job is not wanted any more."""
        for rows, future in self._coming.pop(job, ()):
            future.cancel()
            self.outstanding -= rows.stop - rows.start

    def _begin(self, job: Job, rows: Sequence[int]) -> Future[Found]:
        return self._thread.submit(self._decode, job, rows, [int(job.samples[row]) for row in rows])

    def _complete(self, job: Job, rows: slice, found: Found) -> np.ndarray:
        """The pixels of these rows, with others in the place of broken ones."""
        pixels, broken = found
        while broken:
            for position, reason in broken:
                row = rows.start + position
                job.samples[row] = self._substitute(job.source, int(job.samples[row]), reason)
            positions = [position for position, _ in broken]
            others, still = _result(self._begin(job, [rows.start + position for position in positions]))
            pixels[positions] = others
            broken = [(positions[place], reason) for place, reason in still]
        return pixels

    def _decode(self, job: Job, rows: Sequence[int], samples: Sequence[int]) -> Found:
        draws = None
        if job.draws is not None:
            *key, count = job.draws
            draws = stream("augmentation", *key).random((count, DRAWS))
        pixels = np.empty((len(rows), 3, SIDE, SIDE), np.uint8)
        broken: list[tuple[int, str]] = []
        plain: list[tuple[int, bytes, Part]] = []
        for position, (row, sample) in enumerate(zip(rows, samples, strict=True)):
            try:
                content = read(*job.source.place(sample))
                picture = opened(content, DECODER)
                size = picture.height, picture.width
                part = evaluation_part(*size) if draws is None else training_part(*size, draws[row].tolist())
                if isinstance(picture, JpegPicture) and content.endswith(END):
                    plain.append((position, content, part))
                else:
                    write_part(picture, part, pixels[position])
            except Broken as error:
                broken.append((position, str(error)))
        try:
            if plain:
                pixels[[position for position, _, _ in plain]] = self._run(plain)
        except RuntimeError:  # of one image; the pipeline is of no use any more
            self._pipeline = None
            for position, content, part in plain:
                try:
                    write_part(opened(content, DECODER), part, pixels[position])
                except Broken as error:
                    broken.append((position, str(error)))
        return pixels, broken

    def _run(self, plain: Sequence[tuple[int, bytes, Part]]) -> np.ndarray:
        """[k, 3, 224, 224] uint8. Raises RuntimeError if one of them cannot be decoded."""
        if self._pipeline is None:
            self._pipeline = _pipeline(self._threads)
        parts = [part for _, _, part in plain]
        feeds = {
            "content": [np.frombuffer(content, np.uint8) for _, content, _ in plain],
            "start": [np.array(part.box[:2], np.int32) for part in parts],
            "shape": [np.array(part.box[2:], np.int32) for part in parts],
            "size": [np.array((part.rows, part.columns), np.float32) for part in parts],
            "corner": [np.array((part.down, part.right), np.int32) for part in parts],
            "mirror": [np.array(part.mirror, np.int32) for part in parts],
        }
        for name, values in feeds.items():
            self._pipeline.feed_input(name, values)
        (found,) = self._pipeline.run()
        return found.as_array()


def _pipeline(threads: int) -> Any:
    dali = installed()
    fn, types = dali.fn, dali.types
    kinds = {"content": (types.UINT8, 1), "start": (types.INT32, 1), "shape": (types.INT32, 1)}
    kinds |= {"size": (types.FLOAT, 1), "corner": (types.INT32, 1), "mirror": (types.INT32, 0)}
    # device_id=None: no GPU is needed, and none used
    pipeline = dali.Pipeline(batch_size=PIECE, num_threads=threads, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        fed = {name: fn.external_source(name=name, dtype=dtype, ndim=ndim) for name, (dtype, ndim) in kinds.items()}
        # as libjpeg decodes by default, and Pillow and simplejpeg with it
        exact = {"jpeg_fancy_upsampling": True, "adjust_orientation": False, "output_type": types.RGB}
        image = fn.decoders.image_slice(fed["content"], fed["start"], fed["shape"], axes=(0, 1), **exact)
        image = fn.resize(image, size=fed["size"], antialias=True)
        image = fn.slice(image, fed["corner"], (SIDE, SIDE), axes=(0, 1))
        as_is = {"mean": 0.0, "std": 1.0, "dtype": types.UINT8, "output_layout": "CHW"}
        pipeline.set_outputs(fn.crop_mirror_normalize(image, mirror=fed["mirror"], **as_is))
    pipeline.build()
    return pipeline


def _result(future: Future[Found]) -> Found:
    try:
        return future.result(PATIENCE_S)
    except TimeoutError as error:
        raise DataLost(f"data: nothing from NVIDIA DALI for {PATIENCE_S:g} s") from error
