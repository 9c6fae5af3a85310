"""Configuration: names, precedence, inheritance, round trips, and errors that teach."""

import re
import tomllib

import pytest

from fedstrata.common.call_syntax import parse_call
from fedstrata.common.errors import ConfigError
from fedstrata.common.suggest import near
from fedstrata.config.config import KEYS, MODELS, NON_RESULT_SETTINGS, Config
from fedstrata.config.fields import flatten
from fedstrata.config.sections import LocalSettings
from fedstrata.data.types import Task

DESIGN = [
    "method",
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
    "bn",
    "weighting",
    "local.epochs",
    "local.steps",
    "local.draw",
    "local.batch",
    "local.lr",
    "local.optimizer",
    "local.momentum",
    "local.weight_decay",
    "local.clip",
    "local.precision",
    "local.threads",
    "schedule",
    "finetune.epochs",
    "finetune.steps",
    "finetune.lr",
    "finetune.groups",
    "eval.every",
    "quorum",
    "seed",
    "executor",
    "workers",
    "out",
    "name",
]


def refusal(*overrides: str, path=None) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.read(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_every_documented_key_exists_with_a_default_and_a_meaning():
    assert set(DESIGN) <= set(KEYS)
    added = {"client_state", "max_update_norm", "checkpoint.every", "measures", "local.activation_cache_mb"}
    added |= {
        "new_clients.steps",
        "new_clients.lr",
        "new_clients.groups",
        "stop.bytes",
        "stop.flops",
        "stop.seconds",
        "stop.accuracy",
    }
    assert set(KEYS) - set(DESIGN) - {"track"} == added
    for key in KEYS.values():
        assert key.meaning, key.name
    assert all(name in KEYS for name in NON_RESULT_SETTINGS)


def mutations(name: str) -> dict[str, str]:
    *sections, last = name.split(".")
    mid = max(1, len(last) // 2)
    swapped = last[: mid - 1] + last[mid] + last[mid - 1] + last[mid + 1 :]
    if swapped == last:
        swapped = last[1] + last[0] + last[2:]
    here = ".".join([*sections, ""])
    return {
        "drop letter": here + last[:mid] + last[mid + 1 :],
        "swap": here + swapped,
        "case": name.title() if name.title() != name else name.upper(),
        "hyphen": name.replace("_", "-") if "_" in name else f"{name[:-1]}-{name[-1]}",
        "wrong level": last if sections else f"local.{last}",
    }


def test_a_mistyped_key_is_refused_and_the_right_one_is_among_three_suggestions():
    """Faults D10: every key, five mutations each, on the command line and in a file."""
    tried, right = 0, 0
    for name in KEYS:
        for kind, wrong in mutations(name).items():
            message = refusal(f"{wrong}=1")  # `norm` is a key and refuses the number
            assert (repr(wrong) if wrong not in KEYS else wrong) in message, (kind, message)
            tried += 1
            offered = re.findall(r"'([^']+)'", message.partition("Did you mean")[2])
            assert len(offered) <= 3
            right += name in offered
    assert tried == 5 * len(KEYS)
    assert right / tried >= 0.95, f"{right} of {tried}"


def test_a_mistyped_key_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('metod = "fedavg"\n')
    message = refusal(path=path)
    assert "'metod' (mine.toml)" in message
    assert "'method'" in message


def test_command_line_holds_over_file_over_base_over_default(tmp_path):
    (tmp_path / "common.toml").write_text("rounds = 7\nseed = 1\n[local]\nlr = 0.5\nbatch = 4\n")
    (tmp_path / "mine.toml").write_text('base = "common"\nseed = 2\nlocal.lr = 0.25\n')
    config = Config.read(tmp_path / "mine.toml", ["seed=3"])
    assert (config.rounds, config.seed, config.local.lr, config.local.batch) == (7, 3, 0.25, 4)
    assert config.method == Config().method


def test_bases_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a.toml").write_text('base = "b"\n')
    (tmp_path / "b.toml").write_text('base = "a"\n')
    assert "circle (a.toml -> b.toml -> a.toml)" in refusal(path=tmp_path / "a.toml")


@pytest.mark.parametrize("base", ['"../other"', '"/etc/passwd"', "3", '""'])
def test_a_base_outside_the_folder_is_refused(tmp_path, base):
    (tmp_path / "a.toml").write_text(f"base = {base}\n")
    assert "in the same folder" in refusal(path=tmp_path / "a.toml")


def test_a_missing_file_names_the_near_one(tmp_path):
    (tmp_path / "digits.toml").write_text("")
    assert "'digits.toml'" in refusal(path=tmp_path / "digit.toml")


def test_data_root_beside_data_must_be_quoted_and_the_message_says_so(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('data = "cifar10"\ndata.root = "x"\n')
    assert '"data.root" = ' in refusal(path=path)
    path.write_text('data = "cifar10"\n"data.root" = "x"\n')
    assert Config.read(path).data_root == "x"


def test_a_key_spelt_with_a_dot_and_in_a_table_is_refused(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('"local.lr" = 0.1\n[local]\nlr = 0.2\n')
    assert "local.lr is given twice" in refusal(path=path)


def test_toml_round_trip_keeps_every_value():
    config = Config(
        method="fedprox(mu=0.01) + fedavgm",
        data_root='a "quoted"\\folder\twith é\x7f',
        local={"steps": 7, "lr": 1e-5, "clip": 2},
        finetune_epochs=2,
        finetune_groups="role:head",
        quorum=0.5,
        clients=30,
        workers=2,
        max_update_norm=10.0,
    )
    assert _read_text(config.to_toml()) == config
    assert _read_text(Config().to_toml()) == Config()


def _read_text(text):
    return Config(**flatten(tomllib.loads(text)))


def test_python_spellings_mean_the_same():
    by_table = Config(local={"lr": 0.5}, **{"data.root": "x"})
    assert (
        by_table
        == Config(local_lr=0.5, data_root="x")
        == Config(**{"local.lr": 0.5, "data.root": "x"})
        == Config(local=LocalSettings(lr=0.5), data_root="x")
    )


def test_text_and_numbers_are_read_by_the_type_of_the_key():
    config = Config.read(
        None,
        [
            "rounds=1_000",
            "local.lr=1e-3",
            "local.clip=none",
            "quorum=3",
            "workers=auto",
            "partition=dirichlet(alpha=0.1)",
            "norm=none",
        ],
    )
    assert (config.rounds, config.local.lr, config.local.clip, config.quorum, config.norm) == (
        1000,
        0.001,
        None,
        3,
        "none",
    )
    assert config.partition == "dirichlet(alpha=0.1)"
    assert isinstance(Config.read(None, ["quorum=1.0"]).quorum, float)


def test_a_value_with_an_equals_sign_is_kept_whole():
    assert Config.read(None, ["method=fedprox(mu=0.1)"]).method == "fedprox(mu=0.1)"


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("rounds=1.5", "an integer, at least 1"),
        ("rounds=0", "an integer, at least 1"),
        ("rounds=many", "an integer, at least 1"),
        ("local.lr=0", "a number, above 0"),
        ("local.lr=nan", "a number, above 0"),
        ("local.lr=inf", "a number, above 0"),
        ("validation=1", "below 1"),
        ("quorum=1.5", "at most 1"),
        ("quorum=-1", "at least 0"),
        ("seed=-1", "at least 0"),
        ("test=sever", "Did you mean 'server'"),
        ("schedule=cosin", "Did you mean 'cosine'"),
        ("schedule=step(rounds=[3, 2])", "step.rounds is [3, 2]"),
        ("partition=dirichlet(alpha", "name(key=value)"),
        ("method=__import__('os').system('true')", "cannot read"),
        ("name=../x", "a folder name"),
        ("name=", "a folder name"),
        ("local.momentum=1", "below 1"),
    ],
)
def test_a_value_that_cannot_be_meant_names_key_value_and_remedy(override, wanted):
    message = refusal(override)
    key, _, value = override.partition("=")
    assert key in message
    assert wanted in message
    assert value[:4] in message


@pytest.mark.parametrize("value", ["1" + 400 * "0", "1" + 400 * "0" + "/3", "[1, -1" + 30 * "0" + "]"])
def test_numbers_beyond_64_bits_are_refused(value):
    with pytest.raises(
        ConfigError, match=r"the whole number 10000000000.* is beyond 64 bits; the largest is 9223372036854775807"
    ):
        parse_call(f"fedprox(mu={value})")


def test_source_of_a_wrong_value_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("rounds = 0\n")
    assert "rounds is 0 (mine.toml); it is an integer, at least 1." in refusal(path=path)
    assert "local.lr is -1.0 (command line)" in refusal("local.lr=-1")


@pytest.mark.parametrize("value", [True, "3", 3.0, None, [3]])
def test_values_in_python_are_not_converted(value):
    with pytest.raises(ConfigError, match=r"rounds is .*; it is an integer, at least 1\."):
        Config(rounds=value)


@pytest.mark.parametrize("section", ["local", "finetune"])
def test_epochs_and_steps_exclude_each_other(section):
    assert "exclude each other" in refusal(f"{section}.epochs=1", f"{section}.steps=1")
    with pytest.raises(ConfigError, match="exclude each other"):
        Config(**{section: {"epochs": 1, "steps": 2}})


def test_steps_on_the_command_line_replace_epochs_of_the_file(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[local]\nepochs = 3\n")
    assert Config.read(path, ["local.steps=5"]).local == LocalSettings(steps=5)
    assert Config(local_epochs=3).replace(local_steps=5).local.epochs is None


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["cohort=5", "clients=4"], "more clients than there are"),
        (["workers=2", "executor=loop"], "one client at a time"),
        (["local.optimizer=adam", "local.momentum=0.9"], "separate moments"),
        (["finetune.lr=0.1"], "no effect"),
        (["local.epochs=none"], "give one of the two"),
        (["rounds=1", "rounds=2"], "given twice"),
        (["--rounds=2"], "rounds=2"),
        (["rounds"], "not key=value"),
        (["local=1"], "group of settings"),
    ],
)
def test_settings_that_cannot_go_together_are_refused(overrides, reason):
    assert reason in refusal(*overrides)


