"""Two updates of the offline baselines equal CORL's, from the same weights, batches and noise.

CORL's numbers are data: ``data/peer_numbers_offline.py`` wrote them, in double precision. Ours are
computed in double precision too, so what is left of the difference is the order of sums.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.offline.awac import AWAC
from trimtab.algorithms.offline.cql import CQL
from trimtab.algorithms.offline.iql import IQL
from trimtab.algorithms.offline.rebrac import ReBRAC
from trimtab.algorithms.offline.td3_bc import TD3BC
from trimtab.policies.networks.critic import EnsembleCritic, EnsembleLinear
from trimtab.types import Batch, PolicySpec, Statistics

DATA = Path(__file__).parent / "data"
written = load_module(DATA / "written_numbers.py")

THEIRS = json.loads((DATA / "corl_offline.json").read_text())
TOLERANCE: dict[str, Any] = {"rel": 1e-7, "abs": 1e-8}


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def setup() -> Setup:
    spec = PolicySpec(written.OBS, 1, written.ACTION, (-1.0,) * 2, (1.0,) * 2)
    zero, one = torch.zeros(written.OBS), torch.ones(written.ACTION)
    # Standardising adds 0.001 to the deviation; CORL's batches are standardised already.
    return Setup(spec, statistics=Statistics(zero, zero + 0.999, zero - 1, zero + 1, -one, one))


def fill(name: str, network: nn.Module, hidden: int) -> None:
    """Give a perceptron, or an ensemble of them, the weights of the formula."""
    linear = [m for m in network.modules() if isinstance(m, nn.Linear | EnsembleLinear)]
    with torch.no_grad():
        if isinstance(linear[0], nn.Linear):
            sizes = linear[0].in_features, hidden, linear[-1].out_features
            for mine, pair in zip(linear, written.perceptron(name, *sizes), strict=True):
                mine.weight.copy_(torch.from_numpy(pair[0]))
                mine.bias.copy_(torch.from_numpy(pair[1]))
            return
        for member in range(len(linear[0].weight)):
            layers = written.perceptron(f"{name} {member}", linear[0].weight.shape[1], hidden, 1)
            for mine, pair in zip(linear, layers, strict=True):
                mine.weight[member].copy_(torch.from_numpy(pair[0]).T)
                mine.bias[member, 0].copy_(torch.from_numpy(pair[1]))


def weights(networks: Mapping[str, nn.Module]) -> dict[str, list[float]]:
    """Sum and some entries of every weight, under CORL's names."""
    found = {}
    for name, network in networks.items():
        linear = [m for m in network.modules() if isinstance(m, nn.Linear | EnsembleLinear)]
        for place, one in enumerate(linear):
            weight, bias = one.weight.detach().numpy(), one.bias.detach().numpy()
            if isinstance(one, nn.Linear):
                found[f"{name} {place} weight"] = written.summary(weight)
                found[f"{name} {place} bias"] = written.summary(bias)
                continue
            for member in range(len(weight)):
                found[f"{name} {member} {place} weight"] = written.summary(weight[member].T)
                found[f"{name} {member} {place} bias"] = written.summary(bias[member])
    return found


def batch(update: int) -> Batch:
    data = {k: torch.from_numpy(v) for k, v in written.batch(update).items()}
    return Batch(
        obs=data["obs"],
        action=data["action"][:, None],
        reward=data["reward"],
        next_obs=data["next_obs"],
        discount=written.DISCOUNT * (1 - data["ended"]),
        valid=torch.ones(written.BATCH, 1, dtype=torch.bool),
        next_action=data["next_action"][:, None],
    )


def compare(
    name: str,
    method: Algorithm,
    networks: Mapping[str, nn.Module],
    losses: Mapping[str, Callable[[Mapping[str, float]], float]],
    begin: Callable[[int], None],
    single: Mapping[str, Tensor] | None = None,
) -> None:
    """Take the updates and compare losses and weights with CORL's.

    Args:
        name: of CORL's part.
        method: ours, with the weights of the formula.
        networks: its networks by CORL's names.
        losses: our metric's name, and how it follows from CORL's numbers.
        begin: called with the number of each update before it.
        single: further weights by CORL's names.
    """
    known = THEIRS[name]
    for update, theirs in enumerate(known["updates"]):
        begin(update)
        metrics = method.update(batch(update))
        for ours, of_theirs in losses.items():
            expected = of_theirs(theirs)
            if expected is not None:
                assert float(metrics[ours]) == pytest.approx(expected, **TOLERANCE), (ours, update)
    found = weights(networks)
    found |= {k: written.summary(v.detach().numpy()) for k, v in (single or {}).items()}
    compared = known["weights"]
    assert found.keys() <= compared.keys() and len(found) >= 20
    for weight, entries in found.items():
        assert entries == pytest.approx(compared[weight], **TOLERANCE), weight


def noise(update: int, draw: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.array(written.noise_of(update, draw, shape)))


def no_noise(update: int) -> None:
    return


