from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.worker.averaging import (
    Averaging,
    CollectiveFailed,
    Groups,
    in_one_line,
    interface_of,
    join_groups,
    join_rings,
)
from tests.support.long import long_but
from tests.support.planes import HOST, plane

GUARD_S = 120  # against hanging
ALONE = Groups(0, 1)
CPU = torch.device("cpu")
Held = Callable[[str, int, Sequence[int]], None]

two_and_three = pytest.mark.parametrize("nodes", long_but([3], [2, 3]))


@pytest.fixture(scope="module", params=["own", "torch"])
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Held:
    """Asserts that a property held in workers of real processes, whose sums are dsgd's or torch's; they run once for
    all properties."""
    ended: dict[int, tuple[Path, str]] = {}

    def check(name: str, nodes: int, ranks: Sequence[int]) -> None:
        if nodes not in ended:
            folder = tmp_path_factory.mktemp("workers")
            command = [sys.executable, "-m", "tests.support.collective_workers", str(folder), str(nodes), request.param]
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=GUARD_S, cwd=Path(__file__).parents[4]
            )
            ended[nodes] = folder, run.stderr
        folder, errors = ended[nodes]
        for rank in ranks:
            assert name in (folder / str(rank)).read_text().split(), errors

    return check


@two_and_three
def test_vectors_are_averaged_without_changing_them_to_the_same_bits_everywhere(nodes: int, held: Held) -> None:
    held("mean_of_vectors", nodes, range(nodes))


@two_and_three
def test_mean_gradient_is_the_mean_of_the_workers_gradients_with_their_decay(nodes: int, held: Held) -> None:
    """For every model, in double precision, to 1e-12, and the same bits everywhere."""
    held("mean_gradient", nodes, range(nodes))


@two_and_three
def test_buckets_go_in_the_same_order_whatever_the_backward_pass_finishes_first(nodes: int, held: Held) -> None:
    held("order_of_buckets", nodes, range(nodes))


@two_and_three
def test_an_overflow_of_one_worker_in_fp16_is_repeated_by_all(nodes: int, held: Held) -> None:
    held("overflow", nodes, range(nodes))


@two_and_three
def test_unused_parameters_are_zero_and_hold_nobody_up(nodes: int, held: Held) -> None:
    held("unused_parameters", nodes, range(nodes))


@two_and_three
def test_gradients_and_vectors_at_the_same_time_do_not_mix(nodes: int, held: Held) -> None:
    held("two_threads", nodes, range(nodes))


@two_and_three
def test_workers_that_have_left_can_join_again(nodes: int, held: Held) -> None:
    held("joining_again", nodes, range(nodes))


@pytest.mark.parametrize("nodes", [pytest.param(2, id="stopped", marks=pytest.mark.long), pytest.param(3, id="killed")])
def test_a_lost_peer_fails_what_the_others_wait_for_within_the_time_limit(nodes: int, held: Held) -> None:
    """With one line of text, and they still compute, and leave."""
    held("silence", nodes, range(nodes - 1))
    held("leaving", nodes, range(nodes - 1))


def test_alone_the_mean_of_a_vector_is_the_vector() -> None:
    averaging = Averaging(ALONE, CPU)
    v = torch.randn(7)
    assert torch.equal(averaging.all_reduce_mean(v).result(), v)
    averaging.close()


def test_alone_nobody_is_met() -> None:
    with plane(0, 1) as own:
        for groups in (join_rings(own, 0, 1, (HOST, 1), CPU), join_groups(HashStore(), 0, 1, 1.0, "192.0.2.1", CPU)):
            assert (groups.nodes, groups.gradients, groups.vectors) == (1, None, None)


def test_a_worker_that_does_not_come_is_waited_for_up_to_the_time_limit() -> None:
    with plane(0, 3, timeout_s=0.3) as own, plane(1, 3) as right:
        rule = r"^worker 0: meeting 3 workers failed: worker 2 has not connected for 0\.3 s$"
        with pytest.raises(CollectiveFailed, match=rule) as caught:
            join_rings(own, 0, 3, (HOST, right.port), CPU)
        assert caught.value.peer == 2


def test_the_interface_is_found_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interface_of("127.0.0.1") == "lo"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    rule = r"^address must be the IPv4 address of an interface here \(.*lo 127\.0\.0\.1.*\), got 192\.0\.2\.1$"
    with pytest.raises(ValueError, match=rule):
        join_groups(HashStore(), 0, 2, 0.5, "192.0.2.1", CPU)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Socket Timeout", "Socket Timeout"),
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer", "Connection closed by peer"),
        ("wait timeout after 500ms. This is typically caused by a lost peer.", "wait timeout after 500ms"),
        (
            "NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled system error, NCCL 2.27.5\n"
            "ncclSystemError: call failed. \nLast error:\nsocketPollConnect: connect returned No route to host\n",
            "NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled system error, NCCL 2.27.5: socketPollConnect: "
            "connect returned No route to host",
        ),
        ("", ""),
    ],
)
def test_an_error_is_one_line_with_its_cause(text: str, line: str) -> None:
    assert in_one_line(text) == line
