"""Names that methods and options have elsewhere lead to ones that are there."""

from __future__ import annotations

from dsgd.cli.compose import composed
from dsgd.cli.wrong_keys import method_elsewhere, names_elsewhere, option_elsewhere
from tests.support.cases import ALGORITHMS


def test_a_method_of_another_name_is_here() -> None:
    for found in {method_elsewhere(name) for name in names_elsewhere()["methods"]}:
        assert found is not None
        composed([f"algo={found}".split()[0], *(word for word in found.split()[1:] if not word.endswith("..."))])


def test_every_option_of_another_name_is_one_of_an_algorithm() -> None:
    known = {algo: list(composed([f"algo={algo}"])["algo"]) for algo in ALGORITHMS}
    for name in names_elsewhere()["options"]:
        assert [algo for algo, keys in known.items() if option_elsewhere(name, keys)], name


def test_a_name_is_found_however_it_is_written() -> None:
    assert method_elsewhere("Power-SGD") == method_elsewhere("power_sgd") == "compressed algo.code=powersgd"
    assert method_elsewhere("gosip") is None
    assert option_elsewhere("outer_lr", ["tau"]) is None
