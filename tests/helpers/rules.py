"""Methods written out as in their papers, with their own loops, in float64, on a network written out by hand.

From the engine come: who took part, the order of samples (so that both see the same batches) and the initial
weights. Weights are one flat vector; `mask` marks the entries that belong to some layers.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from fedstrata.client.batch_order import Order
from fedstrata.common.random_streams import key, stream
from helpers import lab

NORM, HEAD = ("norm.weight", "norm.bias"), ("head.weight", "head.bias")


class World:
    """The laws' toy after a run of the engine, seen from outside."""

    def __init__(self, run, cohorts):
        config, self.federation = run.parts.config, run.parts.federation
        module = lab.small("layer")
        self.shapes = {n: p.shape for n, p in module.named_parameters()}
        self.w0 = torch.cat([p.detach().double().reshape(-1) for p in module.parameters()])
        self.cohorts, self.m = cohorts, self.federation.clients
        self.lr, self.epochs, self.batch, self.seed = (
            config.local.lr,
            config.local.epochs,
            config.local.batch,
            config.seed,
        )
        self.momentum = config.local.momentum
        self.index = [self.federation.training(i) for i in range(self.m)]
        self.n = [len(index) for index in self.index]

    def shares(self, cohort):
        total = sum(self.n[i] for i in cohort)
        return [self.n[i] / total for i in cohort]

    def steps(self, client, epochs=None):
        return (epochs or self.epochs) * math.ceil(self.n[client] / min(self.batch, self.n[client]))

    def batches(self, client, t, purpose="local", *, epochs=None, steps=None, occurrence=0):
        """[(x, y)] that the engine reads for this purpose in round t."""
        order = Order(
            self.seed, (purpose, t, client, occurrence), self.n[client], self.batch, "cycle", merge_single=False
        )
        epochs = self.epochs if epochs is None and steps is None else epochs
        rows = [self.index[client][positions] for _, positions in order.batches(epochs=epochs, steps=steps)]
        return [(self.federation.train.x[r].double(), self.federation.train.y[r]) for r in rows]

    # -- the network

    def mask(self, *names):
        """True at the entries of these tensors."""
        return torch.cat([torch.full((shape.numel(),), name in names) for name, shape in self.shapes.items()])

    def split(self, w):
        parts = w.split([shape.numel() for shape in self.shapes.values()])
        return {n: part.reshape(shape) for (n, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def features(self, w, x):
        p = self.split(w)
        h = x @ p["first.weight"].T + p["first.bias"]
        h = (h - h.mean(1, keepdim=True)) / torch.sqrt(h.var(1, unbiased=False, keepdim=True) + 1e-5)
        h = (h * p["norm.weight"] + p["norm.bias"]).exp().log1p()
        return (h @ p["second.weight"].T + p["second.bias"]).exp().log1p()

    def head(self, p, z):
        return z @ p["head.weight"].T + p["head.bias"]

    def loss(self, w, batch):
        """Mean cross-entropy."""
        x, y = batch
        logits = self.head(self.split(w), self.features(w, x))
        return (torch.logsumexp(logits, 1) - logits[torch.arange(len(y)), y]).mean()

    def grad(self, w, batch, loss=None):
        leaf = w.clone().requires_grad_()
        return torch.autograd.grad((loss or self.loss)(leaf, batch), leaf)[0]

    def descend(self, w, batches, gradient=None, *, moves=None, lr=None):
        """SGD (with the run's momentum) from w; `moves` marks what is trained."""
        gradient, lr = gradient or self.grad, lr or self.lr
        velocity = torch.zeros_like(w)
        for batch in batches:
            velocity = self.momentum * velocity + gradient(w, batch)
            w = w - lr * (velocity if moves is None else velocity * moves)
        return w


def alone(world, w):
    """Return the personal models where clients use the server's."""
    return [w] * world.m


def fedavg(world, gradient=lambda world, w: world.grad):
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        ends = [world.descend(w, world.batches(i, t), gradient(world, w)) for i in cohort]
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, alone(world, w)


def fedprox(world, mu):
    """L + mu/2 |y - w|^2, by autograd."""
    return fedavg(
        world,
        lambda world, w: lambda y, b: world.grad(y, b, lambda z, c: world.loss(z, c) + mu / 2 * ((z - w) ** 2).sum()),
    )


def scaffold(world, lr=1.0):
    w, c = world.w0, torch.zeros_like(world.w0)
    controls = [torch.zeros_like(w) for _ in range(world.m)]
    rho = world.momentum
    for t, cohort in enumerate(world.cohorts):
        ends, updated = [], []
        for i in cohort:
            y = world.descend(w, world.batches(i, t), lambda z, b, i=i, c=c: world.grad(z, b) - controls[i] + c)
            k = world.steps(i)
            if rho:
                k = (k - rho * (1 - rho**k) / (1 - rho)) / (1 - rho)
            ends.append(y)
            updated.append(controls[i] - c + (w - y) / (k * world.lr))
        change = sum(f - controls[i] for f, i in zip(updated, cohort, strict=True)) / len(cohort)
        w = w + lr * sum(y - w for y in ends) / len(cohort)
        c = c + len(cohort) / world.m * change
        for f, i in zip(updated, cohort, strict=True):
            controls[i] = f
    return w, alone(world, w), {"server": c, "clients": controls}


def fedopt(world, move):
    """D, the weighted mean update, goes through `move(D, memory) -> step`."""
    w, memory = world.w0, {}
    for t, cohort in enumerate(world.cohorts):
        ends = [world.descend(w, world.batches(i, t)) for i in cohort]
        w = w + move(sum(p * (y - w) for p, y in zip(world.shares(cohort), ends, strict=True)), memory)
    return w, alone(world, w), memory


def fedavgm(world, beta, lr):
    def move(d, memory):
        memory["v"] = beta * memory.get("v", 0) + d
        return lr * memory["v"]

    return fedopt(world, move)


def adaptive(world, name, lr, tau=1e-3, b1=0.9, b2=0.99):
    def move(d, memory):
        first = 0.0 if name == "adagrad" else b1
        memory["m"] = first * memory.get("m", 0) + (1 - first) * d
        v = memory.get("v", torch.full_like(d, tau**2))
        memory["v"] = {
            "adagrad": lambda: v + d**2,
            "yogi": lambda: v - (1 - b2) * d**2 * torch.sign(v - d**2),
            "adam": lambda: b2 * v + (1 - b2) * d**2,
        }[name]()
        return lr * memory["m"] / (memory["v"].sqrt() + tau)

    return fedopt(world, move)


def fednova(world, mu=0.0):
    w, rho, eta = world.w0, world.momentum, world.lr
    for t, cohort in enumerate(world.cohorts):
        a, d = [], []
        for i in cohort:
            y = world.descend(w, world.batches(i, t), lambda z, b, w=w: world.grad(z, b) + mu * (z - w))
            tau = world.steps(i)
            length = (
                (1 - (1 - eta * mu) ** tau) / (eta * mu) if mu else (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
            )
            a.append(length)
            d.append((y - w) / length)
        p = world.shares(cohort)
        w = w + sum(q * x for q, x in zip(p, a, strict=True)) * sum(q * x for q, x in zip(p, d, strict=True))
    return w, alone(world, w)


def feddyn(world, alpha):
    w, h = world.w0, torch.zeros_like(world.w0)
    controls = [torch.zeros_like(w) for _ in range(world.m)]
    for t, cohort in enumerate(world.cohorts):
        ends = []
        for i in cohort:

            def objective(z, b, i=i, w=w):
                return world.loss(z, b) - controls[i] @ z + alpha / 2 * ((z - w) ** 2).sum()

            ends.append(world.descend(w, world.batches(i, t), lambda z, b, f=objective: world.grad(z, b, f)))
        for y, i in zip(ends, cohort, strict=True):
            controls[i] = controls[i] - alpha * (y - w)
        h = h - alpha / world.m * sum(y - w for y in ends)
        w = sum(ends) / len(cohort) - h / alpha
    return w, alone(world, w), {"server": h, "clients": controls}


def cosine(a, b):
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def moon(world, mu, tau):
    w, previous = world.w0, {}
    for t, cohort in enumerate(world.cohorts):
        ends = []
        for i in cohort:
            past = previous.get(i)

            def objective(z, b, w=w, past=past):
                if past is None:
                    return world.loss(z, b)
                now, near, far = (world.features(v, b[0]) for v in (z, w, past))
                good, bad = torch.exp(cosine(now, near) / tau), torch.exp(cosine(now, far) / tau)
                return world.loss(z, b) + mu * (-torch.log(good / (good + bad))).mean()

            ends.append(world.descend(w, world.batches(i, t), lambda z, b, f=objective: world.grad(z, b, f)))
        previous |= dict(zip(cohort, ends, strict=True))
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, alone(world, w)


def ditto(world, mu):
    w, private = world.w0, {}
    for t, cohort in enumerate(world.cohorts):
        for i in cohort:
            start = private.get(i, world.w0)
            private[i] = world.descend(
                start, world.batches(i, t, "ditto.private"), lambda v, b, w=w: world.grad(v, b) + mu * (v - w)
            )
        ends = [world.descend(w, world.batches(i, t)) for i in cohort]
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, [private.get(i, w) for i in range(world.m)]


def halves(batch, n):
    """n equal parts of a batch; what is left over is not read. A batch too small for that serves as all parts."""
    x, y = batch
    size = len(y) // n
    return [(x[k * size : (k + 1) * size], y[k * size : (k + 1) * size]) for k in range(n)] if size else [batch] * n


def perfedavg(world, alpha, delta=None):
    def gradient(w, batch):
        one, two, *three = halves(batch, 2 if delta is None else 3)
        g = world.grad(w - alpha * world.grad(w, one), two)
        if delta is None:
            return g
        return g - alpha * (world.grad(w + delta * g, three[0]) - world.grad(w - delta * g, three[0])) / (2 * delta)

    w, _ = fedavg(world, lambda *_: gradient)
    t = len(world.cohorts)
    return w, [world.descend(w, world.batches(i, t, "perfedavg.adapt", steps=1), lr=alpha) for i in range(world.m)]


def pfedme(world, lam, inner, lr, decay, beta):
    w, personal = world.w0, {}
    for t, cohort in enumerate(world.cohorts):
        ends = []
        for i in cohort:
            y = theta = w
            for batch in world.batches(i, t):
                for _ in range(inner):
                    theta = theta - lr * (world.grad(theta, batch) + lam * (theta - y) + decay * theta)
                y = y - lam * world.lr * (y - theta)
            personal[i] = theta
            ends.append(y)
        w = (1 - beta) * w + beta * sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, [personal.get(i, w) for i in range(world.m)]


LAYERS = (("first.weight", "first.bias", *NORM), ("second.weight", "second.bias"), HEAD)
"""The toy's layer groups, shallow to deep."""


def fedprox_plain(world, mu):
    """L + mu sum over tensors |y_k - w_k|; its gradient at w is taken as 0."""

    def gradient(world, w):
        def at(y, b):
            g, apart = world.split(world.grad(y, b)), world.split(y - w)
            return torch.cat([(g[n] + (mu * d / d.norm() if d.any() else 0)).reshape(-1) for n, d in apart.items()])

        return at

    return fedavg(world, gradient)


def fedpart(world, active, able=lambda client: None, prox=0.0):
    """`active(t)` is the layer group of round t, None for all.

    `able(i)` are the groups that client i can afford, None for everything.
    """
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        total, share = torch.zeros_like(w), torch.zeros_like(w)
        for i in cohort:
            group, means = active(t), able(i)
            if means is not None and group not in means:
                group = means[(t + i) % len(means)]
            moves = torch.ones_like(w) if group is None else world.mask(*LAYERS[group]).double()
            y = world.descend(w, world.batches(i, t), lambda z, b, w=w: world.grad(z, b) + prox * (z - w), moves=moves)
            total, share = total + world.n[i] * moves * y, share + world.n[i] * moves
        w = torch.where(share > 0, total / share.clamp(min=1), w)
    return w, alone(world, w)


class Pictures(World):
    """Two convolutions, the first of them pooled, and a linear head, on 1x6x6 pictures.

    The weights are those that the engine starts with.
    """

    def __init__(self, run, cohorts):
        super().__init__(run, cohorts)
        start = run.parts.setup.model
        self.shapes, self.w0 = dict(zip(start.spec.names, start.spec.shapes, strict=True)), start.flat.double()

    def features(self, w, x):
        p = self.split(w)
        h = torch.nn.functional.conv2d(x, p["conv1.weight"], p["conv1.bias"], padding=1).clamp(min=0)
        h = torch.nn.functional.conv2d(
            torch.nn.functional.avg_pool2d(h, 2), p["conv2.weight"], p["conv2.bias"], padding=1
        ).clamp(min=0)
        return h.flatten(1)


def fedphoenix(world, theta, stop, convs, rows=(), extra=lambda world, w: world.grad):
    """Layer d of the L in `convs` is reset while t L < (d + 1) stop, the rows of those in `rows` while t < stop.

    The draws are the engine's.
    """
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        starts, ends = [], []
        for index, i in enumerate(cohort):
            generator = torch.Generator().manual_seed(
                int(stream(world.seed, "send.fedphoenix", t, index).integers(2**63))
            )
            parts = {n: v.clone() for n, v in world.split(w).items()}
            due = [n for d, n in enumerate(convs) if t * len(convs) < (d + 1) * stop] + [n for n in rows if t < stop]
            for name in due:
                weight = parts[name]
                mean = weight.sum() / weight.numel()
                spread = (((weight - mean) ** 2).sum() / (weight.numel() - 1)).sqrt()
                q = int(theta * len(weight) + 1e-9)
                if q:
                    chosen = torch.randperm(len(weight), generator=generator)[:q]
                    values = torch.randn(q, weight[0].numel(), generator=generator).double()
                    for row, z in zip(chosen.tolist(), values, strict=True):
                        weight[row] = (mean + spread * z).reshape(weight[row].shape)
            starts.append(torch.cat([v.reshape(-1) for v in parts.values()]))
            ends.append(world.descend(starts[-1], world.batches(i, t), extra(world, starts[-1])))
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))  # of the models that came back
    return w, alone(world, w)


def fedmut(world, alpha, bias, fade):
    """One model a cohort index; after a round each is the mean, mutated along the mean's last step."""
    size = len(world.cohorts[0])
    models, before = [world.w0] * size, world.w0
    for t, cohort in enumerate(world.cohorts):
        ends = [world.descend(w, world.batches(i, t)) for w, i in zip(models, cohort, strict=True)]
        w = sum(ends) / size
        step, before = w - before, w
        back = -1 + bias * (1 - min(t / fade, 1))
        pairs = np.array([[1, back] * (size // 2)] * len(world.shapes), dtype=np.float32)
        controls = stream(world.seed, "server.fedmut", t).permuted(pairs, axis=1).T.tolist()  # [cohort index][tensor]
        models = []
        for index in range(size):
            control = controls[index] if index < len(controls) else [0] * len(world.shapes)
            each = torch.cat(
                [
                    torch.full((s.numel(),), c, dtype=torch.float64)
                    for s, c in zip(world.shapes.values(), control, strict=True)
                ]
            )
            models.append(w + alpha * each * step)
    return w, alone(world, w)


def fedcross(world, alpha, *, unlike=False):
    """Models are crossed with one other each; the server's is their mean."""
    size = len(world.cohorts[0])
    models = [world.w0] * size
    for t, cohort in enumerate(world.cohorts):
        dealt = stream(world.seed, "fedcross.deal", t).permutation(size).tolist()  # model of each cohort index
        back = [world.descend(models[j], world.batches(cohort[dealt.index(j)], t)) for j in range(size)]
        if unlike:
            cosines = [[float(a @ b / (a.norm() * b.norm())) if a is not b else 2.0 for b in back] for a in back]
            partners = [row.index(min(row)) for row in cosines]
        else:
            partners = [(j + 1 + t % (size - 1)) % size for j in range(size)]
        models = [alpha * v + (1 - alpha) * back[k] for v, k in zip(back, partners, strict=True)]
    w = sum(models) / size
    return w, alone(world, w), models


class Features:
    """FedGen's generator, trained by Adam written out. Draws are the engine's, by its names."""

    def __init__(self, world, latent, hidden):
        self.world, self.latent, self.classes = world, latent, lab.CLASSES
        g = torch.Generator().manual_seed(key(world.seed, "fedgen.start") >> 1)
        width, inputs = world.shapes["head.weight"][1], latent + self.classes
        shapes = [((hidden, inputs), inputs), ((width, hidden), hidden), ((width,), hidden)]
        self.first, self.last, self.bias = (((2 * torch.rand(s, generator=g).double() - 1) / n**0.5) for s, n in shapes)
        self.scale, self.shift = torch.ones(hidden).double(), torch.zeros(hidden).double()
        self.mean, self.var = torch.zeros(hidden).double(), torch.ones(hidden).double()

    def noise(self, name, shape, t, client, step):
        g = torch.Generator().manual_seed(
            key(self.world.seed, "noise", f"fedgen.{name}", t, client, 0, "local", step) >> 1
        )
        return torch.rand(shape, generator=g).double()

    def __call__(self, noise, y, weights=None):
        first, last, bias, scale, shift = weights or (self.first, self.last, self.bias, self.scale, self.shift)
        h = torch.cat([noise, torch.eye(self.classes).double()[y]], 1) @ first.T
        mean, var = self.mean, self.var
        if weights:
            mean, var = h.mean(0), h.var(0, unbiased=False)
            self.mean = 0.9 * self.mean + 0.1 * mean.detach()
            self.var = 0.9 * self.var + 0.1 * h.var(0, unbiased=True).detach()
        return (((h - mean) / torch.sqrt(var + 1e-5)) * scale + shift).clamp(min=0) @ last.T + bias

    def learn(self, t, ends, counts, batch, steps, lr, decay, diversity, product):
        """``steps`` of Adam with the heads of ``ends``."""
        g = torch.Generator().manual_seed(int(stream(self.world.seed, "server.fedgen", t).integers(2**63)))
        able = [c for c in range(self.classes) if any(n[c] >= 2 for n in counts)]
        weights = [w.clone().requires_grad_() for w in (self.first, self.last, self.bias, self.scale, self.shift)]
        moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
        for step in range(1, steps + 1):
            y = torch.tensor([able[k] for k in torch.randint(len(able), (batch,), generator=g).tolist()])
            noise = torch.rand(batch, self.latent, generator=g).double()
            z = self(noise, y, weights)
            loss = diversity * torch.exp(-self.spread(noise, z))
            for end, count in zip(ends, counts, strict=True):
                logits = self.world.head(self.world.split(end), z)
                ce = torch.logsumexp(logits, 1) - logits[torch.arange(batch), y]
                share = torch.tensor([float(count[c]) / sum(float(n[c]) for n in counts) for c in y.tolist()]).double()
                loss = loss + (ce.mean() * share.mean() if product else (ce * share).mean())
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for w, gradient, (m, v) in zip(weights, gradients, moments, strict=True):
                    whole = gradient + decay * w
                    m.add_(0.1 * (whole - m))
                    v.add_(0.001 * (whole**2 - v))
                    w.sub_(lr * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8))
        self.first, self.last, self.bias, self.scale, self.shift = (w.detach() for w in weights)

    def spread(self, noise, z):
        """Mean over all ordered pairs, one by one."""
        pairs = [
            ((noise[a] - noise[b]) ** 2).mean() * (z[a] - z[b]).abs().mean()
            for a in range(len(z))
            for b in range(len(z))
        ]
        return sum(pairs) / len(pairs)


def fedgen(world, alpha, beta, latent, hidden, batch, steps, lr, *, decay=0.0, diversity=1.0, product=False):
    w, made = world.w0, Features(world, latent, hidden)
    for t, cohort in enumerate(world.cohorts):
        ends, counts = [], []
        for i in cohort:
            seen = iter(range(1000))

            def objective(z, b, i=i, t=t, seen=seen):
                if not t:
                    return world.loss(z, b)
                step, head = next(seen), world.split(z)
                y = (made.noise("labels", (batch,), t, i, step) * made.classes).long()
                logits = world.head(head, made(made.noise("any", (batch, latent), t, i, step), y))
                ce = (torch.logsumexp(logits, 1) - logits[torch.arange(batch), y]).mean()
                like = made(made.noise("like", (len(b[1]), latent), t, i, step), b[1])
                p, q = (
                    torch.softmax(x, 1)
                    for x in (world.head(head, like).detach(), world.head(head, world.features(z, b[0])))
                )
                return world.loss(z, b) + alpha * ce + beta * (p * torch.log(p / q)).sum(1).mean()

            ends.append(world.descend(w, world.batches(i, t), lambda z, b, f=objective: world.grad(z, b, f)))
            counts.append([int((world.federation.train.y[world.index[i]] == c).sum()) for c in range(made.classes)])
        made.learn(t, ends, counts, batch, steps, lr, decay, diversity, product)
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, alone(world, w), made


def clusteredsampling(world, *, uniform=False):
    """FedAvg on whoever was drawn, repeats included; the state is everybody's last update and their L1 distances."""
    w, updates = world.w0, [torch.zeros_like(world.w0) for _ in range(world.m)]
    for t, cohort in enumerate(world.cohorts):
        ends = [
            world.descend(w, world.batches(i, t, occurrence=cohort[:index].count(i))) for index, i in enumerate(cohort)
        ]
        shares = [1 / len(cohort)] * len(cohort) if uniform else world.shares(cohort)
        for i, y in zip(cohort, ends, strict=True):
            updates[i] = y - w
        w = sum(p * y for p, y in zip(shares, ends, strict=True))
    distances = [[float((a - b).abs().sum()) for b in updates] for a in updates]
    return w, alone(world, w), {"updates": updates, "distances": torch.tensor(distances, dtype=torch.float64)}


def private_layers(world, private, train=None):
    """Keep the entries in `private` with the client and average the rest. `train(start, i, t)` is local training."""
    train = train or (lambda start, i, t: world.descend(start, world.batches(i, t)))
    w, stored = world.w0, {}
    for t, cohort in enumerate(world.cohorts):
        ends = [train(torch.where(private, stored.get(i, world.w0), w), i, t) for i in cohort]
        stored |= dict(zip(cohort, ends, strict=True))
        mean = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
        w = torch.where(private, world.w0, mean)
    return w, [torch.where(private, stored.get(i, world.w0), w) for i in range(world.m)]


def fedper(world):
    return private_layers(world, world.mask(*HEAD))


def lgfedavg(world):
    return private_layers(world, ~world.mask(*HEAD))


def fedbn(world):
    return private_layers(world, world.mask(*NORM))


def local(world):
    return private_layers(world, torch.ones_like(world.w0, dtype=torch.bool))


def fedrep(world, head_epochs):
    head = world.mask(*HEAD)

    def train(start, i, t):
        middle = world.descend(start, world.batches(i, t, "head", epochs=head_epochs), moves=head)
        return world.descend(middle, world.batches(i, t), moves=~head)

    return private_layers(world, head, train)


def fedbabu(world, epochs, head_only):
    head = world.mask(*HEAD)
    w, _ = private_layers(
        world, torch.zeros_like(head), lambda start, i, t: world.descend(start, world.batches(i, t), moves=~head)
    )
    t = len(world.cohorts)
    tuned = [
        world.descend(w, world.batches(i, t, "fedbabu.tune", epochs=epochs), moves=head if head_only else None)
        for i in range(world.m)
    ]
    return w, tuned


def finetune(world, steps, lr):
    w, _ = fedavg(world)
    t = len(world.cohorts)
    return w, [world.descend(w, world.batches(i, t, "finetune.finetune", steps=steps), lr=lr) for i in range(world.m)]


# ---- comparison

# the engine's float32 (6e-8 a rounding) through some 40 local steps and 3 rounds of a network that amplifies a little
ROUNDING = 1e-5


def against(method, rule, tolerance=ROUNDING, world=World, **settings):
    """Compare the engine's run with the written-out rule: the server's model and all clients' personal models.

    Returns both for more comparisons.
    """
    run = lab.engine(lab.parts(method, **settings))
    result = lab.finish(run)
    world = world(run, [row["cohort"] for row in result.rows])
    assert len({tuple(sorted(c)) for c in world.cohorts}) > 1, "partial participation"
    w, personal, *state = rule(world)
    assert distance(world, result.model, w) <= tolerance, f"server: {distance(world, result.model, w):.2e}"
    apart = [distance(world, model, v) for model, v in zip(result.models, personal, strict=True)]
    assert max(apart) <= tolerance, f"personal models: {max(apart):.2e}"
    return result, world, state[0] if state else {}


def distance(world, params, w):
    """max|a - b| / max|b| of the engine's tensors against a flat vector."""
    theirs = world.split(w)
    return float(max((params[n].double() - theirs[n]).abs().max() for n in theirs) / w.abs().max())
