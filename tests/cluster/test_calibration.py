"""The measurements of a link, on links whose rate is known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster.network import Network

# Host 1 listens and host 2 connects; both print what they measured.
MEASURE = """
import dataclasses, json, os, socket
from dsgd.dist.measure import measure_link
if os.environ["HOST"] == "1":
    server = socket.create_server(("h1", 7000))
    print("listens", flush=True)
    stream, _ = server.accept()
else:
    stream = socket.create_connection(("h1", 7000), timeout=60)
link = measure_link(stream, os.environ["HOST"] == "2", seconds=0.1)
print(json.dumps(dataclasses.asdict(link)))
"""


def test_a_shaped_link_is_measured_as_what_it_is(network: Callable[..., Network]) -> None:
    """The shaper counts headers: of 100 Mbit/s a stream gets 95 to 96. A property of the shaper again; busy in both
    directions the acknowledgements wait behind the data, which costs short streams up to a fifth."""
    made = network(hosts=2, rate="100mbit")
    python = [sys.executable, "-c", MEASURE]
    root = Path(__file__).parents[2]
    server = made.popen(1, *python, stdout=subprocess.PIPE, text=True, cwd=root)
    assert server.stdout is not None
    assert server.stdout.readline() == "listens\n"
    client = made.run(2, *python, capture_output=True, text=True, timeout=60, check=True, cwd=root)
    link = json.loads(client.stdout)
    assert json.loads(server.communicate(timeout=60)[0]) == link
    assert 0.9 * 12.5e6 <= link["bytes_per_s"] <= 12.5e6
    assert 0.7 * 12.5e6 <= link["duplex_bytes_per_s"] <= 12.5e6
