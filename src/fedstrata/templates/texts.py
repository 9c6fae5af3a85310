"""Texts that ``fedstrata new`` writes; ``$$name`` is the name in lower case, ``$$Name`` the class."""

from __future__ import annotations

from collections.abc import Mapping

KINDS: Mapping[str, str] = {"method": "methods", "dataset": "datasets", "measure": "measures"}
"""What ``new`` writes, and its kind of plug-in."""

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
description = "$about"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["fedstrata>=0.1"]

[project.entry-points."fedstrata.$group"]
$name = "$name:$object"

[tool.setuptools]
py-modules = ["$name"]
"""

_METHOD = '''\
"""$Name: say in a sentence what it does."""

from dataclasses import dataclass

from fedstrata import Params, Piece, ServerContext, State, setting
from fedstrata.methods import Limit, Row


@dataclass(frozen=True)
class $Name(Piece):
    """Scale the clients' mean update by ``reach`` on the server: w <- w + reach * mean."""

    reach: float = setting(0.9, "the factor on the mean update, above 0 (1 is FedAvg)", above=0)

    def merge(self, step: Params, ctx: ServerContext) -> tuple[Params, State]:
        """Return the server's move and its new state; this method keeps none."""
        return self.reach * step, ctx.state


ROW = Row(
    $Name,
    "$about",  # also the description in pyproject.toml, which `fedstrata list methods` shows
    examples=("$name(reach=0.9)",),  # settings that the laws test
    limit=Limit("$name(reach=1)", "fedavg"),  # these two agree bit for bit
    source="your paper, section and equation",
    uncited="not published yet",  # or cite=("@article{...}",)
)
'''

_METHOD_TEST = '''\
"""Test the laws of $Name. A law that fails says what it compared."""

import pytest
from fedstrata.testing import laws

from $name import ROW


@pytest.mark.parametrize("law", laws(ROW), ids=str)
def test_$name(law):
    law()
'''

_METHOD_README = """\
# $Name

A method for [fedstrata](https://github.com/fedstrata/fedstrata), in `$name.py`.

```bash
pip install -e .              # once: then fedstrata finds it by its name
fedstrata list methods        # it is the last line
fedstrata run method=$name
fedstrata run "method=$name(reach=1.1) + fedprox(mu=0.01)"
pytest                        # the laws of every method
```

A method is a difference from FedAvg: a frozen record of settings that overrides a few verbs of `fedstrata.Piece` (here
`merge`). State arrives as `ctx.state` and leaves as a returned value: on the server from `init_server`, on clients from
`init_client`.

From Python it needs no installation:

```python
import fedstrata
from $name import $Name

fedstrata.run($Name(reach=1.1), rounds=10)
```
"""

_DATASET = '''\
"""$Name: say in a sentence what the data are."""

from dataclasses import dataclass

import numpy as np
from fedstrata.data import Place, Source, source_of


@dataclass(frozen=True)
class $Name:
    """Draw points around ``classes`` centres in the plane; replace this by reading your files.

    ``place.root`` is the folder of ``data.root=FOLDER``, or None.
    """

    classes: int = 3
    each: int = 40

    def read(self, place: Place) -> Source:
        """Return arrays x [N, ...] and y [N] and a test set; ``client=`` names the client of each sample, if known."""
        rng = np.random.default_rng(0)
        y = np.repeat(np.arange(self.classes), self.each)
        x = (np.stack([np.cos(y), np.sin(y)], axis=1) + 0.1 * rng.normal(size=(len(y), 2))).astype(np.float32)
        held = np.arange(len(y)) % 5 == 0  # every fifth sample is a test sample
        return source_of(
            x[~held],
            y[~held],
            test=(x[held], y[held]),
            name=f"$name(classes={self.classes}, each={self.each})",  # settings that change the content
        )
'''

_DATASET_TEST = '''\
"""Test that $Name is a data set and that a federation can be made of it."""

import numpy as np
from fedstrata.data import DataSpec, Place, assemble

from $name import $Name


def test_reading_twice_gives_the_same():
    one, two = $Name().read(Place()), $Name().read(Place())
    assert one.name == two.name
    assert np.array_equal(one.train.x, two.train.x)
    assert np.array_equal(one.train.y, two.train.y)


def test_a_federation_can_be_made_of_it():
    federation = assemble($Name().read(Place()), DataSpec(data="$name", partition="iid", clients=4))
    assert federation.clients == 4
    assert len(federation.train) > 0
    assert len(federation.test) > 0
'''

_DATASET_README = """\
# $Name

A data set for [fedstrata](https://github.com/fedstrata/fedstrata), in `$name.py`.

```bash
pip install -e .              # once: then fedstrata finds it by its name
fedstrata run data=$name clients=6
fedstrata run "data=$name(classes=4)" "partition=dirichlet(alpha=0.3, min=1)" clients=6
pytest
```

A data set is a frozen record of settings with one verb, `read(place)`. Your files are below `place.root`, which is
`data.root=FOLDER`.
"""

_MEASURE = '''\
"""$Name: say in a sentence what it measures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedstrata import Measure, RoundSnapshot


@dataclass(frozen=True)
class $Name(Measure):
    """Measure the length of the server's model, in all and by layer group; replace this by what you want to see."""

    title: ClassVar[str] = "Length of the model"
    text: ClassVar[str] = "Euclidean length of the server's parameters. Large: the model is far from zero."
    unit: ClassVar[str] = "length"

    def measure(self, snapshot: RoundSnapshot) -> Mapping[str, float | None]:
        """Return numbers of a round, by series: "all", or names of layer groups. ``snapshot`` is read only."""
        after = snapshot.after
        lengths = {"all": float(after.flat.norm())}
        for name, group in snapshot.layout.groups.items():
            lengths[name] = sum(float(after[n].square().sum()) for n in group.names if n in after) ** 0.5
        return lengths
'''

_MEASURE_TEST = '''\
"""$Name measures every round, and changes nothing."""

import math

from fedstrata.testing import measurements

from $name import $Name


def test_it_measures_every_round_and_changes_nothing():
    numbers = measurements($Name())  # it also checks that a run without the measure is equal
    assert len(numbers) == 3
    assert all(math.isfinite(row["all"]) for row in numbers)
'''

_MEASURE_README = """\
# $Name

A measure for [fedstrata](https://github.com/fedstrata/fedstrata), in `$name.py`.

```bash
pip install -e .              # once: then fedstrata finds it by its name
fedstrata run measures=$name
pytest
```

A measure computes numbers from a trained round; reports draw them. It never changes what it receives.
"""


def _package(kind: str, about: str, offered: str, source: str, test: str, readme: str) -> Mapping[str, str]:
    pyproject = _PYPROJECT.replace("$about", about).replace("$object", offered).replace("$group", KINDS[kind])
    return {
        "pyproject.toml": pyproject,
        "$name.py": source.replace("$about", about),
        "test_$name.py": test,
        "README.md": readme,
    }


FILES: Mapping[str, Mapping[str, str]] = {
    "method": _package("method", "the server goes further, or less far", "ROW", _METHOD, _METHOD_TEST, _METHOD_README),
    "dataset": _package("dataset", "A federated data set: $Name", "$Name", _DATASET, _DATASET_TEST, _DATASET_README),
    "measure": _package(
        "measure", "A measure of federated training: $Name", "$Name", _MEASURE, _MEASURE_TEST, _MEASURE_README
    ),
}
"""File name -> text, by what is written."""
