"""Further samples, prepared as those that a model was trained on: from tables, pictures, arrays and texts."""

from fedstrata.data.inputs.base import InputPreprocessor, Numbers, PreparedInputs
from fedstrata.data.inputs.images import Pictures
from fedstrata.data.inputs.table import Rows, SeriesRows
from fedstrata.data.inputs.text import Characters, Words

__all__ = ["Characters", "InputPreprocessor", "Numbers", "Pictures", "Rows", "SeriesRows", "PreparedInputs", "Words"]
