"""The verdict of a comparison: what it says in every case, and what it never says."""

from __future__ import annotations

import math
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dsgd.comparison.comparison_verdict import comparison_verdict, enumeration, in_sentence, times
from dsgd.comparison.contenders import rank_contenders
from dsgd.report.interval import Estimate
from tests.support.contenders import contender
from tests.support.each_row import each_row

INF = math.inf
GOAL = "a test accuracy of 0.9"
FEW = "; 5 seeds decide little between 3 contenders (with 7 all differences would hold together with 95% confidence)"
NAMES = ("sync", "easgd", "downpour", "gossip", "dpsgd", "delayfree")


def verdict(target: float | None = 0.9, /, **seconds: list[float]) -> str:
    return comparison_verdict(
        rank_contenders([contender(name, values, target=target) for name, values in seconds.items()])
    )


def test_a_clear_winner_is_named_with_its_lead_over_the_next_and_the_ties_behind_it():
    text = verdict(
        sync=[40, 50, 40, 44, 46] * 2,
        easgd=[17, 15, 18, 19, 20] * 2,
        delayfree=[10, 10, 10, 10, 10] * 2,
        gossip=[41, 46, 42, 45, 40] * 2,
    )
    assert text == (
        f"delayfree reaches {GOAL} first, after 10 s; easgd takes 1.8 (1.5–2.0) times as long. "
        "gossip and sync cannot be told apart."
    )


def test_a_tie_for_the_first_place_names_nobody_as_the_winner():
    text = verdict(sync=[20, 30, 20, 20, 20], easgd=[21, 19, 21, 22, 23], gossip=[60, 60, 60, 60, 60])
    assert text == (
        f"sync is ahead, at {GOAL} after 20 s, but easgd cannot be told apart from it{FEW}. "
        "gossip takes 3.0 (2.0–3.0) times as long."
    )
    text = verdict(sync=[20, 30] * 3, easgd=[30, 20] * 3, gossip=[25] * 6)
    assert text == f"gossip is ahead, at {GOAL} after 25 s, but sync and easgd cannot be told apart from it."


def test_every_contender_is_named_also_those_far_behind():
    text = verdict(sync=[20] * 10, easgd=[10] * 10, gossip=[30] * 10, dpsgd=[45] * 10, downpour=[80] * 10)
    assert text == (
        f"easgd reaches {GOAL} first, after 10 s; sync takes 2.0 times as long. "
        "gossip takes 3.0 times as long, dpsgd 4.5 times, downpour 8.0 times."
    )


def test_who_did_not_get_there_is_named_with_the_reason():
    runs = [contender("sync", [10] * 5), contender("easgd", [20, 20, 20, INF, INF])]
    runs += [contender("gossip", [INF] * 5, status="diverged"), contender("dpsgd", [INF] * 5)]
    runs += [contender("downpour", [INF] * 5)]
    assert comparison_verdict(rank_contenders(runs)) == (
        f"sync reaches {GOAL} first, after 10 s; easgd takes 2.0 (2.0 or more) times as long; "
        "5 seeds decide little between 5 contenders (with 9 all differences would hold together with 95% confidence). "
        "easgd reaches it on 3 of 5 seeds only; gossip never reaches it (diverged); "
        "dpsgd and downpour do not reach it within 100 s."
    )


def test_who_is_alone_at_the_target_has_no_ratio():
    text = verdict(sync=[10, 12, 11, 10, 10], gossip=[INF] * 5)
    assert text == f"Only sync reaches {GOAL}, after 10 s. gossip does not reach it within 100 s."
    text = verdict(sync=[10, 12, 11, INF, 10], gossip=[INF] * 5)
    assert text.startswith(f"Only sync reaches {GOAL} on most seeds, after 11 s. sync reaches it on 4 of 5 seeds only;")


def test_where_nobody_gets_there_the_nearest_is_named():
    assert verdict(sync=[INF] * 5, gossip=[INF] * 5) == (
        f"None of the 2 contenders reaches {GOAL} within 100 s; sync ends nearest to it, at 0.6, before gossip."
    )
    assert verdict(sync=[INF] * 5, gossip=[1, 2, INF, INF, INF], easgd=[1, *[INF] * 4]) == (
        f"None of the 3 contenders reaches {GOAL} on most seeds; gossip does on 2 of 5 seeds. "
        "easgd reaches it on 1 of 5 seeds only; sync does not reach it within 100 s."
    )
    runs = [contender(name, [INF] * 5, status="diverged") for name in ("sync", "gossip")]
    assert comparison_verdict(rank_contenders(runs)).endswith(" sync and gossip never reach it (diverged).")


