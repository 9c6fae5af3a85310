"""Write MODEL_CARD.md: what a reader must know about a model, from the files of its run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedstrata.analysis.scores import ACCURACIES
from fedstrata.common.units import duration, number, size, work
from fedstrata.config.config import KEYS, NON_RESULT_SETTINGS
from fedstrata.data.statistics.facts import Facts, facts_of
from fedstrata.inference.finished_run import Finished
from fedstrata.methods import source_of
from fedstrata.runs.result import manifest

CLASSES = 30  # classes that the card lists


def card(
    finished: Finished,
    client: int | None,
    described: Mapping[str, Any],
    hashes: Mapping[str, str],
    notes: Sequence[str],
) -> str:
    """Write the card as Markdown.

    Args:
        finished: the run.
        client: whose model it is; None for the shared one.
        described: the content of signature.json.
        hashes: SHA-256 of the files beside the card.
        notes: for the user.
    """
    facts = facts_of(finished.federation, features=False)
    sections = {
        "Use": _use(described, hashes),
        "Input and output": _reads(described),
        "Scores": _scores(finished, client, facts),
        "Data": _data(facts),
        "Training": _training(finished),
        "Costs": _costs(finished),
        "Limits": _limits(finished, client, described, facts, notes),
        "Intended use": _intended(),
        "Licence": _licence(),
        "Versions and hashes": _versions(finished, hashes),
    }
    blocks = [f"# Model card: {_text(finished.result.name)}", _what(finished, client, facts)]
    for title, lines in sections.items():
        blocks += [f"## {title}", "\n".join(lines)]
    return "\n\n".join(blocks) + "\n"


def _text(value: object) -> str:
    """Escape Markdown and line breaks: names of clients, classes and files come from the user."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", plain)


def _what(finished: Finished, client: int | None, facts: Facts) -> str:
    parts, summary = finished.engine.parts, finished.result.summary
    origin = " (given from Python)" if "module" in manifest(finished.folder).get("custom", ()) else ""
    whose = "The shared model" if client is None else f"The model of client {_text(finished.client_label(client))}"
    return (
        f"{whose} of a federated run:"
        f" `{parts.config.model_for(finished.federation.task)}`{origin}"
        f" with {parts.parameters:,} parameters, trained by `{summary['method']}` on {_text(facts.name)}, dealt to"
        f" {facts.clients:,} clients, in {summary['rounds']} rounds (seed {summary['seed']})."
    )


def _use(described: Mapping[str, Any], hashes: Mapping[str, str]) -> Iterator[str]:
    shape = ", ".join(map(str, described["input"]["shape"][1:]))
    dtype = described["input"]["dtype"]
    yield "Run these lines in the folder of this card."
    if "model.pt2" in hashes:
        yield from ("", "```python", "import torch", "")
        yield 'model = torch.export.load("model.pt2").module()'
        yield f"x = torch.zeros(2, {shape}, dtype=torch.{dtype})  # samples, prepared as signature.json says"
        yield from ("print(model(x).shape)", "```")
    if "model.onnx" in hashes:
        yield from ("", "```python", "import numpy", "import onnxruntime", "")
        yield 'session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])'
        yield f"x = numpy.zeros((2, {shape}), dtype=numpy.{dtype})"
        yield from ("print(session.run(None, {session.get_inputs()[0].name: x})[0].shape)", "```")
    yield from ("", "The weights by name, for your network (`load_state_dict`):", "", "```python")
    yield from (
        "from safetensors.torch import load_file",
        "",
        'weights = load_file("model.safetensors")',
        "print(len(weights))",
        "```",
    )
    if described["changed_by"]:
        yield ""
        yield (
            f"`{', '.join(described['changed_by'])}` changes what the model computes, so the weights alone are not the"
            " model: use a program, or `fedstrata.inference.load`."
        )


