"""Use the result of a run: a plain module, predictions on further data, files for other programs, a model card."""

from fedstrata.inference.export import Exported, export
from fedstrata.inference.finished_run import Finished, load, open_run
from fedstrata.inference.predict import Predictions, predict

__all__ = ["Exported", "Finished", "Predictions", "export", "load", "open_run", "predict"]
