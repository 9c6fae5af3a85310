"""Using the result of a run: a plain module, predictions on further data, files for other programs, a model card."""

from fedstrata.use.export import Exported, export
from fedstrata.use.finished import Finished, finished, load
from fedstrata.use.predict import Predictions, predict

__all__ = ["Exported", "Finished", "Predictions", "export", "finished", "load", "predict"]
