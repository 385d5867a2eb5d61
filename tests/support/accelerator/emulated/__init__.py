"""Four accelerators that are none, `emu:0` to `emu:3`: torch loads them in every process that has this package's parent
folder on PYTHONPATH, by the entry point that device backends outside of torch have.

EMU_DEVICES: how many there are (4). EMU_FINDINGS: a folder to which each process that finds something wrong adds lines,
in a file named by its process number. EMU_UNPINNED: non-blocking copies from pageable memory are wrong, too. EMU_CACHE:
the folder of compiled modules.
"""

from __future__ import annotations


def load() -> None:
    """Make the device type known to torch. Called once by torch, at the end of its import."""
    import importlib.util
    import sys
    from pathlib import Path

    import torch
    from torch.utils import backend_registration

    from . import build

    made = build.build(Path(torch.__path__[0]), torch.__version__)
    spec = importlib.util.spec_from_file_location("emulated.native", made)
    if spec is None or spec.loader is None:
        raise ImportError(f"no extension module: {made}")
    native = importlib.util.module_from_spec(spec)
    sys.modules["emulated.native"] = native
    spec.loader.exec_module(native)
    backend_registration.rename_privateuse1_backend("emu")
    native.init()
    from . import device

    torch._register_device_module("emu", device)
    backend_registration.generate_methods_for_privateuse1_backend()
    if torch.distributed.is_available():
        from . import collectives

        collectives.register()
    device.report_at_exit()
