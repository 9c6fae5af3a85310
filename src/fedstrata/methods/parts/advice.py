"""What `fedstrata doctor` says about methods before anything is trained: conditions on measured numbers, and reasons.

Each method's row holds its rules; only a comparison decides. A condition reads a :class:`FederationSummary`, and its
reason names the numbers. Thresholds are those of ``data/statistics/interpretation.py`` or the constants of this file;
they are our rules of thumb, not results of the publications named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

RARE = 20  # a client takes part less than once in so many rounds
FEW = 5  # or less often than this in the whole run: its stored state is old, or never used
UNEQUAL = 3.0  # busy clients take so many times the local steps of idle ones
LONG = 200  # rounds from which resets may pay
PRIVATE = 2  # batches of samples below which private layers have little to learn from


@dataclass(frozen=True)
class FederationSummary:
    """What rules may read.

    Attributes:
        label, features: skew of labels (targets of a regression) and of features, as levels of
            ``data/statistics/interpretation.py``; label_value, feature_value: as numbers, 0 where unknown.
        kind: classification or regression; images, tokens: what samples are; norms: whether the model has norm layers;
            body: whether it has layers before its head.
        own_tests: whether clients have test splits; heldout: clients kept out of training; test: the setting.
        eligible, cohort, rounds: clients that may train, a round's, planned.
        low_steps, high_steps: local steps of eligible clients, at the tenth and ninetieth of a hundred; equal_steps:
            all take the same.
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
        """Describe the label skew in a sentence."""
        return describe_skew("label" if self.kind == "classification" else "target", self.label, self.label_value)

    @property
    def inputs(self) -> str:
        """Describe the feature skew in a sentence."""
        return describe_skew("feature", self.features, self.feature_value)

    @property
    def skew(self) -> str:
        """Describe both kinds of skew in a sentence."""
        return f"{self.labels}, {self.inputs}"

    @property
    def age(self) -> float:
        """Count the rounds between two visits to a client, on average."""
        return self.eligible / self.cohort

    @property
    def often(self) -> str:
        """Say in a sentence how often a client takes part."""
        pace = "every round" if self.age < 1.5 else f"every {self.age:.0f} rounds"
        return f"a client takes part {pace}, {self.visits:.2g} times in all"

    @property
    def visits(self) -> float:
        """Count the planned rounds that a client takes part in, on average."""
        return self.rounds / self.age


Condition: TypeAlias = Callable[[FederationSummary], bool]
Speaks: TypeAlias = Literal["baseline", "for", "control", "later", "against"]


@dataclass(frozen=True)
class Rule:
    """One reason.

    Attributes:
        speaks: for the method, against it, as a control, or for later (a relative of a candidate).
        when: the condition.
        because: the reason; {s.name} are numbers of :class:`FederationSummary`.
        source: beyond the method's source: "arithmetic", or one of our laws.
    """

    speaks: Speaks
    when: Condition
    because: str
    source: str = ""

    def reason(self, s: FederationSummary) -> str:
        """Return the sentence with its numbers."""
        return self.because.format(s=s)


def describe_skew(kind: str, level: str, value: float) -> str:
    """Describe one kind of skew in a sentence."""
    texts = {"none": f"no {kind} skew", "unknown": f"{kind} skew unknown"}
    return texts.get(level, f"{kind} skew {value:.2f} ({level})")


# ---- conditions


def always(_: FederationSummary) -> bool:
    """Hold in any federation."""
    return True


def moderate(level: str) -> bool:
    """Say whether a skew is moderate or strong."""
    return level in ("moderate", "strong")


def skewed(s: FederationSummary) -> bool:
    """Say whether labels or features differ at least moderately."""
    return moderate(s.label) or moderate(s.features)


def label_skew(s: FederationSummary) -> bool:
    """Say whether labels differ at least moderately."""
    return moderate(s.label)


def strong_label_skew(s: FederationSummary) -> bool:
    """Say whether labels differ strongly."""
    return s.label == "strong"


def feature_skew(s: FederationSummary) -> bool:
    """Say whether features differ at least moderately."""
    return moderate(s.features)


def label_skew_on_images(s: FederationSummary) -> bool:
    """Say whether samples are images whose labels differ at least moderately."""
    return s.images and moderate(s.label)


def unequal(s: FederationSummary) -> bool:
    """Say whether local steps differ between clients."""
    return s.high_steps >= UNEQUAL * max(1, s.low_steps)


def drifts(s: FederationSummary) -> bool:
    """Say whether local models move apart: clients differ, and take more than one step."""
    return skewed(s) and s.high_steps > 1


def stale(s: FederationSummary) -> bool:
    """Say whether the state of a client is old when it is used, or hardly ever used."""
    return s.age > RARE or s.visits < FEW


def mild(s: FederationSummary) -> bool:
    """Say whether all skew was measured and is low or absent."""
    return not skewed(s) and "unknown" not in (s.label, s.features) and not unequal(s)


def sampled(s: FederationSummary) -> bool:
    """Say whether clients differ and a round sees a part of them."""
    return skewed(s) and s.cohort < s.eligible


def all_head(s: FederationSummary) -> bool:
    """Say whether the model has no layer before its head."""
    return not s.body


def tokens(s: FederationSummary) -> bool:
    """Say whether samples are tokens."""
    return s.tokens


def tiny(s: FederationSummary) -> bool:
    """Say whether the median client has few samples for private parameters."""
    return s.median < PRIVATE * s.batch


def personal(*conditions: Condition) -> Condition:
    """Hold where clients test their models, and any of the conditions holds."""
    return lambda s: s.own_tests and any(condition(s) for condition in conditions)


# ---- phrases and rules that several methods share

SKEW = "{s.skew}"
LABELS = "{s.labels}"
FEATURES = "{s.inputs}"
SAMPLED = "a round sees {s.cohort} of {s.eligible} clients that differ ({s.skew})"
RELATIVE = "a relative of {0}: worth a run if {0} does well"
THIN = (
    "the median client has {s.median:.0f} training samples, under two batches of {s.batch}, to learn private layers"
    " from"
)

NO_SKEW = Rule("against", mild, "no skew above low was measured, so there is little for it to correct")
OLD_STATE = Rule("against", stale, "{s.often}, so the state it keeps is that old when it is used", "arithmetic")
NOTHING_SHARED = Rule(
    "against", all_head, "{s.model} is all head, so that nothing would be shared: it is local training"
)
RARELY_SEEN = Rule(
    "against",
    lambda s: s.visits < 1,
    "a client takes part {s.visits:.2g} times in all, so most of what it keeps stays as it began",
    "arithmetic",
)
UNTESTED = Rule(
    "against",
    lambda s: not s.own_tests,
    "its personal models would not be seen: test={s.test}; with test=both (or own(share=0.2)) they are",
)


def relative(of: str, when: Condition, more: str = "") -> Rule:
    """Return the rule that proposes a method for later, as a relative of another one."""
    return Rule("later", when, RELATIVE.format(of) + more)