def test_digest_follows_what_decides_the_result_and_nothing_else():
    config = Config()
    assert config.digest() == Config(out="elsewhere", name="x", workers=1, data_root="/data").digest()
    changes = {"rounds": 31, "seed": 1, "method": "fedprox(mu=0.1)", "local.lr": 0.2, "bn": "local", "eval.every": 2}
    assert len({config.digest(), *(config.replace(**{k: v}).digest() for k, v in changes.items())}) == len(changes) + 1


def test_differences_name_each_field():
    (rounds, lr) = Config().differences(Config(rounds=3, local_lr=0.5))
    assert str(rounds) == "rounds: 100 here, 3 there"
    assert (lr.key, lr.theirs) == ("local.lr", 0.5)
    assert Config().differences(Config()) == ()


def test_config_is_frozen():
    with pytest.raises(Exception, match="frozen"):
        Config().rounds = 3


def test_cohort_and_quorum_are_counted_from_what_there_is():
    assert Config().cohort_of(4) == 4
    assert Config().cohort_of(100) == 10
    with pytest.raises(ConfigError, match="cohort=3 or less"):
        Config(cohort=5).cohort_of(3)
    assert [Config(quorum=q).needed(10) for q in (0, 3, 0.25, 1.0)] == [1, 3, 3, 10]
    with pytest.raises(ConfigError, match="quorum is 11"):
        Config(quorum=11).needed(10)


