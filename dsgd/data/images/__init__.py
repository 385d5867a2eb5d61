"""Find, decode and augment images on disk, by processes that work ahead."""

SIDE = 224  # pixels: what models see is [3, SIDE, SIDE]
