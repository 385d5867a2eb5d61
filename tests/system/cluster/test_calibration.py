"""The measurements of a link, on links whose rate is known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.network import Network

PATIENCE_S = 120

# Host 1 listens and host 2 connects; both print what they measured.
MEASURE = """
import dataclasses, json, os, socket, sys
from dsgd.engines.dist.calibration.measure import measure_link
seconds = float(sys.argv[1])
if os.environ["HOST"] == "1":
    server = socket.create_server(("h1", 7000))
    print("listens", flush=True)
    stream, _ = server.accept()
else:
    stream = socket.create_connection(("h1", 7000), timeout=60)
link = measure_link(stream, os.environ["HOST"] == "2", seconds)
print(json.dumps(dataclasses.asdict(link)))
"""


def test_a_shaped_link_is_measured_as_what_it_is(network: Callable[..., Network]) -> None:
    """The shaper counts headers: of 100 Mbit/s a stream gets 95 to 96. A property of the shaper again; busy in both
    directions the acknowledgements wait behind the data, which costs short streams up to a fifth."""
    links: list[dict[str, float]] = []
    for link in measured(network(hosts=2, rate="100mbit")):
        links.append(link)
        one_way, both_ways = link["bytes_per_s"] / 12.5e6, link["duplex_bytes_per_s"] / 12.5e6
        if 0.9 <= one_way <= 1 and 0.7 <= both_ways <= 1:
            return
    raise AssertionError(f"{links}, of 12.5e6 bytes per second")


def measured(made: Network) -> Iterator[dict[str, float]]:
    """Measure a link longer and longer: then a pause of a busy machine changes less."""
    root = Path(__file__).parents[3]
    for seconds in (0.1, 0.3, 0.9, 2.7):
        python = [sys.executable, "-c", MEASURE, str(seconds)]
        server = made.popen(1, *python, stdout=subprocess.PIPE, text=True, cwd=root)
        assert server.stdout is not None
        assert server.stdout.readline() == "listens\n"
        client = made.run(2, *python, capture_output=True, text=True, timeout=PATIENCE_S, check=True, cwd=root)
        link = json.loads(client.stdout)
        assert json.loads(server.communicate(timeout=PATIENCE_S)[0]) == link
        yield link
