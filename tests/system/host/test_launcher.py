"""What a real torchrun sets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_torchrun_sets_what_is_read_here_and_nothing_slow_is_imported(tmp_path: Path) -> None:
    """Two real processes of a real torchrun."""
    program = tmp_path / "program.py"
    program.write_text(
        "import dataclasses, json, os, pathlib, sys\n"
        "from dsgd.host.launcher import launch\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "found = launch(os.environ)\n"
        "pathlib.Path(sys.argv[1], f'{found.rank}.json').write_text(json.dumps(dataclasses.asdict(found)))\n"
    )
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, str(program), str(tmp_path)], check=True, capture_output=True, timeout=120)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, one in enumerate(found):
        assert (one["kind"], one["rank"], one["local_rank"], one["nodes"]) == ("torchrun", rank, rank, 2)
    assert found[0]["job"] == found[1]["job"]
    assert found[0]["master_port"] == found[1]["master_port"] > 0
