"""Photographs on disk: finding, decoding, augmenting and handing them over, by processes that work ahead."""

SIDE = 224  # pixels: what models see is [3, SIDE, SIDE]
