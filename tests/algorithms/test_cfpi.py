"""CFPI: the critics' gradient against autograd, the closed forms against search and by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.cfpi import CFPI
from trimtab.policies.bundle.onnx_export import export_onnx
from trimtab.policies.kinds.closed_form import ClosedFormPolicy
from trimtab.policies.networks.action_gradient import bound_and_gradient, obs_share
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.types import Batch, PolicySpec, TrimtabError

SPEC = PolicySpec(3, 1, 2, (-1.0, -2.0), (1.0, 2.0))


def made(
    components: int = 1, deltas: tuple[float, ...] = (0.5,), **more: float
) -> ClosedFormPolicy:
    torch.manual_seed(4)
    policy = ClosedFormPolicy(SPEC, components=components, deltas=deltas, hidden=(16, 16), **more)
    with torch.no_grad():  # wider apart than fresh weights are
        policy.clone[-1].weight.mul_(6.0)
    return policy


def lower_bound(critic: EnsembleCritic, obs: Tensor, action: Tensor, beta: float) -> Tensor:
    q = critic(obs, action)
    return q.mean(0) - (beta * q.std(0) if len(q) > 1 else 0.0)


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_written_gradient_is_that_of_autograd(members: int, layer_norm: bool) -> None:
    torch.manual_seed(members)
    critic = EnsembleCritic(3, 4, hidden=(32, 16), members=members, layer_norm=layer_norm).double()
    obs = torch.randn(20, 3, dtype=torch.float64)
    action = torch.randn(20, 4, dtype=torch.float64, requires_grad=True)
    wanted = lower_bound(critic, obs, action, 1.7)
    (slope,) = torch.autograd.grad(wanted.sum(), action)
    value, found = bound_and_gradient(critic, obs_share(critic, obs), action, 1.7)
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(found, slope)
    assert slope.abs().min() > 0


def slope_of(policy: ClosedFormPolicy, obs: Tensor, point: Tensor) -> Tensor:
    point = point.detach().requires_grad_(True)
    bound = lower_bound(policy.critic, obs, torch.tanh(point), policy.pessimism)
    return torch.autograd.grad(bound.sum(), point)[0]


def test_one_gaussian_moves_as_the_paper_says() -> None:
    policy, obs = made(pessimism=0.8), torch.randn(7, 3)
    _, mean, log_std = policy.distribution(obs)
    mu, variance = mean[:, 0], (2 * log_std[:, 0]).exp()
    g = slope_of(policy, obs, mu)
    step = variance * g / ((g * variance * g).sum(1, keepdim=True).sqrt() + 1e-7)
    wanted = torch.tanh(mu + step) * torch.tensor([1.0, 2.0])  # sqrt(2 * 0.5) = 1
    found = policy(obs, torch.zeros(7, 0))[:, 0]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    still = made(deltas=(0.0,))(obs, torch.zeros(7, 0))[:, 0]
    torch.testing.assert_close(still, torch.tanh(mu) * torch.tensor([1.0, 2.0]))
    assert (found - still).abs().max() > 0.05


def test_of_several_deltas_the_most_valued_answer_is_played() -> None:
    obs, none = torch.randn(40, 3), torch.zeros(40, 0)
    size = torch.tensor([1.0, 2.0])
    each = torch.stack([made(deltas=(d,))(obs, none)[:, 0] / size for d in (0.0, 0.3, 4.0)])
    policy = made(deltas=(0.0, 0.3, 4.0))
    worth = torch.stack([lower_bound(policy.critic, obs, a, 1.0) for a in each])
    best = worth.argmax(0)
    assert len(best.unique()) > 1
    wanted = each[best, torch.arange(40)]
    torch.testing.assert_close(policy(obs, none)[:, 0] / size, wanted, atol=1e-5, rtol=1e-4)


def test_answers_for_a_mixture_are_the_best_of_their_bounds() -> None:
    """By search: no point that a bound allows is better for the linear critic."""
    policy, obs, delta = made(3, (0.16,), trivial=0.0), torch.randn(6, 3), 0.16
    log_weight, mean, log_std = policy.distribution(obs)
    weight, variance = log_weight.exp(), (2 * log_std).exp()
    with torch.no_grad():
        points, there = policy.proposals(obs, obs_share(policy.critic, obs))
    peak = log_weight - 0.5 * torch.log(2 * torch.pi * variance).sum(2)
    generator = torch.Generator().manual_seed(0)
    circle = torch.randn(6, 40_000, 2, generator=generator)
    circle = circle / circle.norm(dim=2, keepdim=True)
    answered = 0
    for i in range(3):  # LogSumExp: w_i N(x; mu_i, S_i) >= exp(-delta) max_j w_j N(mu_j)
        g = slope_of(policy, obs, mean[:, i])
        room = delta + peak[:, i] - peak.amax(1)
        found = ((points[:, i] - mean[:, i]) * g).sum(1)
        # Points of the edge: half the squared distance is the room that the density leaves.
        edge = (2 * room.clamp_min(0))[:, None, None].sqrt() * circle * variance[:, i, None].sqrt()
        best = (edge * g[:, None]).sum(2).amax(1)
        torch.testing.assert_close(found, best, atol=1e-5, rtol=1e-3)
        answered += int((room > 0).sum())
    assert 6 <= answered < 18
    a = (weight[..., None] / variance).sum(1)
    middle = (weight[..., None] / variance * mean).sum(1) / a
    g = slope_of(policy, obs, middle)

    def jensen(x: Tensor) -> Tensor:
        return (
            weight[:, None] * ((x[:, :, None] - mean[:, None]) ** 2 / variance[:, None]).sum(3)
        ).sum(2)

    base = jensen(middle[:, None])[:, 0]
    assert torch.equal(there[:, 3], base <= 2 * delta) and 0 < int(there[:, 3].sum()) < 6
    low, high = torch.zeros(6, 40_000), torch.full((6, 40_000), 50.0)
    for _ in range(60):  # how far each direction stays allowed
        half = (low + high) / 2
        inside = jensen(middle[:, None] + half[..., None] * circle) <= 2 * delta
        low, high = torch.where(inside, half, low), torch.where(inside, high, half)
    best = (low * (circle * g[:, None]).sum(2)).amax(1)
    found = ((points[:, 3] - middle) * g).sum(1)
    torch.testing.assert_close(found[there[:, 3]], best[there[:, 3]], atol=1e-5, rtol=1e-3)


def test_light_components_propose_nothing_and_the_best_answer_is_played() -> None:
    policy, obs = made(3, (0.4,), trivial=0.3), torch.randn(30, 3)
    weight = policy.distribution(obs)[0].exp()
    points, there = policy.proposals(obs, obs_share(policy.critic, obs))
    assert torch.equal(there[:, :3], weight >= 0.3) and not there[:, :3].all()
    played = policy(obs, torch.zeros(30, 0))[:, 0] / torch.tensor([1.0, 2.0])
    for row in range(30):
        allowed = torch.tanh(points[row][there[row]])
        worth = lower_bound(policy.critic, obs[row].expand(len(allowed), -1), allowed, 1.0)
        torch.testing.assert_close(played[row], allowed[worth.argmax()])


def test_a_mixture_of_equal_components_moves_as_one() -> None:
    one, many, obs = made(), made(2), torch.randn(5, 3)
    with torch.no_grad():
        for layer, other in zip(many.clone[:-1:2], one.clone[:-1:2], strict=True):
            layer.load_state_dict(other.state_dict())
        last, single = many.clone[-1], one.clone[-1]
        for name in ("weight", "bias"):
            whole, part = getattr(last, name), getattr(single, name)
            twice = [part[:1]] * 2 + [part[1:3]] * 2 + [part[3:]] * 2
            whole.copy_(torch.cat(twice))
    many.critic.load_state_dict(one.critic.state_dict())
    none = torch.zeros(5, 0)
    torch.testing.assert_close(many(obs, none), one(obs, none), atol=1e-5, rtol=1e-4)


def test_likelihood_is_that_of_torch() -> None:
    policy, obs = made(3), torch.randn(9, 3)
    action = torch.tensor([1.0, 2.0]) * (1.8 * torch.rand(9, 1, 2) - 0.9)
    valid, nothing = torch.ones(9, 1, dtype=torch.bool), torch.zeros(9)
    log_weight, mean, log_std = policy.distribution(obs)
    # The squashing is that of each number, so it can be taken inside of the mixture.
    inner = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    each = Independent(inner, 1).log_prob(action / torch.tensor([1.0, 2.0]))
    wanted = (log_weight + each).logsumexp(1)
    found = policy.log_likelihood(Batch(obs, action, nothing, obs, nothing, valid))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    normal = MixtureSameFamily(
        Categorical(logits=log_weight), Independent(Normal(mean, log_std.exp()), 1)
    ).log_prob(torch.atanh(action[:, 0] / torch.tensor([1.0, 2.0])))
    assert (found - normal).abs().min() > 1e-3, "the squashing counts"


def test_one_graph_holds_the_improvement() -> None:
    """That of one component is exported in ``tests/policies``, as every kind is."""
    policy = made(4, (0.5, 1.0))
    session = onnxruntime.InferenceSession(export_onnx(policy, {}))
    obs = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    (found,) = session.run(None, {"obs": obs, "noise": np.zeros((50, 0), np.float32)})
    wanted = policy(torch.from_numpy(obs), torch.zeros(50, 0)).detach()
    torch.testing.assert_close(torch.from_numpy(found), wanted, atol=1e-4, rtol=1e-3)


def test_losses_by_hand(setup_of: Callable[..., Setup], batch_of: Callable[..., Batch]) -> None:
    torch.manual_seed(1)
    method = CFPI(setup_of({"dataset"}), hidden=(16, 16), batch_size=8)
    data, before = batch_of(method), copy.deepcopy(method)
    found, policy = method.update(data), before.policy
    assert data.next_action is not None
    scale, shift = torch.tensor([1.0, 1.25]), torch.tensor([0.0, 0.75])
    obs, following = data.obs / 1.001, data.next_obs / 1.001  # of deviation 1, as in the fixture
    q = policy.critic(obs, (data.action - shift) / scale)
    with torch.no_grad():
        target = before.critic_target(following, (data.next_action - shift) / scale)
    loss = sum(((q[i] - data.reward - data.discount * target[i]) ** 2).mean() for i in range(2))
    torch.testing.assert_close(found["critic_loss"], torch.as_tensor(loss).detach())
    wanted = -before.policy.log_likelihood(data).mean()
    torch.testing.assert_close(found["clone_loss"], wanted.detach())
    # What an episode cut does not count.
    changed = data.action.clone()
    changed[~data.valid] = 0.1
    other = Batch(data.obs, changed, data.reward, data.next_obs, data.discount, data.valid)
    torch.testing.assert_close(-before.policy.log_likelihood(other).mean(), wanted)


def test_bad_settings_are_one_line(setup_of: Callable[..., Setup]) -> None:
    for wrong, words in (({"components": 0}, "components=0"), ({"deltas": []}, "deltas=\\[\\]"),
                         ({"deltas": [-1.0]}, "at least 0"), ({"pessimism": -1}, "pessimism=-1"),
                         ({"components": 30}, "trivial=0.05")):  # fmt: skip
        with pytest.raises(TrimtabError, match=words):
            CFPI(setup_of({"dataset"}), **wrong)
