"""Comparisons of all kinds, by name."""

from dataclasses import replace

from fedstrata.analysis.comparison import Entry, Screening
from fedstrata.analysis.findings import Flag, findings
from fedstrata.diagnostics.panel import Panel
from fedstrata.report.page import write_page
from helpers import handmade

EIGHT = ("fedavg", "fedprox(mu=0.01)", "fedavgm", "fedadam", "scaffold", "moon", "fedper", "ditto")
EVIL = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "\"'><svg onload=alert(3)>",
    "\u202egnihtemos\u202c",
    "javascript:alert(4)",
    "$\\frac{1}{0}$ &amp; {{ 7*7 }}",
    "long " * 2000,
    "\x00\x1b[31m\ud800",
    "_hidden",
    "名前 שם اسم",
)
"""Names that break pages which take text for more than text."""

PANELS = (
    Panel(
        "Lines of methods",
        "How far. Source: made.",
        "lines",
        [1, 2, 3],
        {"fedavg": [1.0, 2.0, None], "fedavgm": [2.0, 1.0, 0.5]},
        {"fedavg": [0.1, 0.2, None]},
    ),
    Panel(
        "Lines of layers",
        "How near. Source: made.",
        "lines",
        [0.1, 1.0],
        {"conv1": [1.0, 2.0], "head": [None, 3.0]},
        x_name="epsilon",
        y_name="nats",
    ),
    Panel(
        "A map",
        "Rows and columns. Source: made.",
        "heat",
        ["a", "b", "c"],
        {"conv1": [1.0, None, 3.0], "head": [0.0, -1.0, 2.0]},
        y_name="unit",
    ),
    Panel(
        "Bars",
        "By kind. Source: made.",
        "bars",
        ["up", "down"],
        {"fedavg": [1.0, 2.0], "own": [3.0, None]},
        x_name="way",
        y_name="bits",
    ),
    Panel("A table", "Rows only. Source: made.", "table", ["x", "y"], {"one": [1.0, None], "two": [3.0, 4.0]}),
    Panel("Nothing", "No numbers at all.", "lines", [1, 2], {"fedavg": [None, None]}),
)


def eight():
    return handmade.comparison(EIGHT, rounds=200, clients=200, heldout=40)


def hostile():
    runs = {label: {"top": 0.5} for label in EVIL}
    base = handmade.comparison(EVIL, rounds=5, clients=6, runs=runs)
    entries = tuple(Entry(label, label, {"local.lr": label, label: 1}) for label in EVIL)
    count = len(base.facts.shown)
    names = tuple(EVIL[k % len(EVIL)] for k in range(count))
    facts = replace(base.facts, name=EVIL[0], law=EVIL[1], names=names, labels=tuple(EVIL), notes=EVIL)
    results = {key: replace(run, notes=EVIL) for key, run in base.results.items()}
    return replace(
        base,
        entries=entries,
        facts=facts,
        results=results,
        command=EVIL[1],
        machine={EVIL[0]: EVIL[1]},
        config={"data": EVIL[0], EVIL[2]: EVIL[3]},
        failures={(EVIL[0], 9): EVIL[1]},
        screening=Screening((2, 4), {EVIL[1]: 2}, (EVIL[1],), (EVIL[1],), 1.0, 0.2, 1.0),
    )


CASES = {
    "five": handmade.comparison,
    "eight": eight,
    "hostile": hostile,
    "one": lambda: handmade.comparison(("fedavg",), (0,)),
    "two_seeds": lambda: handmade.comparison(("fedavg", "ditto"), (0, 1), validation=False),
    "no_clients": lambda: handmade.comparison(
        clients=0, heldout=0, facts_more={"counts": (), "sizes": (), "shown": (), "names": (), "skew": {}}
    ),
    "regression": lambda: handmade.comparison(regression=True),
    "failed": lambda: handmade.comparison(failed=[("fedavg", 0), ("fedavg", 1), ("fedavg", 2), ("ditto", 1)]),
    "all_failed": lambda: handmade.comparison(
        ("fedavg", "ditto"), failed=[(m, s) for m in ("fedavg", "ditto") for s in (0, 1, 2)]
    ),
    "flat": lambda: handmade.comparison(("fedavg", "moon"), flat=0.1),
    "twenty": lambda: handmade.comparison(tuple(f"fedprox(mu=0.{k:02d})" for k in range(20)), rounds=10),
    "unequal": lambda: handmade.comparison(("fedavg", "moon"), runs={"moon": {"rounds": 7}}),
    "every": lambda: handmade.comparison(("fedavg", "moon"), every=7),
    "panels": lambda: handmade.comparison(("fedavg", "fedavgm"), measures=False),
}


def case(name):
    """A comparison with its findings and, where they are not those of its measures, its panels."""
    comparison = CASES[name]()
    found = findings(comparison)
    if name == "hostile":
        found = replace(found, answer=f"{EVIL[0]} {EVIL[1]}", flags=tuple(Flag(text, text) for text in EVIL))
    return comparison, found, {"hostile": hostile_panels(), "panels": PANELS}.get(name)


def hostile_panels():
    kinds = ("lines", "heat", "bars", "table")
    return [
        Panel(
            EVIL[0],
            EVIL[1],
            kind,
            list(EVIL),
            {label: [float(k) for k in range(len(EVIL))] for label in EVIL},
            {},
            EVIL[2],
            EVIL[3],
        )
        for kind in kinds
    ]


def write(name, path):
    comparison, found, panels = case(name)
    return write_page(comparison, found, path, panels)
