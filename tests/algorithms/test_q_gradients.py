"""Methods that climb a critic through a generative policy: losses by hand, steps by torch.optim."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.finetuning.diffusion_ql import DiffusionQL
from trimtab.algorithms.finetuning.fql import FQL
from trimtab.algorithms.phases import Budget, Feed
from trimtab.policies.base import Policy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.one_step import OneStepPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.normalizer import ClippedNormalizer
from trimtab.policies.registry import build_policy
from trimtab.types import Batch, PolicySpec, Statistics, TrimtabError

small = load_module(Path(__file__).with_name("small.py"))
PLAN, RUN, SIZE, bandit = small.PLAN, small.RUN, small.SIZE, small.bandit
SMALL: dict[str, Any] = small.SMALL
follows = small.follows


def flow(seed: int = 0) -> FlowPolicy:
    torch.manual_seed(seed)
    made = FlowPolicy(PLAN, hidden=(16, 16), sampling_steps=2)
    with torch.no_grad():  # so that some of its actions lie beyond the limits
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def few(count: int = 8) -> Batch:
    """Rows of two executed actions, none of them cut."""
    generator = torch.Generator().manual_seed(5)
    discount = torch.tensor([0.9, 0.9, 0.0, 0.9, 0.0, 0.9, 0.9, 0.9])
    return Batch(
        obs=torch.randn(count, 3, generator=generator),
        action=SIZE * (2 * torch.rand(count, 2, 2, generator=generator) - 1),
        reward=torch.randn(count, generator=generator),
        next_obs=torch.randn(count, 3, generator=generator),
        discount=discount[:count],
        valid=torch.ones(count, 2, dtype=torch.bool),
        whole=True,
    )


def moved(module: nn.Module, seed: int) -> None:
    """Move weights, so that critics and targets, learners and averages, differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))


def flow_loss(policy: Any, data: Batch) -> Tensor:
    """Return the flow-matching loss of the executed part, row by row, in the order of its draws."""
    clean = torch.cat([data.action, data.action[:, 1:]], dim=1) / SIZE
    epsilon, time = torch.randn(clean.shape), torch.rand(len(data))
    total = torch.zeros(())
    for row in range(len(data)):
        noisy = (1 - time[row]) * epsilon[row] + time[row] * clean[row]
        condition = policy.network.condition(data.obs[row : row + 1])
        velocity = policy.network(noisy[None], time[row : row + 1], condition)[0]
        total = total + (velocity - clean[row] + epsilon[row])[:2].square().mean()
    return total / len(data)


# The policy of one step.


def test_one_step_policy_is_a_clipped_perceptron_of_observation_and_noise() -> None:
    torch.manual_seed(0)
    policy = OneStepPolicy(PLAN, hidden=(16,))
    obs, noise = torch.randn(50, 3), 6 * torch.randn(50, 3, 2)
    first, _, last = policy.network
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
    with torch.no_grad():
        hidden = nn.functional.gelu(first(torch.cat([obs, noise.reshape(50, 6)], dim=1)))
        action = SIZE * last(hidden).reshape(50, 3, 2)
        assert (action.abs() > SIZE).any() and (action.abs() < SIZE).any()
        assert torch.allclose(policy(obs, noise), torch.clamp(action, -SIZE, SIZE))
    with pytest.raises(TrimtabError, match="no behaviour-cloning loss"):
        policy.bc_loss(few())


def test_one_step_policy_reads_as_its_flow_does_and_is_rebuilt() -> None:
    torch.manual_seed(0)
    base = flow()
    zero, one = torch.zeros(3), torch.ones(3)
    base.fit_normalizer(Statistics(zero, one, -2 * one, 4 * one, -SIZE / 2, SIZE / 4))
    base.normalizer = _clipped(base, 0.5)
    algorithm = FQL(Setup(RUN, base=base), **SMALL)
    obs, action = torch.randn(9, 3), torch.randn(9, 3, 2)
    assert torch.equal(algorithm.policy.normalizer.obs(obs), base.normalizer.obs(obs))
    assert algorithm.policy.normalizer.obs(obs).abs().max() <= 0.5
    assert torch.equal(
        algorithm.policy.normalizer.raw_action(action), base.normalizer.raw_action(action)
    )
    rebuilt = build_policy(json.loads(json.dumps(algorithm.policy.config())))
    rebuilt.load_state_dict(algorithm.policy.state_dict())
    noise = torch.randn(9, 3, 2)
    assert torch.equal(rebuilt(obs, noise), algorithm.policy(obs, noise))


