"""Codes of vectors that workers send in place of them, for `dsgd.algorithms.compressed`."""
