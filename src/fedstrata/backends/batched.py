"""Clients stacked along a leading axis."""
from fedstrata.backends.loop import Loop
class Batched(Loop):
    name="batched"
    def __init__(self, make, workers, threads):
        super().__init__(make)
