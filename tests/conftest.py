"""Tests run side by side, more than there are cores: none of them may take more than one, nor the commands that it
types, and none may judge how long something took."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
