"""Further samples, prepared as those that a model was trained on: from tables, pictures, arrays and texts."""

from fedstrata.data.intake.base import Intake, Numbers, Taken
from fedstrata.data.intake.pictures import Pictures
from fedstrata.data.intake.table import Rows, SeriesRows
from fedstrata.data.intake.text import Characters, Words

__all__ = ["Characters", "Intake", "Numbers", "Pictures", "Rows", "SeriesRows", "Taken", "Words"]