def test_few_seeds_are_told():
    text = verdict(sync=[20.0], gossip=[10.0])
    assert text == f"gossip reaches {GOAL} first, after 10 s; sync takes 2.0 times as long; one seed decides nothing."
    text = verdict(sync=[20, 22, 24], gossip=[10, 10, 10])
    assert text.endswith("sync takes 2.2 (2.0–2.4) times as long; 3 seeds decide little (confidence 75%, 97% with 6).")


def test_one_contender_is_compared_with_nothing():
    assert verdict(sync=[20] * 5) == f"sync reaches {GOAL} after 20 s; there is nothing to compare it with."
    assert verdict(sync=[INF] * 5) == f"sync does not reach {GOAL} within 100 s."


def test_without_a_target_losses_are_compared():
    text = verdict(None, sync=[0.3] * 5, gossip=[0.2] * 5, easgd=[INF] * 5)
    assert text == (
        "gossip ends with the lowest loss, 0.2; that of sync is 1.5 times as high" + FEW + ". "
        "easgd never ends with a loss to compare (diverged)."
    )


def test_a_loss_of_zero_has_no_ratio():
    assert verdict(None, sync=[0.3] * 5, gossip=[0.0] * 5) == (
        "gossip ends with the lowest loss, 0; that of sync is higher."
    )


def test_node_counts_are_in_the_names_and_lists_stay_readable():
    assert in_sentence("gossip, tau=10, 16 nodes") == "gossip (tau=10, 16 nodes)"
    assert enumeration(["sync, 8 nodes", "sync, 16 nodes", "easgd"]) == "sync (8 nodes), sync (16 nodes) and easgd"
    assert enumeration(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d, e and f"


@each_row(
    ("ratio", "text"),
    [
        (Estimate(1.72, 1.53, 2.04, 5), "1.7 (1.5–2.0) times"),
        (Estimate(1.02, 1.004, 1.03, 5), "1.020 (1.004–1.030) times"),
        (Estimate(12.2, 11.6, 140.0, 5), "12 (12–140) times"),
        (Estimate(3.0, 2.0, INF, 5), "3.0 (2.0 or more) times"),
        (Estimate(INF, 2.0, INF, 5), "at least 2.0 times"),
        (Estimate(math.nan, 2.0, INF, 5), "at least 2.0 times"),
        (Estimate(INF, INF, INF, 5), ""),
        (Estimate(2e5, 1.5e5, 3e5, 5), "2e+05 (1.5e+05–3e+05) times"),
        (Estimate(1.5, 1.5, 1.5, 1), "1.5 times"),
    ],
)
def test_a_ratio_above_one_never_reads_as_one(ratio: Estimate, text: str):
    assert times(ratio) == text


score = st.one_of(st.just(INF), st.floats(0.01, 1e5), st.sampled_from([10.0, 20.0]))
ending = st.sampled_from([{}, {}, {"status": "diverged"}, {"collapsed": True}, {"status": "interrupted"}])


@given(
    st.integers(1, 7).flatmap(
        lambda seeds: st.lists(
            st.tuples(st.lists(score, min_size=seeds, max_size=seeds), ending), min_size=1, max_size=6
        )
    ),
    st.sampled_from([0.9, None]),
    st.booleans(),
)
def test_every_verdict_is_short_grammatical_and_has_no_number_that_is_none(
    drawn: list[tuple[list[float], dict[str, Any]]], target: float | None, several_nodes: bool
):
    contenders = [
        contender(f"{name}, {8 * i} nodes" if several_nodes else name, values, nodes=8 * i, target=target, **end)
        for i, (name, (values, end)) in enumerate(zip(NAMES, drawn, strict=False), start=1)
    ]
    found = rank_contenders(contenders)
    text = comparison_verdict(found)
    plain = text.replace("None of the", "")
    assert not re.search(r"\b(nan|inf|never|None)\b", plain.replace("never reach", "").replace("never end", ""))
    assert text.endswith(".")
    assert "  " not in text
    assert not re.search(r"[.;,]{2}|\(\)| [,;.)]", text)
    assert len(re.findall(r"\. (?=[a-zN])", text)) <= 1
    for one in contenders:
        assert 1 <= len(re.findall(rf"\b{re.escape(in_sentence(one.label))}", text)) <= 2
    for low in re.findall(r"([\d.e+]+) times|\(([\d.e+]+)–|\(([\d.e+]+) or more", text):
        assert float("".join(low)) >= 1
    if found.seeds == 1 and len(contenders) > 1:
        assert "one seed decides nothing" in text
    first = found.standings[0]
    assert in_sentence(first.name) in text or first.missed == found.seeds
