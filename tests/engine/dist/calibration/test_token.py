"""The workers of a calibration share a token that nobody reads in the store where they meet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.calibration.cluster_calibration import _shared_token

WORKERS = 3


def test_all_workers_have_one_token_and_who_reads_the_store_has_none() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False) for _ in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as pool:
        tokens = set(pool.map(lambda rank: _shared_token(stores[rank], rank, WORKERS), range(WORKERS)))
    (token,) = tokens
    assert len(token) == 32
    values = [server.get(key) for key in server.list_keys()]
    assert len(values) == 2 * (WORKERS - 1)
    assert not any(token in value or token.hex().encode() in value for value in values)