def _reads(described: Mapping[str, Any]) -> Iterator[str]:
    before = described["before_the_model"]
    kind = (
        f"tokens below {described['input']['tokens_below']}"
        if described["input"]["tokens_below"]
        else described["input"]["dtype"]
    )
    yield f"- Input: [{', '.join(map(str, described['input']['shape']))}], {kind}."
    rule = (before.get("normalisation") or {}).get("rule")
    yield (
        f"- Before the model: {_text(rule) if rule else 'nothing; samples are read as they are'}. signature.json has"
        " the numbers."
    )
    if before.get("fit"):
        yield f"- Pictures: {_text(before['fit'])}."
    yield f"- Output: [{', '.join(map(str, described['output']['shape']))}], {described['output']['meaning']}."
    if described["labels"]:
        names = described["labels"]
        yield (
            "- Classes:"
            f" {', '.join(_text(n) for n in names[:CLASSES])}"
            f"{f', ... ({len(names)} in all)' if len(names) > CLASSES else ''}."
        )
    if described["after_the_model"]:
        target = described["after_the_model"]
        yield f"- To get the units of the data, compute value * {target['std']:.6g} + {target['mean']:.6g}."
    if described["batch_norm"]:
        yield f"- Batch norms: {described['batch_norm']}."


def _scores(finished: Finished, client: int | None, facts: Facts) -> Iterator[str]:
    summary = finished.result.summary
    clients = sum(
        1
        for i, s in finished.result.clients.items()
        if s.get("personal") is not None and i not in finished.federation.heldout
    )
    server = (
        f"{facts.test:,} samples of the server's test set" if facts.test else f"the test splits of {clients:,} clients"
    )
    rows: list[tuple[str, float | None, str]] = []
    whose = "" if client is None else "the run: "
    if client is not None:
        held = finished.federation.testing(client)
        scores, n = finished.result.clients.get(client, {}), 0 if held is None else len(held[1])
        rows.append(("this model, on the client's test split", scores.get("personal"), f"{n:,} samples"))
        rows.append(("the shared model, on the client's test split", scores.get("shared"), f"{n:,} samples"))
    for key, value in (summary.get("accuracy") or {}).items():
        out = f"the test splits of {facts.heldout:,} held-out clients"
        on = (
            out
            if key.startswith("heldout")
            else f"the test splits of {clients:,} clients"
            if key.startswith("personal")
            else server
        )
        rows.append((whose + ACCURACIES.get(key, key.replace("_", " ")), value, on))
    for key, value in (summary.get("metrics") or {}).items():
        if isinstance(value, int | float) and key != "accuracy":
            rows.append(
                (
                    whose + key.replace("_", " "),
                    value,
                    server if "client" not in key and "personal" not in key else f"{clients:,} clients",
                )
            )
    yield "| score | value | on |"
    yield "|---|---|---|"
    for name, value, on in rows:
        if value is not None:
            yield f"| {_text(name)} | {number(value)} | {on} |"
    yield ""
    if facts.chance is not None:
        yield f"Always predicting the most frequent class of the test data would reach {facts.chance:.4f}."
    yield (
        "All numbers are of one run with one seed; they do not show the spread over seeds (`fedstrata compare` does)."
    )


def _data(facts: Facts) -> Iterator[str]:
    yield (
        f"- {_text(facts.name)}: {facts.train:,} training samples, {facts.validation:,} for validation, {facts.test:,}"
        " of the server's test set."
    )
    yield (
        f"- Dealt to {facts.clients:,} clients by `{_text(facts.law)}`; {facts.heldout:,} of them were kept out of"
        " training."
    )
    if facts.sizes:
        some = "" if len(facts.sizes) == facts.clients else f" (of {len(facts.sizes)} clients looked at)"
        yield f"- Training samples a client{some}: {min(facts.sizes):,} to {max(facts.sizes):,}."
    if facts.labels and facts.counts:
        totals = [sum(row[k] for row in facts.counts) for k in range(len(facts.labels))]
        shown = ", ".join(
            f"{_text(label)} {n:,}" for label, n in list(zip(facts.labels, totals, strict=True))[:CLASSES]
        )
        yield (
            f"- Training samples by class{'' if len(facts.sizes) == facts.clients else ', of those clients'}: {shown}."
        )
    skew = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in facts.skew.items() if value is not None)
    yield f"- Skew between clients: {skew or 'not measured'}. `fedstrata doctor` explains these numbers."
    yield "- Where the data come from, and under which terms, is for the publisher of this model to state."


