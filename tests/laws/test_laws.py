"""All laws over every registered method and every example.

No filter, no skip: whoever registers a method inherits them. ``make test`` holds the first example of each method to
each law; ``make test-all`` holds every example to each law on every toy and under every executor.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedstrata.methods import Limit, rows
from fedstrata.testing import laws
from fedstrata.testing.laws import (
    a_lost_round_changes_nothing,
    absent_clients_keep_their_state,
    batched_equals_looped,
    batched_serves,
    carried_over_state_is_all_state,
    counted_messages,
    executor_changes_no_bit,
    limit_is_exact,
    mapped_states_change_no_bit,
    pieces_are_values,
    reply_order_is_irrelevant,
    text_comes_back,
    untouched_stays_untouched,
)
from helpers.examples import EXAMPLES, every_example
from helpers.tiers import tiered

LIMITS = [row.limit for row in rows() if isinstance(row.limit, Limit)]
full = pytest.mark.full


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_limit_is_exact(limit):
    limit_is_exact(limit)


@every_example
def test_batched_equals_looped(example):
    batched_equals_looped(example)


@every_example
@pytest.mark.parametrize("toy", tiered(["batch", "dropout", "images"], ["images"]))
def test_batched_equals_looped_or_is_refused_with_a_reason(example, toy):
    batched_serves(example, toy)


@every_example
@pytest.mark.parametrize(
    ("executor", "workers"),
    [
        pytest.param("threads", 1, marks=full),
        ("threads", 2),
        pytest.param("processes", 1, marks=full),
        ("processes", 2),
    ],
)
def test_the_executor_changes_no_bit(example, executor, workers):
    executor_changes_no_bit(example, executor, workers)


@every_example
@pytest.mark.parametrize("toy", tiered(["batch", "dropout"], ()))
def test_the_executor_changes_no_bit_with_batch_norm_or_dropout(example, toy):
    executor_changes_no_bit(example, "threads", 2, toy)


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("toy", ["layer", "dropout"])
def test_four_workers_change_no_bit(executor, toy):
    executor_changes_no_bit("scaffold", executor, 4, toy)


@every_example
@pytest.mark.parametrize("toy", tiered(["layer", "batch"], ("batch",)))
def test_untouched_stays_untouched(example, toy):
    untouched_stays_untouched(example, toy)


@every_example
@pytest.mark.parametrize("toy", tiered(["layer", "batch"], ("batch",)))
def test_carried_over_state_is_all_state(example, toy):
    carried_over_state_is_all_state(example, toy)


@every_example
def test_reply_order_is_irrelevant(example):
    reply_order_is_irrelevant(example)


@every_example
def test_absent_clients_keep_their_state(example):
    absent_clients_keep_their_state(example)


@every_example
def test_a_lost_round_changes_nothing(example):
    a_lost_round_changes_nothing(example)


@pytest.mark.parametrize("text", sorted({*EXAMPLES, *(text for limit in LIMITS for text in (limit.method, limit.of))}))
def test_text_comes_back(text):
    text_comes_back(text)


@every_example
def test_a_mapped_row_store_changes_no_bit(example):
    mapped_states_change_no_bit(example)


@every_example
def test_pieces_are_values(example):
    pieces_are_values(example)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_the_laws_for_users_are_all_of_these(row):
    """Whoever tests a method of his own by `fedstrata.testing.laws` holds it to every law above."""
    offered = {getattr(law.check, "func", law.check) for law in laws(row)}
    offered = {getattr(check, "func", check).__name__ for check in offered}
    (imported,) = (
        node
        for node in ast.parse(Path(__file__).read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module == "fedstrata.testing.laws"
    )
    here = {name.name for name in imported.names} - {"counted_messages"}
    limit = "limit_is_exact" if isinstance(row.limit, Limit) else "no_limit_says_why"
    assert offered == here - {"limit_is_exact"} | {limit, "counted_bytes_are_real"}


READER = """
import hashlib, json, sys
from pathlib import Path
from fedstrata.wire import decode
for path in sorted(Path(sys.argv[1]).iterdir()):
    tensors = decode(path.read_bytes()).tensors
    form = lambda t: f"{t.dtype}{tuple(t.shape)}".encode() + t.contiguous().numpy().tobytes()
    print(json.dumps({n: hashlib.sha256(form(t)).hexdigest() for n, t in tensors.items()}))
"""


@pytest.fixture(scope="module")
def decoded(request, tmp_path_factory):
    """(what left, what another process read) by example: one process decodes the messages of all that are tested."""
    folder: Path = tmp_path_factory.mktemp("letters")
    here = [item for item in request.session.items if item.path == request.path and "decoded" in item.fixturenames]
    letters = {example: counted_messages(example) for example in (item.callspec.params["example"] for item in here)}
    everything = [letter for sent in letters.values() for letter in sent]
    for number, (data, _) in enumerate(everything):
        (folder / f"{number:06d}").write_bytes(data)
    found = subprocess.run([sys.executable, "-c", READER, str(folder)], capture_output=True, text=True, check=True)
    read = iter([json.loads(line) for line in found.stdout.splitlines()])
    return {example: [(sent, next(read)) for _, sent in letters[example]] for example in letters}


@every_example
def test_counted_bytes_decode_elsewhere_into_what_the_server_applied(example, decoded):
    assert decoded[example]
    for sent, read in decoded[example]:
        assert read == sent
