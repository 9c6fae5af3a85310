"""A plug-in package: learning from preferences (Bradley-Terry), and a linear model of utility."""

from torch import nn
from torch.nn.functional import logsigmoid

from fedstrata.data import TaskKind


class Preference(TaskKind):
    """Pairs of a chosen and a rejected item; the model scores both.

    A sample is [2, *item]: the chosen item, then the rejected one; outputs are [B, 2, 1]. A target is the weight of the
    comparison.

    Source: Bradley and Terry 1952; P(chosen > rejected) = sigmoid(s_chosen - s_rejected).
    """

    name = "preference"
    headline = "accuracy"
    kept_axes = 1
    output_meaning = "scores of the chosen and of the rejected item"

    def loss(self, output, y):
        """Return the weighted negative log-likelihood of each comparison, [B]."""
        return -y * logsigmoid(self.predictions(output))

    def metrics(self, output, y):
        """Return the share of pairs whose chosen item has the larger score, and the mean log loss."""
        if not len(y):
            return {"accuracy": None, "log_loss": None}
        right = self.predictions(output) > 0
        return {"accuracy": float(right.double().mean()), "log_loss": float(self.loss(output, y).double().mean())}

    def predictions(self, output):
        """Return the margin of the chosen item, [N]."""
        return output[:, 0, 0] - output[:, 1, 0]


def utility(task):
    """Build the model of linear utility, applied to both items: [B, 2, D] -> [B, 2, 1]."""
    return nn.Sequential(nn.Identity(), nn.Linear(task.shape[-1], task.classes, bias=False))
