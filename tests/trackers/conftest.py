"""Our module of MLflow is loaded before the library, as in a run: it says that nothing is to be reported to MLflow's
makers.
"""

import fedstrata.trackers.mlflow  # noqa: F401