def _training(finished: Finished) -> Iterator[str]:
    parts, summary = finished.engine.parts, finished.result.summary
    yield f"- Method: `{summary['method']}`."
    for piece in parts.method.pieces:
        yield f"  - {piece.name}: {_text(source_of(piece) or 'no publication is named')}."
    yield f'- What to cite: `fedstrata cite "{summary["method"]}"` prints it as BibTeX.'
    stopped = summary.get("stopped_by")
    yield (
        f"- Rounds: {summary['rounds']}{f', ended by {stopped}' if stopped else ''}; {parts.setup.cohort} clients a"
        " round."
    )
    if summary.get("rounds_without_update"):
        yield f"- Rounds without an update: {summary['rounds_without_update']}."
    given = parts.config.flat()
    changed = [
        f"`{k}={given[k]}`"
        for k in KEYS
        if k not in NON_RESULT_SETTINGS and given[k] != KEYS[k].default and k != "rounds"
    ]
    yield f"- Settings besides the defaults: {', '.join(changed) or 'none'}."
    if custom := manifest(finished.folder).get("custom"):
        yield f"- Given from Python, and therefore not in the configuration: {', '.join(custom)}."


def _costs(finished: Finished) -> Iterator[str]:
    s = finished.result.summary
    yield f"- Sent by clients: {size(s.get('bytes_up'))} (and {size(s.get('framing_up'))} of framing)."
    yield f"- Sent to clients: {size(s.get('bytes_down'))} (and {size(s.get('framing_down'))} of framing)."
    yield (
        f"- Clients' training: {work(s.get('flops'))}, {duration(s.get('seconds'))} with {s.get('executor')},"
        f" {s.get('workers')} worker(s)."
    )


def _limits(
    finished: Finished, client: int | None, described: Mapping[str, Any], facts: Facts, notes: Sequence[str]
) -> Iterator[str]:
    if client is not None:
        yield (
            "- This model was formed for one client, on its data where the method trains on them: treat it as"
            " confidential as those data."
        )
    else:
        yield (
            "- A model that was trained on clients' data may reveal something about single samples; nothing here limits"
            " that."
        )
    if finished.engine.parts.config.local.precision != "float32":
        yield (
            "- The run computed in bfloat16; the files here compute in float32; outputs differ from its evaluation in"
            " the third digit."
        )
    worst = max(described["difference"].values())
    yield f"- On real samples the files differ from the run's evaluation by at most {worst:.1e} of the largest output."
    refused = finished.result.summary.get("refused") or {}
    if refused:
        yield (
            f"- Replies left out in training: {', '.join(f'{count} {_text(code)}' for code, count in refused.items())}."
        )
    for note in dict.fromkeys((*notes, *facts.notes)):
        yield f"- {_text(note)}"


def _intended() -> Iterator[str]:
    yield (
        "_To be written by the publisher of this model: its intended users and uses, uses that are ruled out, and who"
        " was consulted._"
    )


def _licence() -> Iterator[str]:
    yield (
        "_To be filled in by the publisher of this model, from the terms of the data and of the network. Nothing here"
        " grants a licence._"
    )


def _versions(finished: Finished, hashes: Mapping[str, str]) -> Iterator[str]:
    record = manifest(finished.folder)
    for name, value in (record.get("versions") or {}).items():
        yield f"- {_text(name)}: {_text(value)}"
    yield f"- configuration: `{record['digest']}`"
    yield f"- data and partition: `{record['fingerprint']}`"
    yield f"- model of the run: `{finished.result.summary['model_sha256']}`"
    for name, digest in hashes.items():
        yield f"- {name}: `{digest}`"