def _clipped(policy: Policy, limit: float) -> ClippedNormalizer:
    made = ClippedNormalizer(policy.spec, limit)
    made.load_state_dict(policy.normalizer.state_dict())
    return made


# Flow Q-learning.


def fql(**keywords: Any) -> FQL:
    made = FQL(Setup(RUN, base=flow()), **{**SMALL, **keywords})
    moved(made.target, 1)
    moved(made.policy, 2)
    return made


@pytest.mark.parametrize("pessimistic", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_flow_q_learning_is_one_step_on_the_sum_of_its_losses(
    pessimistic: bool, normalize: bool
) -> None:
    """The authors sum all losses and take one step of one Adam: the peer does, row by row."""
    data = few()
    settings = {"alpha": 3.0, "pessimistic": pessimistic, "normalize_q": normalize}
    ours, peer = fql(**settings), fql(**settings)
    torch.manual_seed(4)
    metrics = ours.update(data)
    torch.manual_seed(4)
    next_noise, noise = torch.randn(8, 3, 2), torch.randn(8, 3, 2)

    def clip(plan: Tensor) -> Tensor:
        return plan[:, :2].clamp(-1, 1)

    critic_loss, distillation_loss, values, clipped = [], [], [], 0
    for row in range(8):
        obs, next_obs = data.obs[row : row + 1], data.next_obs[row : row + 1]
        with torch.no_grad():
            following = peer.policy.unclipped(next_obs, next_noise[row : row + 1])
            pair = peer.target(next_obs, clip(following))[:, 0]
            value = pair.min() if pessimistic else (pair[0] + pair[1]) / 2
            backup = data.reward[row] + data.discount[row] * value
            taught = peer.flow(obs, noise[row : row + 1]) / SIZE
        estimate = peer.critic(obs, data.action[row : row + 1] / SIZE)[:, 0]
        critic_loss.append((estimate - backup).square().sum())
        plan = peer.policy.unclipped(obs, noise[row : row + 1])
        clipped += int((plan[:, :2].abs() > 1).sum())
        distillation_loss.append((plan - taught).square().mean())
        values.append(peer.critic(obs, clip(plan)).mean())
    assert clipped > 0  # no gradient passes through these actions
    value = torch.stack(values)
    scale = 1 / value.detach().abs().mean() if normalize else 1.0
    distilled, critics = torch.stack(distillation_loss).mean(), torch.stack(critic_loss).mean()
    # The policy's value term must not move the critics, so its gradients are taken apart.
    cloned = flow_loss(peer.flow, data)
    for found, known in (
        ("critic_loss", critics),
        ("distillation_loss", distilled),
        ("policy_loss", 3.0 * distilled - scale * value.mean()),
        ("flow_loss", cloned),
    ):
        assert float(metrics[found]) == pytest.approx(float(known.detach()), rel=1e-4), found
    parts: list[tuple[nn.Module, Tensor]] = [
        (peer.policy, 3.0 * distilled - scale * value.mean()),
        (peer.critic, critics),
        (peer.flow, cloned),
    ]
    weights = [weight for module, _ in parts for weight in module.parameters()]
    gradients = [
        one
        for module, loss in parts
        for one in torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
    ]
    optimizer = torch.optim.Adam(weights, 3e-3)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    optimizer.step()
    for mine, theirs in ((ours.policy, peer.policy), (ours.critic, peer.critic),
                         (ours.flow, peer.flow)):  # fmt: skip
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_without_offline_updates_the_flow_gathers_and_is_distilled_first() -> None:
    algorithm = fql(warmup_steps=48, distill_updates=60)
    phases = algorithm.phases(Budget(offline_steps=0, online_steps=320))
    assert [(p.name, p.length, p.unit, p.feed) for p in phases] == [
        ("warmup", 48, "steps", Feed.EXPERIENCE),
        ("distill", 60, "updates", Feed.EXPERIENCE),
        ("online", 272, "steps", Feed.EXPERIENCE),
    ]
    assert phases[0].update is None
    assert [p.name for p in algorithm.phases(Budget(50, 320))] == ["offline", "online"]
    obs = torch.randn(5, 3)
    for warmup, policy in ((True, algorithm.flow), (False, algorithm.policy)):
        torch.manual_seed(3)
        tried, _ = algorithm.explore(obs, warmup=warmup)
        torch.manual_seed(3)
        assert torch.equal(tried, policy.act(obs)[:, :2])


def test_distillation_reaches_the_flows_end_points() -> None:
    algorithm = FQL(Setup(RUN, base=flow()), hidden=(64, 64), learning_rate=3e-3)
    before = copy.deepcopy(algorithm.flow.state_dict())
    torch.manual_seed(0)
    data = replace(few(), obs=torch.randn(8, 3))
    losses = []
    for _ in range(600):
        data = replace(data, obs=torch.randn(128, 3))
        losses.append(algorithm.distill(data)["distillation_loss"])
    obs, noise = torch.randn(500, 3), torch.randn(500, 3, 2)
    with torch.no_grad():
        target = algorithm.flow(obs, noise)
        error = (algorithm.policy(obs, noise) - target).square().mean()
    assert float(error) < 0.03 * float(target.var())
    assert float(losses[-1]) < 0.1 * float(losses[0])
    assert all(torch.equal(v, before[k]) for k, v in algorithm.flow.state_dict().items())


# Diffusion-QL.


def diffusion_ql(**keywords: Any) -> DiffusionQL:
    made = DiffusionQL(Setup(RUN, base=flow()), **{**SMALL, "candidates": 3, **keywords})
    moved(made.critic, 1)
    moved(made.learner, 2)
    moved(made.policy.critic, 3)
    with (
        torch.no_grad()
    ):  # its second member is the opposite of its first, whose values are about 0
        for weight in made.policy.critic.parameters():
            weight[1] = weight[0]
        last: Any = made.policy.critic.network[-1]
        obs = few().next_obs
        values = made.policy.critic(obs, made.policy.base.act(obs)[:, :2] / SIZE)
        last.bias[0] -= values[0].mean()
        last.weight[1], last.bias[1] = -last.weight[0], -last.bias[0]
    return made


@pytest.mark.parametrize("many", [1, 4])
@pytest.mark.parametrize("seed", [4, 7])
def test_diffusion_ql_steps_as_its_authors_code_does(many: int, seed: int) -> None:
    data = few()
    ours, peer = (diffusion_ql(eta=0.7, backup_samples=many, max_gradient_norm=0.5) for _ in "ab")
    torch.manual_seed(seed)
    metrics = ours.update(data)
    torch.manual_seed(seed)
    # Critics: each target's best of the samples, then the least of the two.
    noise = torch.randn(8 * many, 3, 2)
    loss, orders = torch.zeros(()), 0
    for row in range(8):
        obs, next_obs = data.obs[row : row + 1], data.next_obs[row : row + 1]
        with torch.no_grad():
            pairs = [
                peer.policy.critic(
                    next_obs, peer.policy.base(next_obs, noise[row * many + k][None])[:, :2] / SIZE
                )[:, 0]
                for k in range(many)
            ]
            value = min(max(float(pair[i]) for pair in pairs) for i in range(2))
            orders += int(value != max(float(pair.min()) for pair in pairs))
            backup = data.reward[row] + data.discount[row] * value
        estimate = peer.critic(obs, data.action[row : row + 1] / SIZE)[:, 0]
        loss = loss + (estimate - backup).square().sum() / 8
    assert float(metrics["critic_loss"]) == pytest.approx(float(loss.detach()), rel=1e-4)
    assert many == 1 or orders > 0  # the least of the highest is not the highest of the least
    stepped(peer.critic, loss)
    # Policy: imitation and the value of a sample, through the whole sampler.
    cloned = flow_loss(peer.learner, data)
    noise = torch.randn(8, 3, 2)
    coin = float(torch.rand(())) > 0.5
    first, second = [], []
    for row in range(8):
        obs = data.obs[row : row + 1]
        x, condition = noise[row : row + 1], peer.learner.network.condition(obs)
        for step in range(2):
            x = x + peer.learner.network(x, torch.tensor([step / 2]), condition) / 2
        one, two = peer.critic(obs, x[:, :2].clamp(-1, 1))[:, 0]
        first, second = [*first, one], [*second, two]
    q1, q2 = torch.stack(first), torch.stack(second)
    if coin:
        value_loss = -q1.mean() / q2.abs().mean().detach()
    else:
        value_loss = -q2.mean() / q1.abs().mean().detach()
    assert float(metrics["clone_loss"]) == pytest.approx(float(cloned.detach()), rel=1e-4)
    assert float(metrics["value_loss"]) == pytest.approx(float(value_loss.detach()), rel=1e-4)
    stepped(peer.learner, cloned + 0.7 * value_loss)
    for mine, theirs in ((ours.critic, peer.critic), (ours.learner, peer.learner)):
        for left, right in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-5)


