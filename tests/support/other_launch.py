"""A run of whose launch something is other than usual, by its environment: `data._target_` names this module, which is
imported before the processes of a launch meet.

OTHER_CODE: the version that the code says it has. JOIN_S: how long it waits for the others.
"""

from __future__ import annotations

import os

from dsgd.data.quadratic import Quadratic
from dsgd.engines.dist.launch import agreement

__all__ = ["Quadratic"]

if "OTHER_CODE" in os.environ:
    agreement.code_version = lambda: os.environ["OTHER_CODE"]
if "JOIN_S" in os.environ:
    agreement.JOIN_TIMEOUT_S = float(os.environ["JOIN_S"])
