"""A module that torch.compile has compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor

from dsgd.gradients.choice import choose_evaluator
from dsgd.problem.precision import Unsuitable
from dsgd.problem.problem import build_problem
from tests.support.simulate import experiment
from tests.unit.problem.test_precision import distance, gradient


@pytest.mark.skipif(" " in torch.__file__, reason="torch.compile does not quote the path of its own libraries")
@inductor.patch({"compile_threads": 1})  # others would be processes that import torch once more
@pytest.mark.filterwarnings("ignore")  # what the compiler has to say of itself
def test_a_compiled_module_gives_the_same_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By both engines, at other points than when it was compiled. Without a compiler there is one line."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    line = ["nodes=2", "batch_size=6", "compile=true"]
    of = experiment(*line, "model.hidden=[8]")
    with (
        inductor.patch({"cpp.cxx": (None, "/bin/false")}),
        pytest.raises(Unsuitable, match=r"^compile must be false, torch\.compile fails for Sequential: .*/bin/false"),
    ):
        choose_evaluator(of, build_problem(of))
    of = experiment(*line, "model.hidden=[]")  # a product alone, which needs no new code: that takes a minute
    plain = build_problem(experiment(*line[:2], "model.hidden=[]"))
    chosen = choose_evaluator(of, compiled := build_problem(of))
    assert chosen.why == "gradients: loop, because compile=true is for one model at a time"
    for devices in (0, 1):
        for x in (plain.start, 2 * plain.start):
            assert distance(gradient(compiled, devices, x)[0], gradient(plain, devices, x)[0]) < 1e-5
