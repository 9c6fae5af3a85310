"""Export: files that other programs run, a card whose lines run, all or nothing, and a run folder that stays as it
was.
"""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedstrata.common.errors import ConfigError, StateError
from fedstrata.data.federation import Federation
from fedstrata.inference import export, load, open_run
from fedstrata.inference import export as package_export
from helpers import lab
from helpers.finished_runs import command, digest, quick, toy_run
from inference.test_module import Unit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A short run on real digits, with own tests and held-out clients."""
    return quick(
        tmp_path_factory.mktemp("runs"),
        method="fedper + finetune(steps=2)",
        test="both",
        heldout=0.2,
        validation=0.2,
        clients=12,
    )


def test_all_files_say_what_the_runs_evaluation_says(folder, tmp_path):
    made = export(folder, tmp_path / "out", 3, "all")
    assert set(made.files) == {"model.safetensors", "model.pt2", "model.onnx", "signature.json", "MODEL_CARD.md"}
    assert {p.name for p in made.folder.iterdir()} == set(made.files)
    found = open_run(folder)
    test = found.federation.test
    index = torch.arange(len(test))
    x, wanted = test.take(index), found.engine.evaluator.predict(found.engine.worker, found.params(3), test, index)
    module = load(folder, 3)
    assert torch.allclose(module(x), wanted, atol=1e-5)
    assert torch.allclose(torch.export.load(str(made.folder / "model.pt2")).module()(x), wanted, atol=1e-5)
    session = onnxruntime.InferenceSession(str(made.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0], wanted.numpy(), atol=1e-5)
    module.load_state_dict({name: torch.zeros_like(value) for name, value in module.state_dict().items()})
    module.load_state_dict(load_file(made.folder / "model.safetensors"))
    assert torch.allclose(module(x), wanted, atol=1e-5)
    assert max(made.difference.values()) < 1e-5


@pytest.mark.full
def test_a_program_needs_nothing_of_ours(folder, tmp_path):
    out = export(folder, tmp_path / "out").folder
    lines = (
        'import sys, torch\nm = torch.export.load("model.pt2").module()\nprint(tuple(m(torch.zeros(5, 1, 8, 8)).shape),'
        ' "fedstrata" in sys.modules)'
    )
    told = subprocess.run([sys.executable, "-c", lines], cwd=out, capture_output=True, text=True, check=True)
    assert told.stdout == "(5, 10) False\n"


def test_the_program_of_a_changed_model_holds_the_change(tmp_path):
    run, live, given = toy_run(tmp_path, Unit(), "batch")
    made = export(run, tmp_path / "out", **given)
    x = given["federation"].test.x
    wanted = live.evaluator.predict(live.worker, live.serving.model(), given["federation"].test, torch.arange(30))
    assert torch.allclose(torch.export.load(str(made.folder / "model.pt2")).module()(x), wanted, atol=1e-5)
    assert json.loads((made.folder / "signature.json").read_text())["changed_by"] == ["unit"]
    assert "the weights alone are not the model" in (made.folder / "MODEL_CARD.md").read_text()


@pytest.mark.full
def test_every_block_of_the_card_runs(folder, tmp_path):
    out = export(folder, tmp_path / "out", None, "all").folder
    blocks = re.findall(r"```python\n(.*?)```", (out / "MODEL_CARD.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    told = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=out, capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines() == ["torch.Size([2, 10])", "(2, 10)", "4"]


def test_the_card_tells_scores_data_training_costs_and_hashes(folder, tmp_path):
    made = export(folder, tmp_path / "out", 3)
    text, found = (made.folder / "MODEL_CARD.md").read_text(), open_run(folder)
    summary = found.result.summary
    for title in (
        "Use",
        "Input and output",
        "Scores",
        "Data",
        "Training",
        "Costs",
        "Limits",
        "Intended use",
        "Licence",
        "Versions and hashes",
    ):
        assert f"\n## {title}\n" in text
    assert f"| {summary['accuracy']['final']:.4f} | 359 samples of the server's test set |" in text
    n = len(found.federation.testing(3)[1])
    assert (
        f"| this model, on the client's test split | {found.result.clients[3]['personal']:.4f} | {n} samples |" in text
    )
    assert "the test splits of 2 held-out clients" in text
    assert "Arivazhagan et al., 2019" in text
    assert "`test=both`" in text
    assert summary["model_sha256"] in text
    assert "label skew" in text
    assert all(made.files[name] in text for name in made.files if name != "MODEL_CARD.md")
    assert "nan" not in text.lower().replace("finance", "")


def test_names_of_the_user_are_no_markdown(tmp_path):
    x, y, client = lab.arrays()
    data = Federation.of(
        x.numpy(), y.numpy(), client=[f"a|b*{int(c)}" for c in client], labels=("x|y", "<b>", "`c`"), testing="own"
    )
    run, _, given = toy_run(tmp_path, "fedavg", (data, lab.small()))
    text = (export(run, tmp_path / "out", 1, "safetensors", **given).folder / "MODEL_CARD.md").read_text()
    assert r"client 1 (a\|b\*1)" in text
    assert r"x\|y, \<b\>, \`c\`" in text


def test_the_signature_tells_shapes_labels_and_normalisation(tmp_path):
    run = quick(tmp_path, data="wine", model="logistic", clients=4)
    told = json.loads((export(run, tmp_path / "out", None, "safetensors").folder / "signature.json").read_text())
    assert told["input"] == {"shape": ["batch", 13], "dtype": "float32", "tokens_below": None}
    assert told["output"]["shape"] == ["batch", 3]
    assert told["labels"] == ["0", "1", "2"]
    numbers = told["before_the_model"]["normalisation"]["numbers"]
    assert numbers[0]["column"] == "alcohol"
    assert 12 < numbers[0]["mean"] < 14
    assert set(told["files"]["model.safetensors"]) == {"bytes", "sha256"}


def test_the_same_run_gives_the_same_bytes(folder, tmp_path):
    one, two = export(folder, tmp_path / "one", 2), export(folder, tmp_path / "two", 2)
    assert one.files == two.files


@pytest.mark.parametrize("client", [None, 3])
def test_nothing_of_the_run_folder_is_changed(folder, tmp_path, client):
    before = digest(folder)
    export(folder, tmp_path / "out", client)
    load(folder, client)
    assert digest(folder) == before


@pytest.mark.parametrize(
    ("settings", "single"), [({"bn": "batch"}, True), ({"model": "mobilenet(track=false)"}, False), ({}, None)]
)
def test_norms_that_look_at_the_batch_are_said_to_do_so(tmp_path, settings, single):
    run = quick(
        tmp_path,
        clients=2,
        cohort=2,
        rounds=1,
        **{"model": "mlp", "local.epochs": None, "local.steps": 1, "norm": "batch"} | settings,
    )
    told = json.loads((export(run, tmp_path / "out", None, "safetensors").folder / "signature.json").read_text())[
        "batch_norm"
    ]
    assert ("outputs depend on the other samples" in told) == (single is not None)
    assert ("a single sample" in told) == bool(single)


# ---- refusals


def test_a_folder_in_use_and_the_run_folder_are_refused(folder, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists; remove it"):
        export(folder, tmp_path / "full")
    with pytest.raises(ConfigError, match="lies in the run folder"):
        export(folder, folder / "export")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert export(folder, tmp_path / "empty", None, "safetensors").folder.is_dir()


def test_a_failure_leaves_no_half_written_folder(folder, tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["fedstrata.inference.export"], "card", fails)
    with pytest.raises(StateError, match="No space left on device"):
        package_export(folder, tmp_path / "out", None, "safetensors")
    assert list(tmp_path.iterdir()) == []


class Fickle(nn.Module):
    """Its path hangs on its values."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(lab.FEATURES, 5), nn.Linear(5, lab.CLASSES)

    def forward(self, x):
        z = self.first(x)
        return self.head(torch.relu(z) if z.sum() > 0 else z)


