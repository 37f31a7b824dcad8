from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saywhere.errors import UserError
from saywhere.papers.densecap2016 import conventions as original
from saywhere.training.loop import build_optimizer, build_schedule, learning_rate_factor
from saywhere.training.recipe import OptimizerConfig, TrainingConfig


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone, self.head = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x).tanh()).square().sum()


FAST = OptimizerConfig(kind="adam", lr=0.02, betas=(0.8, 0.99), weight_decay=0.1)
SLOW = OptimizerConfig(kind="adam", lr=0.1, betas=(0.5, 0.9), weight_decay=0.01)


def train(net: Net, optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        optimizer.zero_grad()
        net(torch.full((2, 3), float(step + 1))).backward()
        optimizer.step()


def test_each_group_is_trained_by_its_own_settings_and_by_one_kind() -> None:
    ours, theirs = Net(), Net()
    optimizer = build_optimizer(ours, ours.backbone, TrainingConfig(rest=FAST, backbone=SLOW))
    train(ours, optimizer, 5)
    head = torch.optim.Adam(theirs.head.parameters(), 0.02, (0.8, 0.99), weight_decay=0.1)
    backbone = torch.optim.Adam(theirs.backbone.parameters(), 0.1, (0.5, 0.9), weight_decay=0.01)
    for step in range(5):
        theirs.zero_grad()
        theirs(torch.full((2, 3), float(step + 1))).backward()
        head.step()
        backbone.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)  # ours is the fused kind, which rounds otherwise
    with pytest.raises(
        UserError, match=r"^training\.backbone\.kind is adamw, but must be adam, as training\.rest\.kind$"
    ):
        build_optimizer(ours, ours.backbone, TrainingConfig(rest=FAST))


@pytest.mark.parametrize("kind", ["adam", "adamw", "original_adam", "sgd", "rmsprop"])
def test_state_and_schedule_go_on_where_they_were(kind: str) -> None:
    options = OptimizerConfig(kind=kind, lr=0.05)
    config = TrainingConfig(rest=options, backbone=replace(options, lr=0.01), warmup=2)

    def run(breaks: bool) -> list[Tensor]:
        net = Net()
        optimizer = build_optimizer(net, net.backbone, config)
        schedule = build_schedule(optimizer, config, 8)
        for step in range(6):
            if breaks and step == 3:
                states = net.state_dict(), optimizer.state_dict(), schedule.state_dict()
                net = Net()
                optimizer = build_optimizer(net, net.backbone, config)
                schedule = build_schedule(optimizer, config, 8)
                for part, state in zip((net, optimizer, schedule), states, strict=True):
                    part.load_state_dict(state)
            train(net, optimizer, 1, start=step)
            schedule.step()
        rates = [group["lr"] for group in optimizer.param_groups]
        return [*net.parameters(), torch.tensor(rates)]

    for a, b in zip(run(False), run(True), strict=True):
        assert torch.equal(a, b)


def test_the_published_program_s_adam_can_be_chosen() -> None:
    settings: dict[str, Any] = {"lr": 0.02, "betas": (0.8, 0.99), "eps": 0.1, "weight_decay": 0.1}
    nets = Net(), Net(), Net()
    options = OptimizerConfig(kind="original_adam", **settings)
    train(nets[0], build_optimizer(nets[0], nets[0].backbone, TrainingConfig(rest=options, backbone=options)), 3)
    for net, kind in zip(nets[1:], (original.Adam, torch.optim.Adam), strict=True):
        train(net, kind(net.parameters(), **settings), 3)
    assert torch.equal(nets[0].head.weight, nets[1].head.weight)
    assert not torch.allclose(nets[0].head.weight, nets[2].head.weight, rtol=1e-3)


def test_rmsprop_divides_by_the_root_of_what_gradients_were() -> None:
    net = Net()
    config = OptimizerConfig(kind="rmsprop", lr=0.1, alpha=0.75, eps=1e-3)
    optimizer = build_optimizer(net, net.backbone, TrainingConfig(rest=config, backbone=config))
    weight, gradient = net.head.weight, torch.tensor([[2.0, -1.0, 0.5]])
    before, square = weight.detach().clone(), torch.zeros(1, 3)
    for _ in range(2):
        weight.grad = gradient.clone()
        optimizer.step()
        square = 0.75 * square + 0.25 * gradient**2
        before -= 0.1 * gradient / (square.sqrt() + 1e-3)
        torch.testing.assert_close(weight.detach(), before)


def test_a_frozen_backbone_has_no_group() -> None:
    net = Net()
    names = [group["name"] for group in build_optimizer(net, net.backbone, TrainingConfig()).param_groups]
    assert names == ["rest", "backbone"]
    net.backbone.requires_grad_(False)
    assert len(build_optimizer(net, net.backbone, TrainingConfig()).param_groups) == 1


def test_the_schedule_warms_up_and_falls() -> None:
    factors = [learning_rate_factor(step, 14, 4, "cosine") for step in range(14)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[9] == pytest.approx(0.5)
    assert factors[13] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.9)))
    assert learning_rate_factor(14, 14, 4, "cosine") == pytest.approx(0)
    assert [learning_rate_factor(step, 14, 2, "constant") for step in (0, 1, 13)] == [0.5, 1, 1]


def test_the_schedule_scales_both_groups() -> None:
    net = Net()
    optimizer = build_optimizer(net, net.backbone, TrainingConfig(rest=FAST, backbone=SLOW, warmup=4))
    build_schedule(optimizer, TrainingConfig(warmup=4), 10)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.025])
