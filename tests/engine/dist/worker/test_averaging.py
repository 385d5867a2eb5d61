from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.worker.averaging import Averaging, Groups, in_one_line, interface_of, join_groups, join_rings
from tests.support.collective_workers import CHECKS, carry_out
from tests.support.planes import HOST, plane

ALONE = Groups(0, 1)
CPU = torch.device("cpu")


@pytest.mark.parametrize("sums", ["own", "torch"])
def test_what_only_several_workers_can_show_holds_in_all_of_them(sums: str, tmp_path: Path) -> None:
    """In three real processes. The last one dies: what the others wait for fails, and they still compute."""
    carry_out(tmp_path, 3, by_torch=sums == "torch")
    held = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    together = [check.__name__ for check in CHECKS] + ["joining_again"]
    assert held == [[*together, "silence", "leaving"]] * 2 + [together]


def test_alone_the_mean_of_a_vector_is_the_vector() -> None:
    averaging = Averaging(ALONE, CPU)
    v = torch.randn(7)
    assert torch.equal(averaging.all_reduce_mean(v).result(), v)
    averaging.close()


def test_alone_nobody_is_met() -> None:
    with plane(0, 1) as own:
        for groups in (join_rings(own, 0, 1, (HOST, 1), CPU), join_groups(HashStore(), 0, 1, 1.0, "192.0.2.1", CPU)):
            assert (groups.nodes, groups.gradients, groups.vectors) == (1, None, None)


def test_the_interface_is_found_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interface_of("127.0.0.1") == "lo"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    rule = r"^address must be the IPv4 address of an interface here \(.*lo 127\.0\.0\.1.*\), got 192\.0\.2\.1$"
    with pytest.raises(ValueError, match=rule):
        join_groups(HashStore(), 0, 2, 0.5, "192.0.2.1", CPU)


def test_an_error_is_one_line_with_its_cause() -> None:
    nccl = "NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled system error, NCCL 2.27.5"
    refused = "socketPollConnect: connect returned No route to host"
    for text, line in (
        ("Socket Timeout", "Socket Timeout"),
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer", "Connection closed by peer"),
        ("wait timeout after 500ms. This is typically caused by a lost peer.", "wait timeout after 500ms"),
        (f"{nccl}\nncclSystemError: call failed. \nLast error:\n{refused}\n", f"{nccl}: {refused}"),
        ("", ""),
    ):
        assert in_one_line(text) == line
