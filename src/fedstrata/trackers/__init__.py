"""Trackers: observers that send a run's curves to TensorBoard, MLflow or another package.

They read events and never change a run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from fedstrata.common.call_syntax import Call, arguments, parse_calls
from fedstrata.common.errors import ConfigError, FedstrataError
from fedstrata.common.events import Event
from fedstrata.common.registry import Registry

NONE = "none"
Factory: TypeAlias = Callable[..., Callable[[Event], None]]


class Tracker(Protocol):
    """An observer that keeps files or connections open."""

    def __call__(self, event: Event) -> None:
        """Receive an event."""
        ...

    def close(self) -> None:
        """Close files and connections; a second call does nothing."""
        ...


def _tensorboard(folder: str = "runs/tensorboard") -> Tracker:
    """Write event files for TensorBoard: tensorboard(folder='runs/tb')."""
    # its library is loaded only where it is asked for
    from fedstrata.trackers.tensorboard import TensorBoard  # noqa: PLC0415

    return TensorBoard(folder)


def _mlflow(uri: str = "runs/mlflow", experiment: str = "fedstrata") -> Tracker:
    """Write an MLflow run to a folder or a server: mlflow(uri='runs/mlflow', experiment='fedstrata')."""
    from fedstrata.trackers.mlflow import MLflow  # the same  # noqa: PLC0415

    return MLflow(uri, experiment)


TRACKERS: Registry[Factory] = Registry(
    "trackers",
    "tracker",
    accepts=callable,
    wanted="a class or function of settings that returns an observer",
    entries={"tensorboard": _tensorboard, "mlflow": _mlflow},
    reserved=(NONE,),
)


class Guarded:
    """A tracker that cannot end a run.

    A run's results are in its folder in any case. The first failure is noted on stderr and turns the tracker off.
    """

    def __init__(self, name: str, tracker: Callable[[Event], None]) -> None:
        self.name, self.tracker, self.off = name, tracker, False

    def __call__(self, event: Event) -> None:
        """Pass an event on, unless the tracker has failed."""
        if not self.off:
            self._try(lambda: self.tracker(event))

    def close(self) -> None:
        """Close the tracker, also after a failure."""
        close: Callable[[], None] | None = getattr(self.tracker, "close", None)
        if close is not None:
            self._try(close)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # any failure of a disk, a server or a library  # noqa: BLE001
            if not self.off:
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                print(
                    f"fedstrata: note: the tracker {self.name} failed ({reason}) and is off; the run goes on and keeps"
                    " its results",
                    file=sys.stderr,
                )
            self.off = True


def trackers(text: str) -> list[Guarded]:
    """Build the trackers of a setting.

    Args:
        text: "none", or names in call syntax: ``"tensorboard(folder='runs/tb') + mlflow(uri='file:runs/ml',
            experiment='x')"``.
    Raises:
        ConfigError: an unknown tracker or setting, one tracker twice, a library that is not installed, or an invalid
            path or address.
    """
    return [Guarded(call.name, _build(call, factory, settings)) for call, factory, settings in _parse(text)]


def check(text: str) -> None:
    """Refuse what :func:`trackers` would refuse, as far as that is known without opening anything.

    Raises:
        ConfigError: an unknown tracker or setting, an empty one, or one tracker twice.
    """
    _parse(text)


def _parse(text: str) -> list[tuple[Call, Factory, dict[str, Any]]]:
    """Read every tracker with its factory and its settings."""
    found: dict[str, tuple[Call, Factory, dict[str, Any]]] = {}
    for call in [] if text == NONE else parse_calls(text):
        if call.name in found:
            raise ConfigError(f"track names {call.name!r} twice; once is enough.")
        factory = TRACKERS.find(call.name)
        settings: dict[str, Any] = arguments(call, factory, what="track")
        if empty := [name for name, value in settings.items() if value == "" and call.name in TRACKERS.items()]:
            raise ConfigError(f"track {call.name}.{empty[0]} is empty; give a value, or leave it out.")
        found[call.name] = (call, factory, settings)
    return list(found.values())


def _build(call: Call, factory: Factory, settings: Mapping[str, Any]) -> Callable[[Event], None]:
    """Build a tracker with its settings; errors are raised before the run begins."""
    try:
        return factory(**settings)
    except FedstrataError:
        raise
    except ImportError as error:
        package = (error.name or call.name).partition(".")[0]
        remedy = "'fedstrata[track]'" if package in TRACKERS.items() else package
        raise ConfigError(
            f"track={call.name} needs the package {package}, which is not installed: pip install {remedy}."
        ) from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(f"track={call} cannot be opened: {reason}") from error


@contextmanager
def tracking(text: str) -> Iterator[list[Guarded]]:
    """Build the trackers of a setting, and close them at the end, also after an error."""
    found = trackers(text)
    try:
        yield found
    finally:
        for tracker in found:
            tracker.close()


__all__ = ["NONE", "TRACKERS", "Guarded", "Tracker", "check", "trackers", "tracking"]