def test_td3_bc(monkeypatch: pytest.MonkeyPatch) -> None:
    method = TD3BC(setup())
    fill("actor", method.policy.network, 2)
    fill("critic", method.critic, 2)
    method.policy_target.load_state_dict(method.policy.state_dict())
    method.critic_target.load_state_dict(method.critic.state_dict())

    def begin(update: int) -> None:
        drawn = noise(update, 0, written.BATCH, written.ACTION)[:, None]
        monkeypatch.setattr(torch, "randn_like", lambda x: drawn)

    networks = {"actor": method.policy.network, "critic": method.critic}
    networks |= {"target": method.critic_target, "actor target": method.policy_target.network}
    losses = {
        "critic_loss": lambda x: x["critic_loss"],
        "actor_loss": lambda x: x.get("actor_loss"),
    }
    compare("td3_bc", method, networks, losses, begin)  # type: ignore[arg-type]


def test_iql() -> None:
    method = IQL(setup(), decay_updates=10)
    fill("actor", method.policy.network, 2)
    fill("critic", method.critic, 2)
    fill("value", method.value, 2)
    method.target.load_state_dict(method.critic.state_dict())
    networks: dict[str, nn.Module] = {"actor": method.policy.network, "critic": method.critic}
    networks |= {"target": method.target, "value": method.value}
    losses = {
        "value_loss": lambda x: x["value_loss"],
        "critic_loss": lambda x: x["q_loss"],
        "actor_loss": lambda x: x["actor_loss"],
    }
    single = {"actor log std": method.policy.free_log_std}
    compare("iql", method, networks, losses, no_noise, single)


def test_awac(monkeypatch: pytest.MonkeyPatch) -> None:
    method = AWAC(setup())
    fill("actor", method.policy.network, 3)
    fill("critic", method.critic, 3)
    method.target.load_state_dict(method.critic.state_dict())

    def begin(update: int) -> None:
        shape = (written.BATCH, written.ACTION)
        draws = iter([noise(update, draw, *shape)[:, None] for draw in (0, 1)])
        monkeypatch.setattr(method.policy, "sample_noise", lambda rows: next(draws))

    networks: dict[str, nn.Module] = {"actor": method.policy.network, "critic": method.critic}
    networks["target"] = method.target
    losses = {name: lambda x, name=name: x[name] for name in ("critic_loss", "actor_loss")}
    single = {"actor log std": method.policy.free_log_std}
    compare("awac", method, networks, losses, begin, single)  # type: ignore[arg-type]


@pytest.mark.parametrize("lagrange", [False, True])
def test_cql(lagrange: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    method = CQL(
        setup(), conservative_weight=written.CQL_ALPHA, lagrange_gap=0.8 if lagrange else None
    )
    fill("actor", method.actor.network, 3)
    fill("critic", method.critic, 3)
    method.target.load_state_dict(method.critic.state_dict())

    def begin(update: int) -> None:
        rows, size, many = written.BATCH, written.ACTION, written.CANDIDATES
        own, backup = (noise(update, draw, rows, size)[None, :, None] for draw in (0, 1))
        uniform, here, there = (
            noise(update, draw, rows, many, size).transpose(0, 1)[:, :, None] for draw in (2, 3, 4)
        )
        draws = iter([own, here, there, backup])
        monkeypatch.setattr(method, "noise", lambda many, rows: next(draws))
        monkeypatch.setattr(torch, "rand_like", lambda x: (uniform + 1) / 2)

    def critic_loss(x: Mapping[str, float]) -> float:
        return sum(x[f"qf{e}_loss"] + x[f"cql_min_qf{e}_loss"] for e in (1, 2))

    networks: dict[str, nn.Module] = {"actor": method.actor.network, "critic": method.critic}
    networks["target"] = method.target
    losses: dict[str, Callable[[Mapping[str, float]], float]] = {
        "critic_loss": critic_loss,
        "td_loss": lambda x: x["qf1_loss"] + x["qf2_loss"],
        "conservative_gap": lambda x: (x["cql_qf1_diff"] + x["cql_qf2_diff"]) / 2,
        "q_mean": lambda x: (x["average_qf1"] + x["average_qf2"]) / 2,
        "actor_loss": lambda x: x["policy_loss"],
        "entropy": lambda x: -x["log_pi"],
        "temperature": lambda x: x["alpha"],
    }
    single = {"temperature": method.temperature.log}
    if lagrange:
        single["multiplier"] = method.multiplier.log
    compare("cql_lagrange" if lagrange else "cql", method, networks, losses, begin, single)


def test_rebrac(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the target actor, which takes the actor before its step there."""
    method = ReBRAC(setup(), critic_learning_rate=1e-3, **written.REBRAC)
    fill("actor", method.policy.network, 3)
    fill("critic", method.critic, 3)
    method.policy_target.load_state_dict(method.policy.state_dict())
    method.critic_target.load_state_dict(method.critic.state_dict())
    assert isinstance(method.critic, EnsembleCritic)

    def begin(update: int) -> None:
        drawn = noise(update, 0, written.BATCH, written.ACTION)[:, None]
        monkeypatch.setattr(torch, "randn_like", lambda x: drawn)

    networks = {"actor": method.policy.network, "critic": method.critic}
    networks["target"] = method.critic_target
    losses = {
        "critic_loss": lambda x: x["critic_loss"],
        "actor_loss": lambda x: x.get("actor_loss"),
    }
    compare("rebrac", method, networks, losses, begin)  # type: ignore[arg-type]
