"""Find studies by name and build them from call syntax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from fedstrata.common.call_syntax import bind, parse_call
from fedstrata.common.registry import Registry
from fedstrata.studies.base import Study
from fedstrata.studies.inversion import Inversion
from fedstrata.studies.landscape import Landscape
from fedstrata.studies.masks import Masks
from fedstrata.studies.maximise import Maximise
from fedstrata.studies.memory import Memory
from fedstrata.studies.path import Path
from fedstrata.studies.settling import Settling
from fedstrata.studies.sharpness import Sharpness
from fedstrata.studies.steps import Steps


def _is_study(offered: object) -> bool:
    return isinstance(offered, type) and issubclass(offered, Study)


STUDIES: Registry[type[Study]] = Registry(
    "studies",
    "study",
    accepts=_is_study,
    wanted="a subclass of fedstrata.Study",
    entries={
        "inversion": Inversion,
        "landscape": Landscape,
        "masks": Masks,
        "maximise": Maximise,
        "memory": Memory,
        "path": Path,
        "settling": Settling,
        "sharpness": Sharpness,
        "steps": Steps,
    },
)


def table() -> Mapping[str, type[Study]]:
    """Return the built-in and registered studies by name."""
    return STUDIES.items()


def settings(kind: type[Study]) -> str:
    """Write a study's settings with their defaults as users write them; empty for a study without settings.

    >>> settings(Masks)
    'samples=1000, at=[]'
    """
    return ", ".join(f"{f.name}={_written(f.default)}" for f in fields(kind))


def _written(value: object) -> str:
    """Write a setting's value in call syntax."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def find(text: str) -> tuple[str, Study]:
    """Return the name and the study of a text in call syntax: "sharpness(samples=500)".

    Raises:
        ConfigError: an unknown study or setting.
    """
    call = parse_call(text)
    return call.name, bind(call, STUDIES.find(call.name), what="study")
