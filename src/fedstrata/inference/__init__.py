"""Using the result of a run: a plain module, predictions on further data, files for other programs, a model card."""

from fedstrata.inference.export import Exported, export
from fedstrata.inference.finished_run import Finished, finished, load
from fedstrata.inference.predict import Predictions, predict

__all__ = ["Exported", "Finished", "Predictions", "export", "finished", "load", "predict"]
