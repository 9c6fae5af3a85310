"""FedGen: the generator by itself, what it is taught, what travels, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedstrata.common.errors import MethodError
from fedstrata.methods.fedgen import FedGen
from fedstrata.methods.parts.generator import Lessons, features, fresh, likeness, taught
from helpers import lab

SMALL = "latent=4, hidden=8, batch=8, steps=2"
NUMBERS = (
    8 * (4 + lab.CLASSES) + 4 * 8 + 5 * 8 + 5
)  # first layer, norm with statistics, last layer to the five features of the laws' toy


def how(**changes):
    return Lessons(
        **({"steps": 60, "lr": 0.02, "decay": 0.0, "batch": 32, "diversity": 1.0, "shares": "sample"} | changes)
    )


def entropy(output, y):
    return nn.functional.cross_entropy(output, y, reduction="none")


def made(seed=0):
    return fresh(6, 3, 16, 5, torch.Generator().manual_seed(seed))


def test_features_are_those_of_the_same_layers_of_torch():
    generator = made()
    layers = nn.Sequential(nn.Linear(9, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5)).eval()
    with torch.no_grad():
        for name, place in (
            ("first.weight", layers[0].weight),
            ("last.weight", layers[3].weight),
            ("last.bias", layers[3].bias),
        ):
            place.copy_(generator[name])
        layers[1].running_mean.uniform_(-1, 1)
        layers[1].running_var.uniform_(0.5, 2)
    generator = generator | type(generator).of({"norm.mean": layers[1].running_mean, "norm.var": layers[1].running_var})
    noise, y = torch.rand(7, 6), torch.arange(7) % 3
    assert torch.allclose(features(generator, noise, y, 3), layers(torch.cat([noise, torch.eye(3)[y]], 1)), atol=1e-6)


def test_likeness_is_one_for_equal_features_and_else_e_to_the_mean_over_all_ordered_pairs():
    noise = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert likeness(noise, torch.ones(2, 3)) == 1
    z = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 6.0]])
    assert likeness(noise, z).item() == pytest.approx(torch.tensor(-2 * (0.5 * 3.0) / 4).exp().item())


def test_after_its_lessons_the_heads_recognise_what_is_generated():
    heads = [lambda z: z[:, :3], lambda z: 2 * z[:, :3]]
    counts = torch.tensor([[9.0, 9, 0], [0, 9, 9]])
    noise, y = torch.rand(300, 6, generator=torch.Generator().manual_seed(1)), torch.arange(300) % 3
    before, after = made(), taught(made(), heads, counts, entropy, how(), torch.Generator().manual_seed(2))
    hits = [(features(g, noise, y, 3)[:, :3].argmax(1) == y).float().mean() for g in (before, after)]
    assert hits[0] < 0.6 < 0.95 < hits[1]


@pytest.mark.parametrize("shares", ["sample", "mean"])
def test_a_client_without_a_label_teaches_it_only_by_the_product_of_means(shares):
    """Client 1 alone holds label 1 and takes all labels for 1; client 0 calls all of them 0."""
    seen = []

    def loss(output, y):
        seen.append(y)
        return output[:, 0] * (y == 1)

    heads = [lambda z: z, lambda z: 0 * z]  # only client 0's opinion of label 1 has a gradient
    counts = torch.tensor([[8.0, 0, 0], [0, 8, 1]])
    after = taught(
        made(), heads, counts, loss, how(steps=1, diversity=0, shares=shares), torch.Generator().manual_seed(0)
    )
    assert torch.equal(after["last.weight"], made()["last.weight"]) == (shares == "sample")
    assert set(torch.cat(seen).tolist()) == {0, 1}, "no client has two samples of label 2"


def test_where_no_client_has_two_samples_of_a_label_the_generator_stays():
    generator = made()
    assert taught(generator, [lambda z: z], torch.ones(1, 3), entropy, how(), torch.Generator()) is generator


def test_the_generator_travels_from_round_1_on_and_clients_mail_their_label_counts():
    rows = lab.play(f"fedgen({SMALL})").rows
    model = sum(p.numel() for p in lab.small().parameters())
    assert [row["bytes_down"] for row in rows] == [3 * 4 * (model + NUMBERS * (t > 0)) for t in range(3)]
    made = lab.parts(f"fedgen({SMALL})")
    assert list(made.method.pieces[0].formulas({}, made.setup).values()) == [4 * NUMBERS], (
        "as describe says, which shows round 0"
    )
    assert {row["bytes_up"] for row in rows} == {3 * 4 * (model + lab.CLASSES)}


def test_what_the_generator_adds_to_local_steps_is_billed_from_round_1_on():
    """Cohorts of equal clients; two heads of 8 and of 4 samples a step, and the generator's two layers for both."""
    rows = lab.play(f"fedgen({SMALL})", "equal").rows
    plain = lab.play("fedavg", "equal").rows[0]["flops"]
    steps, head, layers = 3 * 2 * 2, 2 * 5 * lab.CLASSES, 2 * 8 * (4 + lab.CLASSES + 5)
    least = steps * (
        12 * layers + 8 * 2 * head + 4 * head
    )  # the generated batch goes forward and backward, the target forward
    assert rows[0]["flops"] == plain
    assert rows[1]["flops"] == rows[2]["flops"] >= plain + least


@pytest.mark.parametrize("text", ["fedper + fedgen", "fedgen + fedper"])
def test_private_heads_are_refused_before_anything_is_trained(text):
    with pytest.raises(
        MethodError, match=r"fedgen's server reads head.* in every reply, and this chain keeps it with each client"
    ):
        lab.parts(text)


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_head_without_an_output_for_each_class_is_refused(outputs):
    """One output is a number, not a class; a head of three outputs is none for four classes."""
    setup = lab.parts().setup
    FedGen().check(setup)
    with pytest.raises(MethodError, match=r"linear head with an output for each class.*Use a classification task"):
        FedGen().check(replace(setup, classes=outputs))


@pytest.mark.parametrize(
    "partner",
    ["fedpart(warmup=1, repeat=1)", "fedprox(mu=0.1)", "fedcross(alpha=0.8)", "fedphoenix(theta=0.5, layers=fc)"],
)
def test_it_composes(partner):
    """In a partial round without the head, the head that came back is the one that was sent."""
    found = lab.play(f"{partner} + fedgen({SMALL})", rounds=4)
    assert torch.isfinite(found.states["fedgen"]["generator"].flat).all()
    assert lab.bits(found.model) != lab.bits(lab.play(partner, rounds=4).model)
