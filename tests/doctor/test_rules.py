"""Rules: only about registered methods, each with a reason that holds numbers, and none that can never speak."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, replace

import pytest

from fedstrata.doctor.advice import candidates, source_of, verdict_of
from fedstrata.doctor.diagnosis import Advice
from fedstrata.doctor.rules import MOST, rules
from fedstrata.methods import method, rows
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import FederationSummary

RULES = [(name, rule) for name, spoken in rules().items() for rule in spoken]

PLAIN = FederationSummary(
    label="strong",
    label_value=0.5,
    features="none",
    feature_value=0.0,
    kind="classification",
    images=False,
    tokens=False,
    norms=False,
    body=True,
    own_tests=True,
    heldout=0,
    test="both",
    eligible=20,
    cohort=10,
    rounds=50,
    low_steps=5,
    high_steps=6,
    equal_steps=False,
    median=100.0,
    batch=16,
    model="mlp",
)
CASES = [
    PLAIN,
    replace(PLAIN, label="none", label_value=0.0),
    replace(PLAIN, label="none", features="strong", feature_value=0.4, norms=True),
    replace(PLAIN, own_tests=False, test="server"),
    replace(PLAIN, eligible=1_000_000),
    replace(PLAIN, images=True),
    replace(PLAIN, images=True, rounds=400),
    replace(PLAIN, cohort=20),
    replace(PLAIN, tokens=True),
    replace(PLAIN, low_steps=2, high_steps=60),
    replace(PLAIN, low_steps=5, high_steps=5, equal_steps=True),
    replace(PLAIN, median=20.0),
    replace(PLAIN, heldout=4),
    replace(PLAIN, body=False, images=True),
    replace(PLAIN, exits=3, rounds=400),
]


def verdicts(seen):
    return {name: verdict_of([rule for rule in spoken if rule.when(seen)]) for name, spoken in rules().items()}


@pytest.mark.parametrize("name", sorted(rules()))
def test_every_rule_is_about_a_method_that_is_registered(name):
    assert set(method(name).named) <= {row.name for row in rows()}
    assert source_of(name)


def test_every_method_of_ours_has_a_rule():
    ruled = {known for name in rules() for known in method(name).named}
    ours = {row.name for row in rows() if row.piece.__module__.startswith("fedstrata.methods.")}
    assert ours <= ruled


def test_methods_are_proposed_in_the_order_of_their_ranks():
    ranks = [row.rank for row in rows() if row.piece.__module__.startswith("fedstrata.methods.")]
    assert len(set(ranks)) == len(ranks)
    assert list(rules())[:4] == ["fedavg", "fedprox", "scaffold", "feddyn"]


@pytest.mark.parametrize("at", range(len(RULES)), ids=lambda i: f"{i}-{RULES[i][0]}-{RULES[i][1].speaks}")
def test_every_rule_speaks_somewhere_and_is_silent_elsewhere_in_a_sentence_with_its_numbers(at):
    _, rule = RULES[at]
    spoken = [seen for seen in CASES if rule.when(seen)]
    assert spoken
    assert len(spoken) < len(CASES) or rule.speaks == "baseline"
    reason = rule.reason(spoken[0])
    assert "{" not in reason
    related = (
        rule.speaks in ("baseline", "control", "later")
        or "be seen" in reason
        or "norm layer" in reason
        or "tokens" in reason
        or "all head" in reason
    )
    assert related or re.search(r"\d", reason) or reason.startswith("no skew")


def test_what_speaks_against_weighs_more_than_what_speaks_for():
    scaffold = rules()["scaffold"]
    rare = replace(PLAIN, eligible=1000)
    assert {rule.speaks for rule in scaffold if rule.when(rare)} == {"for", "against"}
    assert verdicts(rare)["scaffold"] == "not advised"
    assert verdicts(PLAIN)["scaffold"] == "candidate"


def test_label_skew_with_own_tests_calls_for_personal_heads():
    found = verdicts(PLAIN)
    assert {name for name, verdict in found.items() if verdict == "candidate"} >= {
        "fedper",
        "ditto",
        "finetune(epochs=1)",
        "fedprox",
    }
    assert found["local"] == "control"
    assert found["fedbn"] == "not advised"  # no norm layer


def test_feature_skew_with_norm_layers_calls_for_private_norms():
    found = verdicts(replace(PLAIN, label="none", label_value=0.0, features="strong", feature_value=0.4, norms=True))
    assert found["fedbn"] == "candidate"
    assert found["fedper"] == "open"
    assert found["lgfedavg"] == "later"


def test_without_own_tests_no_personal_method_is_proposed():
    found = verdicts(replace(PLAIN, own_tests=False, test="server"))
    personal = {
        "fedbn",
        "fedper",
        "ditto",
        "fedrep",
        "fedbabu",
        "lgfedavg",
        "pfedme",
        "perfedavg",
        "finetune(epochs=1)",
        "local",
    }
    assert {found[name] for name in personal} == {"not advised"}
    assert found["scaffold"] == "candidate"


def test_without_skew_nothing_that_corrects_skew_is_proposed():
    found = verdicts(replace(PLAIN, label="low", label_value=0.1, equal_steps=True, low_steps=5, high_steps=5))
    assert {found[name] for name in ("fedprox", "scaffold", "feddyn", "moon", "fednova")} == {"not advised"}
    assert "candidate" not in found.values()


def test_a_model_that_is_all_head_has_nothing_to_share_beside_private_heads():
    found = verdicts(replace(PLAIN, body=False, images=True))
    assert {found[name] for name in ("fedper", "fedrep", "fedbabu", "moon")} == {"not advised"}
    assert found["ditto"] == "candidate"


def test_what_was_not_measured_speaks_neither_way():
    found = verdicts(replace(PLAIN, label="none", label_value=0.0, features="unknown"))
    assert found["fedprox"] == "open"


def test_equal_steps_are_fedavg_by_law():
    rule = next(rule for rule in rules()["fednova"] if rule.speaks == "against")
    limit = next(row.limit for row in rows() if row.name == "fednova")
    assert (limit.of, limit.uniform) == ("fedavg", True)  # the law that the reason leans on
    assert "bit for bit" in rule.source


def test_a_first_comparison_has_a_baseline_a_control_and_an_end():
    advised = [Advice("fedavg", "baseline", (), "")] + [Advice(f"m{i}", "candidate", (), "") for i in range(20)]
    chosen = candidates([*advised, Advice("local", "control", (), "")])
    assert (len(chosen), chosen[0], chosen[-1]) == (MOST, "fedavg", "local")
    assert len(candidates(advised)) == MOST


def test_every_number_that_rules_may_read_is_read():
    text = "".join(rule.because for _, rule in RULES)
    files = [advice, *{inspect.getmodule(row.piece) for row in rows()}]
    source = "".join(inspect.getsource(file) for file in files if file.__name__.startswith("fedstrata."))
    unused = [
        f.name
        for f in fields(FederationSummary)
        if f"s.{f.name}" not in source and f"self.{f.name}" not in source and f"s.{f.name}" not in text
    ]
    assert unused == []
