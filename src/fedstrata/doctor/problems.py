"""Find faults that make a result wrong or hard to read: by counting, ranked by weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedstrata.data.statistics.duplicates import Copy, Duplicates
from fedstrata.data.statistics.survey import Survey
from fedstrata.data.types import Ints
from fedstrata.doctor.diagnosis import WEIGHTS, Problem, Weight
from fedstrata.engine.assembly import RunComponents

NAMED = 5  # clients that are named
LEAK = 0.01  # share of test samples seen in training from which scores mislead
FEW_TESTS = 30  # samples of a client's own test below which its score is coarse


@dataclass(frozen=True)
class Case:
    """Holds what is inspected: the parts of a run, its clients, and repeated samples (None: not searched)."""

    parts: RunComponents
    seen: Survey
    copies: Duplicates | None

    def names(self, places: Sequence[int]) -> str:
        """Name the first clients."""
        ids = [int(self.seen.ids[place]) for place in places]
        shown = ", ".join(printable(self.seen.federation.client_name(client)) for client in ids[:NAMED])
        return f"{shown}{', ...' if len(ids) > NAMED else ''}"

    def clients(self, places: Sequence[int], has: str = "has", have: str = "have") -> str:
        """Write for a sentence: 3 of 20 clients (ann, bob, cid) have."""
        return (
            f"{len(places):,} of {len(self.seen.ids):,} clients ({self.names(places)})"
            f" {has if len(places) == 1 else have}"
        )


def printable(text: str, most: int = 40) -> str:
    """Return a name that is safe on one line of a terminal."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def problems(case: Case) -> tuple[Problem, ...]:
    """List all problems, the weightiest first."""
    result = [*_copies(case), *_small(case), *_labels(case), *_tests(case), *_participation(case)]
    return tuple(sorted(result, key=lambda problem: WEIGHTS.index(problem.weight)))


# ---- samples met more than once


def _copies(case: Case) -> Iterator[Problem]:
    copies = case.copies
    if copies is None:
        return
    if copies.train_test:
        share = copies.train_test / copies.tested
        weight: Weight = "serious" if share >= LEAK else "look"
        seen = f"{copies.train_test:,} of {copies.tested:,} test samples ({percent(share)})"
        text = f"{seen} {'is' if copies.train_test == 1 else 'are'} also trained on{_example(case, 'train-test')}"
        yield Problem(
            weight,
            "train-test-duplicates",
            text,
            "take them out of one of the two; scores on them show memory, not learning",
            copies.train_test,
        )
    if copies.two_labels:
        text = f"{copies.two_labels:,} contents have more than one class in the training set{_example(case, 'labels')}"
        yield Problem("look", "two-labels", text, "no model can be right on all of them", copies.two_labels)
    if copies.across_clients:
        text = f"{copies.across_clients:,} contents are held by more than one client{_example(case, 'clients')}"
        yield Problem(
            "look",
            "client-duplicates",
            text,
            "clients are more alike, and held-out clients less unseen, than they seem",
            copies.across_clients,
        )
    if copies.within_train > copies.across_clients:
        text = f"{copies.within_train:,} of {len(case.seen.federation.train):,} training samples repeat an earlier one"
        yield Problem("note", "duplicates", text, count=copies.within_train)


def _example(case: Case, kind: str) -> str:
    assert case.copies is not None
    first = next((copy for copy in case.copies.examples if copy.kind == kind), None)
    return "" if first is None else f"; for one, {_place(case, first, 0)} and {_place(case, first, 1)}"


def _place(case: Case, copy: Copy, which: int) -> str:
    owner, row = (copy.first, copy.second)[which]
    if owner == "test set":
        return f"number {row} of the test set"
    held = "" if owner is None else f" ({printable(case.seen.federation.client_name(int(owner)))})"
    return f"number {row} of the training set{held}"


def percent(share: float) -> str:
    """Write a share in per cent, with two significant digits."""
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


# ---- clients too small


def _small(case: Case) -> Iterator[Problem]:
    seen, setup = case.seen, case.parts.setup
    sizes = seen.training
    if (empty := np.flatnonzero(sizes == 0)).size:
        text = f"{case.clients(empty.tolist())} no training sample and never train{'s' if empty.size == 1 else ''}"
        yield Problem("look", "empty-clients", text, "fewer clients, or a larger min in the partition", empty.size)
    single = np.flatnonzero(sizes == 1)
    if single.size and setup.merges_single:
        text = (
            f"{case.clients(single.tolist())} a single training sample, on which a batch norm cannot train, and"
            f" {_are(single)} left out"
        )
        yield Problem("look", "single-sample", text, "norm=group, or fewer clients", single.size)
    elif single.size:
        yield Problem(
            "note", "single-sample", f"{case.clients(single.tolist())} a single training sample", count=single.size
        )
    small = np.flatnonzero((sizes > 1) & (sizes < setup.local.batch))
    if small.size:
        weight: Weight = "look" if small.size * 2 > len(sizes) else "note"
        text = (
            f"{case.clients(small.tolist())} fewer training samples than a batch of {setup.local.batch}: one short step"
            " a"
            " pass"
        )
        yield Problem(
            weight,
            "under-a-batch",
            text,
            f"local.batch={_batch(sizes[sizes > 0])}" if weight == "look" else "",
            small.size,
        )


