"""Finished runs in memory, for studies of toys."""

from fedstrata.engine.rounds import Engine
from fedstrata.inference.finished_run import Finished
from fedstrata.runs.result import Result
from helpers import lab


def ended(parts):
    """A run that has just been trained, as a study is given it."""
    engine = Engine(parts, "loop", 1)
    rows = list(engine.rounds())
    engine.close()
    return Finished(Result({}, rows), engine, ())


def toy(text="fedavg", toy="layer", **settings):
    """A finished toy run: all six clients in every round."""
    return ended(lab.parts(text, toy, **({"cohort": 6, "rounds": 5} | settings)))