def stepped(module: nn.Module, loss: Tensor) -> None:
    """Take one step of torch.optim.Adam, the gradients bounded together."""
    weights = list(module.parameters())
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.grad = gradient
    assert float(nn.utils.clip_grad_norm_(weights, 0.5)) > 0.5
    torch.optim.Adam(weights, 3e-3).step()


def test_the_coin_shows_both_sides() -> None:
    algorithm, obs = diffusion_ql(), torch.randn(8, 3)
    torch.manual_seed(0)
    noise = torch.randn(8, 3, 2)
    algorithm.learner.sample_noise = lambda n: noise  # type: ignore[method-assign]
    found = {round(float(algorithm.value_loss(obs).detach()), 5) for _ in range(40)}
    assert len(found) == 2


def test_the_average_waits_and_then_moves_every_so_often() -> None:
    algorithm, data = diffusion_ql(ema_start=3, ema_every=2, ema_decay=0.9), few()
    moves = []
    for _ in range(8):
        before = copy.deepcopy(algorithm.policy.base)
        target = copy.deepcopy(algorithm.policy.critic)
        algorithm.update(data)
        pairs = zip(algorithm.policy.base.parameters(), before.parameters(), strict=True)
        moves.append(not all(torch.equal(now, was) for now, was in pairs))
        if moves[-1]:
            follows(algorithm.policy.base, before, algorithm.learner, 0.1)
        follows(algorithm.policy.critic, target, algorithm.critic, 0.005)
    assert moves == [False, False, False, False, True, False, True, False]