def _batch(sizes: Ints) -> int:
    """Return a power of two that gives the median client two batches."""
    return int(2 ** max(0, math.floor(math.log2(float(np.median(sizes)) / 2))))


def _are(places: Ints) -> str:
    return "is" if len(places) == 1 else "are"


def _labels(case: Case) -> Iterator[Problem]:
    seen, federation = case.seen, case.seen.federation
    if not federation.task.has_classes:
        return
    single = np.flatnonzero((seen.training > 0) & ((seen.counts > 0).sum(1) == 1))
    if single.size:
        text = f"{case.clients(single.tolist(), 'holds', 'hold')} training samples of one class only"
        yield Problem("look" if single.size * 2 > len(seen.ids) else "note", "one-class", text, count=single.size)
    tested = seen.tested.copy()
    if federation.test is not None:
        tested += np.bincount(federation.test.y.numpy(), minlength=federation.task.classes)
    if seen.whole and (lost := np.flatnonzero((seen.counts.sum(0) == 0) & (tested > 0))).size:
        names = ", ".join(printable(federation.task.labels[c]) for c in lost[:NAMED].tolist())
        shown = f"{names}{', ...' if lost.size > NAMED else ''}"
        text = f"{lost.size} classes ({shown}) are tested, but no client trains on them"
        yield Problem("serious", "untrained-classes", text, "another partition, or more clients", lost.size)


# ---- tests


def _tests(case: Case) -> Iterator[Problem]:
    seen, federation = case.seen, case.seen.federation
    accuracy = federation.task.has_accuracy
    if federation.own_test is not None:
        without = np.flatnonzero(seen.test == 0)
        if without.size:
            text = (
                f"{case.clients(without.tolist())} no test sample and"
                f" {'has' if without.size == 1 else 'have'} no personal score"
            )
            yield Problem(
                "look" if without.size * 2 > len(seen.ids) else "note", "no-own-test", text, count=without.size
            )
        median = float(np.median(seen.test[seen.test > 0])) if (seen.test > 0).any() else 0.0
        if accuracy and 0 < median < FEW_TESTS:
            text = (
                f"the median client tests itself on {median:.0f} samples, so its accuracy moves in steps of"
                f" {100 / median:.0f} points"
            )
            yield Problem("look", "small-own-tests", text, "read the mean over clients, not single ones")
    if federation.test is not None and accuracy and (points := _resolution(len(federation.test))) >= 1:
        text = (
            f"an accuracy on {len(federation.test):,} test samples is known to {points:.1f} points either way (95 %, at"
            " an accuracy of one half)"
        )
        yield Problem(
            "look" if points >= 3 else "note", "small-test", text, "several seeds; do not read smaller differences"
        )
    if not federation.validation:
        text = (
            "no validation samples are kept, so the round cannot be chosen without looking at test data"
            " (accuracy.selected stays null)"
        )
        yield Problem("look", "no-validation", text, "validation=0.1")
    if federation.own_test is None:
        yield Problem("note", "no-own-tests", "clients do not test: personal models are not measured", "test=both")


def _resolution(samples: int) -> float:
    """Return the half-width, in points, of the 95 % interval of an accuracy of one half (normal approximation)."""
    return 100 * 1.96 * math.sqrt(0.25 / samples)


def _participation(case: Case) -> Iterator[Problem]:
    setup = case.parts.setup
    if setup.clients == 1:
        yield Problem(
            "look",
            "one-client",
            "there is one client, so nothing is federated: all methods that average are the same",
            "more clients",
        )
        return
    visits = setup.rounds * setup.cohort / len(setup.eligible)
    never = (1 - setup.cohort / len(setup.eligible)) ** setup.rounds
    if visits < 1 or never * len(setup.eligible) >= 1:
        text = (
            f"{setup.rounds} rounds of {setup.cohort} out of {len(setup.eligible):,} clients: a client takes part"
            f" {visits:.2g} times on average, and about {percent(never)} of them never do"
        )
        yield Problem("look" if never > 0.1 else "note", "participation", text, "more rounds, or a larger cohort")
