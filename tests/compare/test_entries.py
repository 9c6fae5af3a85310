"""Who is compared: texts, settings of their own, labels, refusals; and the words of the command."""

import pytest

from fedstrata.analysis.comparison import Budget
from fedstrata.cli.compare import spread
from fedstrata.common.errors import ConfigError
from fedstrata.compare.entries import LABEL, METHOD_SETTINGS, baseline_of, check_seeds, read_competitors, split_settings
from fedstrata.compare.request import apply_budget, audit_share, check_target, command_of, make_request
from fedstrata.config.config import KEYS, Config
from fedstrata.methods.fedprox import FedProx

BASE = Config(model="logistic", rounds=4)


def labels(*methods):
    return [competitor.entry.label for competitor in read_competitors(methods, BASE)]


def test_settings_after_the_bar_hold_for_that_method_only():
    one, two = read_competitors(
        ["fedavg", "fedprox(mu=0.1) + fedavgm | local.lr=0.05  schedule=warmup(rounds=2) + cosine local.steps=3"], BASE
    )
    assert two.entry.settings == {"local.lr": 0.05, "schedule": "warmup(rounds=2) + cosine", "local.steps": 3}
    config = two.config(BASE, 7)
    assert (config.method, config.seed, config.local.lr, config.local.steps, config.local.epochs) == (
        "fedprox(mu=0.1) + fedavgm",
        7,
        0.05,
        3,
        None,
    )
    assert one.config(BASE, 7) == BASE.replace(method="fedavg", seed=7)


def test_a_value_ends_where_the_next_name_begins_outside_brackets():
    assert split_settings("schedule=step(rounds=[2, 3], by=0.5) local.lr=1") == [
        "schedule=step(rounds=[2, 3], by=0.5)",
        "local.lr=1",
    ]
    assert split_settings("") == []


def test_settings_that_make_runs_pairs_cannot_differ():
    same = {
        "data",
        "data.root",
        "augment",
        "partition",
        "test",
        "validation",
        "heldout",
        "clients",
        "cohort",
        "rounds",
        "model",
        "norm",
        "seed",
    }
    same |= {
        "eval.every",
        "stop.bytes",
        "stop.flops",
        "stop.seconds",
        "stop.accuracy",
        "new_clients.steps",
        "new_clients.lr",
        "new_clients.groups",
        "quorum",
    }
    same |= {"local.threads", "executor", "workers", "out", "name", "method"}
    assert same <= set(KEYS)
    assert not same & set(METHOD_SETTINGS)
    for key in sorted(same):
        with pytest.raises(ConfigError, match=r"must be the same for all methods|is "):
            read_competitors(
                ["fedavg", f"scaffold | {key}={KEYS[key].default if KEYS[key].default is not None else 1}"], BASE
            )


@pytest.mark.parametrize(
    "text",
    [
        "",
        " | local.lr=1",
        "fedavg |",
        "fedavg | fast",
        "fedavg | local.lr=0.1 local.lr=0.2",
        "fedavg | local.lr=-1",
        "nothing",
        "fedprox(nu=1)",
    ],
)
def test_texts_that_cannot_be_meant_are_refused(text):
    with pytest.raises(ConfigError):
        read_competitors(["fedprox", text], BASE)


def test_labels_are_short_and_differ():
    long = "fedprox(mu=0.1) + fedavgm(beta=0.95, lr=0.5) | local.lr={} local.epochs=2 local.batch=32"
    found = labels("fedavg", long.format(0.1), long.format(0.2), "fedprox(mu=0.1) | local.lr=0.05")
    assert found == [
        "fedavg",
        "fedprox + fedavgm | … #1",
        "fedprox + fedavgm | … #2",
        "fedprox(mu=0.1) | local.lr=0.05",
    ]
    assert all(len(label) <= LABEL + 4 for label in found)


def test_the_same_competitor_twice_is_refused_however_it_is_written():
    for other in ("fedprox", "fedprox( mu = 0.01 )", "fedprox | local.lr=0.1"):
        with pytest.raises(ConfigError, match="are the same competitor"):
            read_competitors(["fedprox(mu=0.01)", other], BASE)
    assert len(read_competitors(["fedprox", "fedprox | local.lr=0.2"], BASE)) == 2


def test_pieces_are_competitors_too():
    piece, text = read_competitors([FedProx(0.3), "fedavg"], BASE)
    assert (piece.entry.label, piece.from_python, text.from_python) == ("fedprox(mu=0.3)", True, False)