def test_diffusion_ql_takes_the_policy_of_the_paper() -> None:
    torch.manual_seed(0)
    base = DiffusionPolicy(PLAN, hidden=(16,), train_steps=5, sampler="ddpm", sampling_steps=5)
    algorithm = DiffusionQL(Setup(RUN, base=base), **SMALL, candidates=6, eta=50.0)
    data = few()
    before = copy.deepcopy(algorithm.learner.state_dict())
    for _ in range(2):
        algorithm.update(data)
    assert not torch.equal(before["network.obs_layer.weight"],
                           algorithm.learner.state_dict()["network.obs_layer.weight"])  # fmt: skip
    for warmup, policy in ((True, algorithm.policy.base), (False, algorithm.policy)):
        torch.manual_seed(3)
        tried, _ = algorithm.explore(data.obs, warmup=warmup)
        torch.manual_seed(3)
        assert torch.equal(tried, policy.act(data.obs)[:, :2])


# What is refused.


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (FQL, {"alpha": 0.3, "normalize_q": True}),
        (DiffusionQL, {"eta": 2.0, "ema_start": 0, "ema_every": 1, "ema_decay": 0.9, "tau": 0.05}),
    ],
)
def test_learns_the_rewarded_end_of_what_it_clones(
    kind: Callable[..., Any], settings: dict[str, Any]
) -> None:
    """The data goes anywhere; what is far along the observation's sign is worth most."""
    torch.manual_seed(0)
    spec = PolicySpec(1, 1, 1, (-2.0,), (2.0,))
    base = FlowPolicy(spec, hidden=(32, 32), sampling_steps=2)
    algorithm = kind(
        Setup(spec, base=base), **{"hidden": (32, 32), "learning_rate": 3e-3, **settings}
    )

    def rewarded(obs: Tensor, action: Tensor) -> Tensor:
        return action[:, 0, 0] * obs[:, 0].sign() / 2

    obs = (torch.randint(2, (1000, 1)) * 2.0 - 1.0) * (0.5 + torch.rand(1000, 1))
    action = 4 * torch.rand(1000, 1, 1) - 2
    reward = rewarded(obs, action)
    assert abs(float(reward.mean())) < 0.1
    for _ in range(400):
        rows = torch.randint(1000, (128,))
        algorithm.update(bandit(obs[rows], action[rows], reward[rows]))
    assert float(rewarded(obs, algorithm.policy.act(obs)).mean()) > 0.5
    # It is the critic that does it: the cloned flow of the same run goes anywhere still.
    if kind is FQL:
        assert abs(float(rewarded(obs, algorithm.flow.act(obs)).mean())) < 0.2


@pytest.mark.parametrize("kind", [FQL, DiffusionQL])
def test_a_start_that_cannot_be_cloned_is_refused(kind: Callable[..., Any]) -> None:
    with pytest.raises(TrimtabError, match="no behaviour-cloning loss"):
        kind(Setup(RUN, base=TanhGaussianPolicy(RUN, hidden=(8,))))


def test_a_flow_whose_noise_is_a_path_cannot_be_distilled() -> None:
    base = DiffusionPolicy(RUN, hidden=(8,), sampler="ddpm")
    with pytest.raises(TrimtabError, match=r"distillation: .* not that of one latent chunk"):
        FQL(Setup(RUN, base=base))
