"""Rounds in which something goes wrong that the gate cannot see in one reply."""

from dataclasses import dataclass

import pytest
import torch

import fedstrata
from fedstrata.core.piece import Piece
from fedstrata.engine.evaluation import passes
from fedstrata.wire.gate import finite
from helpers import lab
from helpers.examples import Raises, in_folder, lines

TINY = {
    "clients": 5,
    "cohort": 2,
    "rounds": 2,
    "local_epochs": 1,
    "executor": "loop",
    "model": "mlp(hidden=8)",
    "norm": "batch",
}


@pytest.mark.parametrize("method", ["fedbabu(epochs=1)", "perfedavg", "finetune(steps=1)", "ditto"])
@pytest.mark.parametrize(
    "settings", [{"partition": "overlap(size=1)"}, {"partition": "overlap(size=2)", "validation": 0.5}]
)
def test_a_client_with_one_sample_and_a_batch_norm_is_tested_on_the_model_it_was_sent(tmp_path, method, settings):
    result = fedstrata.run(method, test="both", out=str(tmp_path), **TINY | settings)
    assert result.summary["refused"] == {"single": 4}
    assert result.summary["rounds_without_update"] == 2
    assert result.summary["accuracy"]["personal"] is not None


@dataclass(frozen=True)
class Overflows(Piece):
    """A server step that leaves float32 in round 1."""

    def merge(self, step, ctx):
        return (step if ctx.round == 0 else step * 1e38 * 1e38), ctx.state


def test_a_server_step_that_is_not_finite_leaves_the_model_as_it_was():
    made = lab.engine(lab.parts(Overflows(), rounds=3))
    first, second, third = made.rounds()
    assert (first["updated"], second["updated"], third["updated"]) == (True, False, False)
    assert {code for _, code, _ in second["refused"]} == {"overflow"}
    assert second["replies"] == 0
    assert finite(made.server.model.flat)
    after_one = lab.play(Overflows(), rounds=1)
    assert torch.equal(made.server.model.flat, after_one.model.flat)


@pytest.mark.parametrize("method", ["fedavgm(lr=1e38)", "fedadam(lr=1e38)"])
def test_a_method_that_overflows_ends_with_a_finite_model(tmp_path, method):
    result = fedstrata.run(method, local_lr=1e6, out=str(tmp_path), **TINY | {"norm": "none", "partition": "iid"})
    assert result.summary["refused"]
    assert finite(result.params.flat)


def raising(error):
    @dataclass(frozen=True)
    class Raises(Piece):
        def objective(self, loss, ctx):
            def bad(p, b):
                raise error("a bug in a user's piece")

            return bad

    return Raises()


@pytest.mark.parametrize(
    "error", [RuntimeError, TypeError, AttributeError, AssertionError, NotImplementedError, StopIteration]
)
@pytest.mark.parametrize("executor", ["loop", "threads", "processes"])
def test_an_error_of_any_type_in_a_piece_is_a_failure_named_alike_by_every_executor(error, executor):
    out = lab.play(raising(error), rounds=1, executor=executor)
    refused = out.rows[0]["refused"]
    assert [code for _, code, _ in refused] == ["raised"] * 3
    assert all(message == f"{error.__name__}: a bug in a user's piece" for _, _, message in refused)


@pytest.mark.parametrize("samples", [1, 2])
def test_norms_that_look_at_the_batch_are_tested_on_one_sample(tmp_path, samples):
    settings = TINY | {"bn": "batch", "partition": f"overlap(size={samples})"}
    result = fedstrata.run(test="both", out=str(tmp_path), **settings)
    assert result.summary["accuracy"]["personal"] is not None


@pytest.mark.parametrize(
    ("samples", "cuts"), [(499, [499]), (500, [500]), (501, [501]), (502, [500, 2]), (1001, [500, 501]), (1, [1])]
)
def test_a_single_sample_is_no_separate_pass(samples, cuts):
    parts = passes(torch.arange(samples))
    assert [len(part) for part in parts] == cuts
    assert torch.equal(torch.cat(parts), torch.arange(samples))


@pytest.mark.parametrize("executor", ["loop", "processes"])
def test_row_72_what_a_client_sends_cannot_break_a_line_of_results(tmp_path, monkeypatch, executor):
    text = 'x"}\n{"round": 9}\x1b[2J{0}%s\u2028\ud800' + "a" * 10_000
    monkeypatch.setattr(
        "fedstrata.engine.assembly.parse_method", lambda _: lab.parse("fedavg") + Raises(RuntimeError(text))
    )
    found = in_folder(tmp_path, lab.TOYS["layer"](), cohort=6, executor=executor)
    written = lines(found.folder)
    assert [row["round"] for row in written] == [0, 1, 2]
    for row in written:
        ((client, code, message),) = row["refused"]
        assert (client, code) == (0, "raised")
        assert message.startswith('RuntimeError: x"}')
        assert len(message) <= 500
    assert found.summary["refused"] == {"raised": 3}


ERRORS = [
    RuntimeError("CUDA out of memory"),
    MemoryError("no memory"),
    OSError(5, "Input/output error"),
    ZeroDivisionError("x"),
    IndexError("y"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("executor", ["loop", "processes"])
def test_t32_a_client_that_raises_is_counted_and_the_others_make_the_model(error, executor):
    found = lab.play(Raises(error), executor=executor, cohort=6)
    twin = lab.play(cohort=6, wrap={"change": lambda replies: [r for r in replies if r.client != 0]})
    assert lab.bits(found.model) == lab.bits(twin.model)
    assert all(row["refused"] == [[0, "raised", f"{type(error).__name__}: {error}"]] for row in found.rows)


@pytest.mark.parametrize(("quorum", "updated"), [(5, True), (6, False), (1.0, False)])
def test_t32_fewer_replies_than_the_quorum_leave_the_model(quorum, updated):
    made = lab.parts(Raises(), cohort=6, quorum=quorum)
    found = lab.play(Raises(), cohort=6, quorum=quorum)
    assert [row["updated"] for row in found.rows] == [updated] * 3
    assert (lab.bits(found.model) == lab.bits(made.setup.model)) is not updated
