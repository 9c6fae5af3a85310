"""Settings that were accepted, or refused without a word that helps: each is one line now, before anything is
written.
"""

import pytest
from torch import nn

import fedstrata
from fedstrata.cli import main
from fedstrata.common.errors import ConfigError, FedstrataError
from fedstrata.config.config import Config
from fedstrata.methods import method

SMALL = {"clients": 4, "cohort": 2, "rounds": 2, "local_epochs": 1, "executor": "loop", "model": "mlp(hidden=8)"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"workers": 10**23}, "at most 1024"),
        ({"local_threads": 10**23}, "at most 1024"),
        ({"out": ""}, "out=. is the current one"),
        ({"out": "a\0b"}, "path of a folder"),
        ({"data_root": ""}, "data.root=. is the current one"),
        ({"test": "client(share=0.2)"}, "own(share=0.2)"),
        ({"test": "own("}, "own(share=0.2)"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_named(settings, says):
    with pytest.raises(ConfigError) as told:
        Config(**settings)
    assert says in str(told.value)


@pytest.mark.parametrize(
    "text", ["fedprox(mu=inf)", "fedprox(mu=1e400)", "fedadam(lr=inf)", "moon(tau=inf)", "ditto(mu=inf)"]
)
def test_an_infinite_hyper_parameter_is_refused(text):
    with pytest.raises(ConfigError, match="is inf; it is"):
        method(text)


@pytest.mark.parametrize("share", ["own", "own(share=0.3)"])
def test_clients_can_keep_samples_of_their_own_for_tests(tmp_path, share):
    result = fedstrata.run(test=share, out=str(tmp_path), **SMALL)
    assert result.summary["accuracy"]["personal"] is not None


@pytest.mark.parametrize("hidden", ["100000000000", "10000000000000000000"])
def test_a_model_larger_than_memory_is_one_line(capsys, hidden):
    with pytest.raises(SystemExit) as end:
        main(["check", f"model=mlp(hidden=[{hidden}])"])
    assert end.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert hidden in said[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "fedrep + scaffold"}, "trains in phases"),
        ({"method": "scaffold + fedrep"}, "trains in phases"),
        ({"method": "fednova + fedrep"}, "trains in phases"),
        ({"method": "fedbabu", "model": "logistic"}, "moves no parameter"),
        ({"method": "pfedme", "local_momentum": 0.5}, "local.momentum=0.5 would have no effect"),
        ({"method": "pfedme", "local_optimizer": "adam", "local_clip": 1.0}, "local.optimizer=adam and local.clip=1.0"),
        ({"local_batch": 1, "norm": "batch"}, "local.batch=2"),
        ({"executor": "batched", "norm": "batch"}, "cannot stack batch norms"),
        ({"executor": "processes", "local_threads": 2}, "local.threads=1"),
    ],
)
def test_a_run_that_cannot_be_meant_leaves_no_folder(tmp_path, settings, says):
    with pytest.raises(FedstrataError) as told:
        fedstrata.run(out=str(tmp_path), **SMALL | settings)
    assert says in str(told.value)
    assert not list(tmp_path.iterdir())


def test_a_batch_of_one_is_trained_where_a_norm_sees_several_pixels(tmp_path):
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))
    result = fedstrata.run(
        module=module, out=str(tmp_path), **SMALL | {"local_batch": 1, "partition": "overlap(size=3)"}
    )
    assert not result.summary["refused"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"workers": 0}, "at least 1"),
        ({"workers": -1}, "at least 1"),
        ({"executor": "nosuch"}, "it is one of auto, loop, threads"),
    ],
)
def test_a_resume_takes_no_executor_or_workers_that_do_not_exist(tmp_path, given, says):
    folder = fedstrata.run(out=str(tmp_path), **SMALL).folder
    with pytest.raises(ConfigError) as told:
        fedstrata.resume(folder, **given)
    assert says in str(told.value)
