"""What the last release had and this one has not: former import paths are understood for one release."""

from __future__ import annotations

from dsgd.runner.configuration import code_of
from dsgd.runner.values import MOVED, locate
from tests.support.each_row import each_row


@each_row(("former", "path"), MOVED.items())
def test_a_class_is_found_at_its_former_path_and_needs_no_trust(former: str, path: str) -> None:
    cls = locate(former, "optimizer")
    assert f"{cls.__module__}.{cls.__qualname__}" == path
    group = "schedule" if "schedule" in path else "optimizer"
    assert code_of({group: {"_target_": former}}) == {}
