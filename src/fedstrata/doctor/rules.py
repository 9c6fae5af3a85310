"""Which methods are sensible here: one table, a line a reason. A rule speaks before anything was trained; only a
comparison decides.

A condition is about measured numbers (:class:`FederationSummary`), and the reason names them. Borders of a condition are those of
``data/meaning.py`` or stand here by name; they are our own rules of thumb, not results of the publications named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Speaks = Literal["baseline", "for", "control", "later", "against"]

RARE = 20  # a client takes part less than once in so many rounds
FEW = 5  # or less often than this in the whole run: what it stored is old, or never used
UNEQUAL = 3.0  # busy clients take so many times the local steps of idle ones
LONG = 200  # rounds from which resets may pay
PRIVATE = 2  # batches of samples below which private layers have little to learn from


@dataclass(frozen=True)
class FederationSummary:
    """What rules may look at.

    Attributes:
        label, features: skew of labels (targets of a regression) and of features as words of ``data/meaning.py``;
            label_value, feature_value: as numbers, 0 where unknown.
        kind: classification or regression; images, tokens: what samples are; norms: whether the model has norm layers;
            body: whether it has layers before its head.
        own_tests: whether clients test on splits of their own; heldout: clients kept out of training; test: the
            setting.
        eligible, cohort, rounds: clients that may train, a round's, planned.
        low_steps, high_steps: local steps of eligible clients: the tenth from below and from above of a hundred;
            equal_steps: all take the same.
        median: training samples of the median eligible client; batch: of local steps.
        model: in call syntax; exits: where it may end.
    """

    label: str
    label_value: float
    features: str
    feature_value: float
    kind: str
    images: bool
    tokens: bool
    norms: bool
    body: bool
    own_tests: bool
    heldout: int
    test: str
    eligible: int
    cohort: int
    rounds: int
    low_steps: int
    high_steps: int
    equal_steps: bool
    median: float
    batch: int
    model: str
    exits: int = 0

    @property
    def labels(self) -> str:
        """Label skew, for a sentence."""
        return skew_text("label" if self.kind == "classification" else "target", self.label, self.label_value)

    @property
    def inputs(self) -> str:
        """Feature skew, for a sentence."""
        return skew_text("feature", self.features, self.feature_value)

    @property
    def skew(self) -> str:
        """Both kinds, for a sentence."""
        return f"{self.labels}, {self.inputs}"

    @property
    def age(self) -> float:
        """Rounds between two visits to a client, on average."""
        return self.eligible / self.cohort

    @property
    def often(self) -> str:
        """How often a client takes part, for a sentence."""
        pace = "every round" if self.age < 1.5 else f"every {self.age:.0f} rounds"
        return f"a client takes part {pace}, {self.visits:.2g} times in all"

    @property
    def visits(self) -> float:
        """Times that a client takes part in the planned rounds, on average."""
        return self.rounds / self.age


@dataclass(frozen=True)
class Rule:
    """One reason.

    Attributes:
        method: in call syntax, as the comparison would be given it.
        speaks: for it, against it, as a control, or for later (a relative of a candidate).
        when: the condition.
        because: the reason; {s.name} are numbers of :class:`FederationSummary`.
        source: beyond the method's own source: "arithmetic", or one of our laws.
    """

    method: str
    speaks: Speaks
    when: Callable[[FederationSummary], bool]
    because: str
    source: str = ""

    def reason(self, s: FederationSummary) -> str:
        """The sentence with its numbers."""
        return self.because.format(s=s)


def skew_text(kind: str, level: str, value: float) -> str:
    """One kind of skew, for a sentence."""
    return {"none": f"no {kind} skew", "unknown": f"{kind} skew unknown"}.get(
        level, f"{kind} skew {value:.2f} ({level})"
    )


def always(_: FederationSummary) -> bool:
    """Whatever was seen."""
    return True


def moderate(text: str) -> bool:
    """Moderate or strong."""
    return text in ("moderate", "strong")


def skewed(s: FederationSummary) -> bool:
    """Labels or features differ at least moderately."""
    return moderate(s.label) or moderate(s.features)


def unequal(s: FederationSummary) -> bool:
    """Local steps differ."""
    return s.high_steps >= UNEQUAL * max(1, s.low_steps)


def drifts(s: FederationSummary) -> bool:
    """Local models move apart: clients differ, and take more than one step."""
    return skewed(s) and s.high_steps > 1


def stale(s: FederationSummary) -> bool:
    """State of a client is old when it is used, or used hardly ever."""
    return s.age > RARE or s.visits < FEW


def mild(s: FederationSummary) -> bool:
    """Measured, and found low or none."""
    return not skewed(s) and "unknown" not in (s.label, s.features) and not unequal(s)


def untested(s: FederationSummary) -> bool:
    """Nobody would see a personal model."""
    return not s.own_tests


def tiny(s: FederationSummary) -> bool:
    """The median client has few samples for parameters of its own."""
    return s.median < PRIVATE * s.batch


def personal(*wanted: Callable[[FederationSummary], bool]) -> Callable[[FederationSummary], bool]:
    """Clients test their own models, and any of the conditions holds."""
    return lambda s: s.own_tests and any(w(s) for w in wanted)


def _labels(s: FederationSummary) -> bool:
    return moderate(s.label)


def _labels_strong(s: FederationSummary) -> bool:
    return s.label == "strong"


def _features(s: FederationSummary) -> bool:
    return moderate(s.features)


SKEW = "{s.skew}"
LABELS = "{s.labels}"
FEATURES = "{s.inputs}"
OLD = "{s.often}, so the state it keeps is that old when it is used"
NO_SKEW = "no skew above low was measured, so there is little for it to correct"
UNSEEN = "its personal models would not be seen: test={s.test}; with test=both (or own(share=0.2)) they are"
THIN = (
    "the median client has {s.median:.0f} training samples, under two batches of {s.batch}, to learn private layers"
    " from"
)
RELATIVE = "a relative of {}: worth a run if {} does well"
RESET = "kernels drawn anew for each client keep what many can use"
BARELY = "a client takes part {s.visits:.2g} times in all, so most of what it keeps stays as it began"
KEPT = ("fedbn", "fedper", "fedrep", "lgfedavg", "ditto", "pfedme", "local", "moon")
PERSONAL = (
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
)

RULES: tuple[Rule, ...] = (
    Rule("fedavg", "baseline", always, "the baseline that differences are taken to"),
    # -- one model for all: clients differ, and local steps drift apart
    Rule(
        "fedprox",
        "for",
        drifts,
        SKEW + ": its proximal term holds local models near the received one, and nothing is stored",
    ),
    Rule("fedprox", "against", mild, NO_SKEW),
    Rule(
        "scaffold",
        "for",
        drifts,
        SKEW + ": controls correct each client's drift; {s.often}",
    ),
    Rule("scaffold", "against", stale, OLD, "arithmetic"),
    Rule("scaffold", "against", mild, NO_SKEW),
    Rule("feddyn", "later", drifts, RELATIVE.format("scaffold", "scaffold")),
    Rule("feddyn", "against", stale, OLD, "arithmetic"),
    Rule("feddyn", "against", mild, NO_SKEW),
    # -- a model of its own for each client
    Rule(
        "fedbn",
        "for",
        lambda s: s.own_tests and s.norms and _features(s),
        FEATURES + ", and the model has norm layers: they stay with each client",
    ),
    Rule("fedbn", "against", lambda s: not s.norms, "{s.model} has no norm layer, which is all that it keeps private"),
    Rule(
        "fedper",
        "for",
        personal(_labels_strong),
        LABELS + ", and clients test themselves: a head of its own knows a client's classes",
    ),
    Rule(
        "ditto",
        "for",
        personal(_labels, _features),
        SKEW + ", and clients test themselves: a private model beside the global one",
    ),
    Rule(
        "finetune(epochs=1)",
        "for",
        personal(_labels, _features),
        SKEW + ": the cheapest personal model, FedAvg and then one private pass",
    ),
    Rule(
        "fedbabu",
        "for",
        lambda s: s.own_tests and s.heldout > 0 and _labels_strong(s),
        LABELS
        + ", and {s.heldout} clients join later: they fine-tune a head, where methods with private heads have none for"
        " them",
    ),
    Rule("fedrep", "later", personal(_labels_strong), RELATIVE.format("fedper", "fedper")),
    Rule("fedbabu", "later", personal(_labels_strong), RELATIVE.format("fedper", "fedper")),
    Rule(
        "lgfedavg",
        "later",
        lambda s: s.own_tests and s.features == "strong" and not moderate(s.label),
        FEATURES + " while labels are alike: private bodies under one head",
    ),
    Rule("lgfedavg", "against", tiny, THIN, "arithmetic"),
    Rule("pfedme", "later", personal(_labels, _features), RELATIVE.format("ditto", "ditto")),
    Rule("perfedavg", "later", personal(_labels, _features), RELATIVE.format("finetune", "finetune")),
    Rule("perfedavg", "against", tiny, "each step reads half of its batch, and " + THIN, "arithmetic"),
    Rule(
        "local",
        "control",
        lambda s: s.own_tests,
        "what clients reach alone: a federation that does not beat it is not worth its bytes",
    ),
    *(
        Rule(
            name,
            "against",
            lambda s: not s.body,
            "{s.model} is all head, so that nothing would be shared: it is local training",
        )
        for name in ("fedper", "fedrep", "fedbabu")
    ),
    # -- one model for all, by other means
    Rule(
        "fedavgm",
        "for",
        lambda s: skewed(s) and s.cohort < s.eligible,
        "a round sees {s.cohort} of {s.eligible} clients that differ ("
        + SKEW
        + "): momentum on the server averages over rounds",
    ),
    Rule(
        "moon",
        "for",
        lambda s: s.images and moderate(s.label),
        LABELS + " on images: local features are held near the global model's",
    ),
    Rule("moon", "against", mild, NO_SKEW),
    Rule(
        "moon",
        "against",
        lambda s: not s.body,
        "{s.model} is all head: its features are the samples, alike in every model",
    ),
    Rule(
        "fedadam",
        "for",
        lambda s: s.tokens,
        "a model of tokens, whose entries get gradients rarely: a step size for each entry serves those",
    ),
    Rule(
        "fedadam",
        "later",
        lambda s: skewed(s) and s.cohort < s.eligible and not s.tokens,
        RELATIVE.format("fedavgm", "fedavgm") + "; its rate has to be tuned",
    ),
    Rule("fedyogi", "later", lambda s: s.tokens, RELATIVE.format("fedadam", "fedadam")),
    Rule("fedadagrad", "later", lambda s: s.tokens, RELATIVE.format("fedadam", "fedadam")),
    Rule(
        "fednova",
        "for",
        unequal,
        "most clients take {s.low_steps} to {s.high_steps} local steps a round: updates are averaged by step, not by"
        " length",
    ),
    Rule(
        "fednova",
        "against",
        lambda s: s.equal_steps,
        "every client takes {s.low_steps} local steps, and then it is FedAvg",
        "our law: fednova is fedavg under equal steps, bit for bit",
    ),
    # -- one model for all: resets, mutations, cohorts, layers in turn
    Rule(
        "fedphoenix",
        "later",
        lambda s: s.images and moderate(s.label) and s.rounds >= LONG,
        LABELS + " on images, and {s.rounds} rounds: " + RESET,
    ),
    Rule(
        "fedphoenix",
        "against",
        lambda s: s.images and s.rounds < LONG,
        "its resets cost accuracy first and pay later, and {s.rounds} rounds are few",
    ),
    Rule(
        "fedphoenixblend",
        "later",
        lambda s: s.tokens and moderate(s.label),
        LABELS + ": resets for transformers, proposed but not evaluated",
    ),
    Rule(
        "fedmut",
        "later",
        lambda s: s.images and moderate(s.label),
        LABELS + ": clients start from mutations of the model, so that it ends in a flat place",
    ),
    Rule(
        "fedcross",
        "later",
        lambda s: s.images and moderate(s.label),
        LABELS + ": models of several clients are kept apart and crossed slowly",
    ),
    Rule(
        "fedgen",
        "later",
        lambda s: s.kind == "classification" and moderate(s.label) and s.body,
        LABELS + ": a generator of features tells every client of classes that it does not hold",
    ),
    Rule(
        "clusteredsampling",
        "later",
        lambda s: skewed(s) and s.cohort < s.eligible,
        "a round sees {s.cohort} of {s.eligible} clients that differ ("
        + SKEW
        + "): cohorts are drawn so that their clients are unlike each other",
    ),
    Rule(
        "clusteredsampling",
        "against",
        lambda s: s.cohort >= s.eligible,
        "all {s.eligible} clients take part in every round, so there is no cohort to choose",
    ),
    Rule(
        "fedpart",
        "later",
        lambda s: s.body and mild(s),
        "no skew above low was measured: one layer group a round, with fewer bytes and less to compute, is claimed to"
        " gain there",
    ),
    Rule(
        "fedpart",
        "against",
        lambda s: not s.body,
        "{s.model} is 1 layer group, and then it is FedAvg",
        "our law: one group is fedavg, bit for bit",
    ),
    Rule(
        "returning",
        "later",
        lambda s: s.body and mild(s) and s.age >= 2,
        "{s.often}: behind fedpart, it is sent only the layers that moved since",
    ),
    Rule(
        "progfed",
        "later",
        lambda s: s.exits > 1 and s.rounds >= LONG,
        "{s.model} may end after each of {s.exits} stages, and {s.rounds} rounds: early ones train and send the front"
        " of it",
    ),
    Rule(
        "progfed",
        "against",
        lambda s: s.exits < 2,
        "{s.model} has {s.exits} stages to end after: it is FedAvg with 1, and needs 2",
        "arithmetic",
    ),
    Rule(
        "budgets",
        "against",
        lambda s: not s.body,
        "{s.model} is 1 layer group: a client that cannot afford it has nothing smaller to train",
    ),
    *(Rule(name, "against", lambda s: s.visits < 1, BARELY, "arithmetic") for name in KEPT),
    *(Rule(name, "against", untested, UNSEEN) for name in PERSONAL),
)
"""In the order in which candidates are proposed."""

MOST = 8  # methods of the proposed comparison, fedavg and a control included
