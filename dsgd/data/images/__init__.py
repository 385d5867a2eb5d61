"""Find, decode and augment images on disk, by processes that work ahead."""

SIDE = 224  # pixels: inputs of models are [3, SIDE, SIDE]