def test_auto_model_follows_the_data():
    image = Task("classification", (3, 32, 32), 10)
    assert Config().model_for(image) == MODELS["digits"]
    assert Config(data="folder(path='x')").model_for(image) == "cnn"
    assert Config(data="table(path='x')").model_for(Task("regression", (12,), 1)) == "mlp"
    assert Config(data="mine").model_for(Task("classification", (80,), 4, vocabulary=99)) == "transformer"
    assert Config(model="lenet").model_for(image) == "lenet"


def test_auto_partition_is_dirichlet_for_data_without_clients():
    federation = Config().federation()
    assert federation.clients == 20
    assert "dirichlet(alpha=0.3" in federation.partition.law
    assert federation.fingerprint == Config(partition="dirichlet(alpha=0.3)", clients=20).federation().fingerprint


def test_near_prefers_the_same_name_on_another_level():
    assert near("lr", KEYS)[:2] == ["finetune.lr", "local.lr"]
    assert near("data-root", KEYS, 1) == ["data.root"]


@pytest.mark.parametrize("key", KEYS)
def test_row_63_a_value_of_the_wrong_type_names_its_key(key):
    for value in ([], {"a": 1}, object()):
        with pytest.raises(ConfigError) as caught:
            Config(**{key: value})
        assert key in str(caught.value)
        assert "\n" not in str(caught.value)
