"""Tests run side by side, one for each core: none of them may take more than one, nor the commands that it types."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