def test_a_model_that_cannot_be_traced_is_refused_with_the_reason_and_the_way_out(tmp_path):
    run, _, given = toy_run(tmp_path, "fedavg", (lab.federation(), lab.filled(Fickle())))
    with pytest.raises(ConfigError, match=r"torch.export cannot trace this model: .+ --format safetensors"):
        export(run, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()
    assert set(export(run, tmp_path / "out", None, "safetensors", **given).files) == {
        "model.safetensors",
        "signature.json",
        "MODEL_CARD.md",
    }


def test_a_program_that_computes_something_else_is_not_written(folder, tmp_path, monkeypatch):
    module = sys.modules["fedstrata.inference.export"]
    exact = module.program_of

    def wrong(model, x):
        with torch.no_grad():
            next(model.parameters()).add_(0.01)
        return exact(model, x)

    monkeypatch.setattr(module, "program_of", wrong)
    with pytest.raises(StateError, match=r"the torch.export program differs from the run's evaluation by"):
        package_export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_the_extra_onnx_is_refused_with_the_line_to_type(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs onnx, onnxscript, onnxruntime: pip install 'fedstrata\[onnx\]'"):
        export(folder, tmp_path / "out", None, "onnx")


def test_bf16_runs_are_exported_in_float32_and_the_card_says_so(tmp_path):
    run = quick(tmp_path, **{"local.precision": "bfloat16"})
    made = export(run, tmp_path / "out")
    assert "The run computed in bfloat16" in (made.folder / "MODEL_CARD.md").read_text()
    assert all(t.dtype == torch.float32 for t in load_file(made.folder / "model.safetensors").values())


# ---- the command


def test_the_command_writes_and_tells_in_json(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert command("export", folder, "--client", 3, "--format", "safetensors", "--json") == 0
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert told["folder"] == "export/run-client-3"
    assert told["client"] == 3
    assert set(told["files"]) == {p.name for p in Path(told["folder"]).iterdir()}


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--client", "99"], "there is no client '99'; clients are 0 to 11."),
        (["--format", "pickle"], "--format is 'pickle'"),
        (["--root", "/nowhere", "--client", "x"], "there is no client 'x'"),
    ],
)
def test_the_command_refuses_in_one_line(folder, tmp_path, capfd, extra, said):
    assert command("export", folder, "--out", tmp_path / "out", *extra) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err
    assert not (tmp_path / "out").exists()


def test_programs_are_written_and_never_read():
    source = Path(__file__).parents[2] / "src" / "fedstrata" / "use"
    text = "".join(path.read_text() for path in source.rglob("*.py"))
    calls = [line for line in text.splitlines() if "torch.export.load(" in line or "torch.load(" in line]
    assert all("yield '" in line for line in calls), "only the card's own example reads one"
    assert io.BytesIO  # torch.export.save writes into memory first