@pytest.mark.parametrize("seeds", [(), (0, 0), (-1,), (True,), (0.5,)])
def test_seeds_that_are_none_are_refused(seeds):
    with pytest.raises(ConfigError, match="seed"):
        check_seeds(seeds)


def test_the_baseline_is_named_by_label_or_method_and_is_fedavg_otherwise():
    found = read_competitors(["scaffold", "fedavg", "fedprox(mu=0.1)"], BASE)
    assert baseline_of(found, None) == "fedavg"
    assert baseline_of(found, "fedprox(mu=0.1)") == "fedprox(mu=0.1)"
    assert baseline_of(found[:1], None) == "scaffold"
    with pytest.raises(ConfigError, match=r"is not among the methods: .*Did you mean"):
        baseline_of(found, "fedprox")
    twice = read_competitors(["fedavg | local.lr=0.1", "fedavg | local.lr=0.2"], BASE)
    with pytest.raises(ConfigError, match="matches several"):
        baseline_of(twice, "fedavg")


def test_a_budget_goes_into_the_configuration_and_is_found_there():
    config, budget = apply_budget(BASE, Budget("bytes", 1e6))
    assert (config.stop.bytes, budget) == (1_000_000, Budget("bytes", 1_000_000))
    assert apply_budget(BASE.replace(**{"stop.flops": 5.0}), None)[1] == Budget("flops", 5.0)
    assert apply_budget(BASE, check_target(0.8))[0].stop.accuracy == 0.8
    with pytest.raises(ConfigError, match="give one of them"):
        apply_budget(BASE.replace(**{"stop.flops": 5.0}), Budget("bytes", 5))
    with pytest.raises(ConfigError, match="two ends of a run"):
        apply_budget(BASE.replace(**{"stop.flops": 5.0, "stop.bytes": 5}), None)


@pytest.mark.parametrize("target", [0, -0.1, 1.01, 80, True])
def test_a_target_is_a_share(target):
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        check_target(target)


def test_the_audited_share():
    assert [audit_share(given) for given in (False, True, 0.5, 1.0)] == [None, 0.25, 0.5, 1.0]
    for wrong in (0, -1, 1.5):
        with pytest.raises(ConfigError, match="above 0 and at most 1"):
            audit_share(wrong)


def test_the_command_of_a_comparison_asks_for_the_same_again():
    asked = make_request(
        ["scaffold", "fedprox | local.lr=0.05"],
        BASE.replace(validation=0.2),
        seeds=(1, 2),
        baseline="scaffold",
        screen=True,
    )
    words = command_of(asked)
    assert (
        words == "fedstrata compare validation=0.2 rounds=4 model=logistic --methods scaffold 'fedprox | local.lr=0.05'"
        " --seeds 1 2 --screen 0.25"
    )


def words(text):
    return list(spread(text.split()))


def test_several_values_after_one_flag():
    assert words("--methods a b --json --seeds 0 1") == [
        "--methods",
        "a",
        "--methods",
        "b",
        "--json",
        "--seeds",
        "0",
        "--seeds",
        "1",
    ]
    assert words("--methods a --methods b") == ["--methods", "a", "--methods", "b"]
    assert words("--methods=a b") == ["--methods", "a", "--methods", "b"]


def test_settings_and_files_after_a_flag_are_settings_and_files():
    assert words("--methods a rounds=5 b my.toml --seeds 0 local.lr=1") == [
        *("--methods", "a", "rounds=5", "--methods", "b", "my.toml", "--seeds", "0", "local.lr=1"),
    ]
    assert list(spread(["--methods", "fedprox(mu=0.1) | local.lr=0.05"])) == [
        "--methods",
        "fedprox(mu=0.1) | local.lr=0.05",
    ]


def test_the_share_of_an_audit_may_be_left_out():
    assert words("--screen --json") == ["--screen", "0.25", "--json"]
    assert words("--screen 0.5 a.toml") == ["--screen", "0.5", "a.toml"]
    assert words("--screen a.toml") == ["--screen", "0.25", "a.toml"]
    assert words("--screen -1 --plain") == ["--screen", "-1", "--plain"]
    assert words("--screen 1e-1") == ["--screen", "1e-1"]
    assert words("--screen=1") == ["--screen=1"]


@pytest.mark.parametrize("text", ["--methods", "--seeds --json", "--methods rounds=5"])
def test_a_flag_without_values_is_refused(text):
    with pytest.raises(ConfigError, match="has no value"):
        words(text)
