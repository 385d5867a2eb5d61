"""One test over a table: where its rows are one assertion over a list, they are one case of pytest, too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def each_row(names: str | Sequence[str], table: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with every row of a table, and name all rows that fail. names: of the columns, as those of
    pytest.mark.parametrize. Every row has a folder of its own, and its patches are undone after it."""
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    cases = [dict(zip(columns, row if len(columns) > 1 else (row,), strict=True)) for row in table]
    assert cases, "a table without rows tests nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def over_all(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            for number, case in enumerate(cases):
                try:
                    with _for_one_row(fixtures, number) as given:
                        test(**given, **case)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"in row {number}: {case}")
                    failed.append(error)
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(cases)} rows fail", failed)

        left = [parameter for name, parameter in signature.parameters.items() if name not in columns]
        over_all.__signature__ = signature.replace(parameters=left)  # pyright: ignore[reportAttributeAccessIssue]
        return over_all

    return decorate


@contextmanager
def _for_one_row(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    given = dict(fixtures)
    if isinstance(folder := given.get("tmp_path"), Path):
        given["tmp_path"] = folder / str(number)
        given["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in given:
            given["monkeypatch"] = patch
        yield given
