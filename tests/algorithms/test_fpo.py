"""FPO and FPO++: losses and ratios against closed forms and the paper's formulas, and learning."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from torch.distributions import Normal

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.returns import normalized
from trimtab.algorithms.on_policy.fpo import FPO, Samples
from trimtab.policies.kinds.squashed_flow import SquashedFlowPolicy
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.types import PolicySpec, Rollout

CONF = Path(__file__).resolve().parents[2] / "conf" / "algorithm"
SPEC = PolicySpec(3, 2, 2, (-1.0, -0.5), (1.0, 2.0))
SMALL: dict[str, Any] = {
    "hidden": (16,), "actor_hidden": (16, 16), "sampling_steps": 10, "rollout_steps": 6,
    "batch_size": 8, "epochs": 2,
}  # fmt: skip
NEUTRAL: dict[str, Any] = {
    "loss": "noise", "loss_scale": "mean", "ratio": "action", "trust_region": "clip",
    "loss_limit": None, "log_ratio_limit": None, "action_noise": 0.0, "time_beta": None,
    "normalize_advantages": "minibatch", "average_decay": 0.0, "weight_decay": 0.0,
}  # fmt: skip
"""The settings that FPO++ adds, each with the value that changes nothing."""
RISE: Callable[[Tensor, Tensor], Tensor] = lambda obs, action: action.sum((1, 2))  # noqa: E731


def settings(name: str) -> dict[str, Any]:
    """Return the keywords in a settings file."""
    section: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    return {key: value for key, value in section["algorithm"].items() if key != "_target_"}


def made(spec: PolicySpec = SPEC, envs: int = 4, **keywords: Any) -> FPO:
    torch.manual_seed(5)
    return FPO(Setup(spec, num_envs=envs), **{**SMALL, **keywords})


def rollout_of(algorithm: FPO, reward: Callable[[Tensor, Tensor], Tensor], envs: int = 4,
               seed: int = 1) -> Rollout:  # fmt: skip
    """Decisions that each end their episode, so that a reward belongs to one of them alone."""
    torch.manual_seed(seed)
    obs = torch.randn(algorithm.pace.rollout_steps, envs, algorithm.policy.spec.obs_dim)
    found = [algorithm.explore(one, warmup=False) for one in obs]
    action = torch.stack([action for action, _ in found])
    return Rollout(
        obs=obs,
        action=action,
        reward=torch.stack([reward(o, a) for o, a in zip(obs, action, strict=True)]),
        next_obs=obs,
        discount=torch.zeros(obs.shape[:2]),
        cut=torch.ones(obs.shape[:2], dtype=torch.bool),
        aux={name: torch.stack([aux[name] for _, aux in found]) for name in algorithm.aux_shapes},
    )


def samples_of(algorithm: FPO) -> Samples:
    return algorithm.samples(rollout_of(algorithm, RISE))


def nudge(algorithm: FPO, size: float = 0.05) -> None:
    with torch.no_grad():
        for weight in algorithm.actor.parameters():
            weight.add_(size * torch.randn_like(weight))


def losses_of(algorithm: FPO, part: Samples) -> Tensor:
    return algorithm.pair_losses(part.obs, part.latent, part.epsilon, part.time)


# The losses of pairs.


def of_the_paper(algorithm: FPO, part: Samples, row: int, pair: int) -> tuple[float, float]:
    """The two losses of a pair in the papers' time, from 1 (noise) to 0 (action), and their signs.

    FPO supervises the noise; FPO++ the velocity, over the root of the number of entries.
    """
    action, noise = part.latent[row], part.epsilon[row, pair]
    t = 1 - part.time[row, pair]
    point = t * noise + (1 - t) * action
    network = algorithm.actor.network
    output = network(point[None], (1 - t)[None], network.condition(part.obs[row][None]))[0]
    u = -algorithm.actor.output_scale * output
    noise_found = (point - t * u) + u
    squares = (u - (noise - action)).square()
    return float((noise - noise_found).square().mean()), float(squares.sum()) / math.sqrt(4)


@torch.no_grad()
def test_losses_are_those_of_the_papers() -> None:
    """Supervised by the noise, a loss is (1 - t)^2 times that of the velocity."""
    algorithm = made()
    nudge(algorithm, 0.3)
    part = samples_of(algorithm)
    noise = losses_of(algorithm, part)
    algorithm.loss = "velocity"
    velocity = losses_of(algorithm, part)
    algorithm.loss_scale = "root"
    root = losses_of(algorithm, part)
    for row in range(0, 24, 5):
        for pair in range(8):
            first, second = of_the_paper(algorithm, part, row, pair)
            assert noise[row, pair].item() == pytest.approx(first, rel=1e-4, abs=1e-6)
            assert root[row, pair].item() == pytest.approx(second, rel=1e-4)
    torch.testing.assert_close(noise, part.time.square() * velocity, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(root, 2.0 * velocity)


@torch.no_grad()
@pytest.mark.parametrize("loss", ["noise", "velocity"])
def test_averaged_ratio_of_constant_velocities_is_that_of_gaussian_densities(loss: str) -> None:
    """What is left of the losses' difference is Gaussian, of variance d / (2 mean weight)."""
    algorithm = made(PolicySpec(3, 1, 2, (-1.0, -1.0), (1.0, 1.0)), pairs=400_000, loss=loss)
    epsilon = torch.randn(1, algorithm.pairs, 1, 2)
    time = algorithm.draw_times((1, algorithm.pairs), torch.device("cpu"))
    obs, latent = torch.randn(1, 3), torch.tensor([[[0.4, -0.7]]])
    velocities = torch.tensor([0.3, -0.2]), torch.tensor([0.5, -0.6])
    found = []
    for velocity in velocities:
        last = algorithm.actor.network.body[-1][-1]  # type: ignore[index]
        last.weight.zero_()
        last.bias.copy_(velocity / algorithm.actor.output_scale)
        found.append(algorithm.pair_losses(obs, latent, epsilon, time))
    weight = 0.285 if loss == "noise" else 1.0  # the mean of t^2 over 0, 0.1, ..., 0.9
    old, new = (
        Normal(one, math.sqrt(2 / (2 * weight))).log_prob(latent).sum() for one in velocities
    )
    assert algorithm.log_ratios(*found).item() == pytest.approx(float(new - old), abs=2e-3)
    assert abs(float(new - old)) > 0.02


@torch.no_grad()
def test_stored_losses_are_those_of_stored_pairs() -> None:
    for algorithm in (made(), made(**{**settings("fpo_plus"), **SMALL})):
        data = rollout_of(algorithm, RISE)
        part = algorithm.samples(data)
        torch.testing.assert_close(losses_of(algorithm, part), part.loss, rtol=1e-5, atol=1e-6)
        assert part.loss.std() > 0.05
        raw = algorithm.actor.squashed(part.latent)
        assert torch.equal(raw.unflatten(0, (6, 4)), data.action)


def test_times_are_those_at_which_the_sampler_asks() -> None:
    algorithm = made()
    asked: list[float] = []
    network = algorithm.actor.network
    network.register_forward_pre_hook(lambda _, given: asked.append(float(given[1])))
    algorithm.actor.latent(torch.randn(2, 3), algorithm.actor.sample_noise(2))
    drawn = algorithm.draw_times((500, 8), torch.device("cpu")).flatten()
    assert sorted(set(drawn.tolist())) == pytest.approx(asked)
    assert len(asked) == 10


@pytest.mark.parametrize("beta", [1.0, 3.0, 0.5])
def test_times_of_beta_are_those_of_the_paper(beta: float) -> None:
    """Their noise level is 0.005 + 0.99 (1 - (1 - u)^(1 / beta)): above 1, near the action."""
    time = made(time_beta=beta).draw_times((20_000, 10), torch.device("cpu"))
    uniform = torch.rand(200_000)
    level = 0.005 + 0.99 * (1 - (1 - uniform) ** (1 / beta))
    shares = torch.linspace(0.05, 0.95, 10)
    quantiles = [one.flatten().quantile(shares) for one in (1 - time[:, :8], level)]
    torch.testing.assert_close(quantiles[0], quantiles[1], atol=0.01, rtol=0)


# Ratios and surrogates.


def test_one_pair_has_one_ratio() -> None:
    algorithm = made(pairs=1)
    part = samples_of(algorithm)
    nudge(algorithm)
    found = losses_of(algorithm, part)
    of_action = algorithm.log_ratios(part.loss, found)
    algorithm.ratio = "pair"
    of_pair = algorithm.log_ratios(part.loss, found)
    assert torch.equal(of_action, of_pair) and of_pair.abs().max() > 1e-3
    advantage = normalized(part.advantage)
    loss = algorithm.surrogate_loss(of_action, advantage)
    assert torch.equal(loss, algorithm.surrogate_loss(of_pair, advantage))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_float32_has_a_gradient(advantage: float) -> None:
    algorithm = made(pairs=1)
    new = torch.tensor([[0.0]], requires_grad=True)
    ratios = algorithm.log_ratios(torch.tensor([[1000.0]]), new)
    loss = algorithm.surrogate_loss(ratios, torch.tensor([advantage]))
    (gradient,) = torch.autograd.grad(loss, new)
    # d/dl of -exp(l_old - l) A; the clip leaves out a good action that is likelier already.
    expected = 0.0 if advantage > 0 else -math.exp(20.0)
    assert gradient.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["fpo", "fpo_plus"])
def test_before_the_first_step_the_ratio_is_one(name: str) -> None:
    """So the first gradient is that of the mean of A times the loss."""
    algorithm = made(**{**settings(name), **SMALL})
    torch.manual_seed(2)
    obs = torch.randn(12, 3)
    aux = algorithm.explore(obs, warmup=False)[1]
    advantage, weights = torch.randn(12), list(algorithm.actor.parameters())
    vector = algorithm.actor.normalizer.obs(obs)
    losses = algorithm.pair_losses(vector, aux["latent"], aux["epsilon"], aux["time"])
    log_ratio = algorithm.log_ratios(aux["loss"], losses)
    assert torch.equal(log_ratio, torch.zeros_like(log_ratio))
    loss = algorithm.surrogate_loss(log_ratio, advantage)
    found = torch.autograd.grad(loss, weights, retain_graph=True)
    expected = torch.autograd.grad((advantage[:, None] * losses).mean(), weights)
    assert max(float(one.abs().max()) for one in expected) > 1e-2
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", ["fpo", "fpo_plus"])
def test_surrogate_is_the_sum_over_rows_and_pairs(name: str) -> None:
    """One ratio after another, with the papers' formulas."""
    plus = name == "fpo_plus"
    algorithm = made(**{**settings(name), **SMALL, "clip": 0.02})
    part = samples_of(algorithm)
    nudge(algorithm, 0.01 if plus else 0.3)
    new = losses_of(algorithm, part)
    found = algorithm.surrogate_loss(algorithm.log_ratios(part.loss, new), part.advantage)
    gains, outside = [], 0
    for old_row, new_row, a in zip(part.loss, new, part.advantage.tolist(), strict=True):
        pairs = zip(old_row.tolist(), new_row.tolist(), strict=True)
        logs = [min(min(o, 20.0) - min(n, 20.0), 10.0) for o, n in pairs]
        if not plus:
            logs = [float(old_row.mean() - new_row.mean())]
        for ratio in map(math.exp, logs):
            clipped = min(max(ratio, 0.98), 1.02)
            outside += ratio != clipped
            gain = min(ratio * a, clipped * a)
            if plus and a <= 0:
                gain = ratio * a - abs(a) / 0.04 * (ratio - 1) ** 2
            gains.append(gain)
    assert 0.1 < outside / len(gains) < 0.95
    assert min(part.advantage) < -0.1 < 0.1 < max(part.advantage)
    assert found.item() == pytest.approx(-sum(gains) / len(gains), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("advantage", [-0.3, -2.0, 1.5])
def test_asymmetric_region_has_its_best_ratio_at_its_edge(advantage: float) -> None:
    algorithm = made(trust_region="asymmetric", ratio="pair", clip=0.05)
    ratios = torch.linspace(0.5, 1.5, 2001, dtype=torch.float64)
    loss = torch.stack(
        [
            algorithm.surrogate_loss(one.log()[None, None], torch.tensor([advantage]).double())
            for one in ratios
        ]
    )
    best = ratios[loss <= loss.min() + 1e-12]
    if advantage < 0:
        torch.testing.assert_close(best, torch.full_like(best, 0.95), atol=1e-3, rtol=0)
    else:  # the clip: nothing is gained beyond
        assert best.min().item() == pytest.approx(1.05, abs=1e-3) and best.max() == 1.5
    slopes = []
    for region in ("asymmetric", "clip"):
        algorithm = made(trust_region=region, ratio="pair", clip=0.05)
        log_ratio = torch.zeros(1, 1, requires_grad=True)
        loss = algorithm.surrogate_loss(log_ratio, torch.tensor([advantage]))
        slopes.append(torch.autograd.grad(loss, log_ratio)[0].item())
    assert slopes[0] == pytest.approx(slopes[1]) == pytest.approx(-advantage)
    # Beyond the edge the penalty leads back, where the clip has no slope left.
    far = torch.tensor([[math.log(0.8)]], requires_grad=True)
    loss = made(trust_region="asymmetric", ratio="pair").surrogate_loss(far, torch.tensor([-1.0]))
    assert torch.autograd.grad(loss, far)[0].item() < -0.1


def test_limits_cut_values_and_the_one_of_ratios_keeps_the_gradient() -> None:
    algorithm = made(ratio="pair", loss_limit=20.0, log_ratio_limit=10.0)
    old = torch.tensor([[35.0, 35.0, 15.0, 1.0, 3.0]])
    new = torch.tensor([[1.0, 30.0, 40.0, 25.0, 2.0]], requires_grad=True)
    found = algorithm.log_ratios(old, new)
    torch.testing.assert_close(found.detach(), torch.tensor([[10.0, 0.0, -5.0, -19.0, 1.0]]))
    assert found.exp()[0, 0].item() == pytest.approx(math.exp(10.0), rel=1e-5)
    slope = torch.autograd.grad(found.sum(), new)[0]
    assert slope.tolist() == [[-1.0, 0.0, 0.0, 0.0, -1.0]]


# Whole updates.


def test_an_update_is_that_of_torch() -> None:
    """FPO by itself, without the settings of FPO++: its formulas, loops and torch's Adam."""
    algorithm, twin = made(), made()
    data = rollout_of(algorithm, RISE)
    weights = [*twin.actor.parameters()]
    adam = torch.optim.Adam(weights, 3e-4)
    adam_of_value = torch.optim.Adam(twin.critic.parameters(), 3e-4)
    obs, aux = data.obs.flatten(0, 1), {k: v.flatten(0, 1) for k, v in data.aux.items()}
    with torch.no_grad():
        value = twin.critic(obs).squeeze(-1)
        assert twin.reward_scale is not None
        target = twin.reward_scale(data.reward, data.cut).flatten()  # each ends its episode
    torch.manual_seed(9)
    for _ in range(2):
        for rows in torch.randperm(24).split(8):
            error = twin.critic(obs[rows]).squeeze(-1) - target[rows]
            adam_of_value.zero_grad()
            (0.5 * error.square().mean()).backward()  # type: ignore[no-untyped-call]
            adam_of_value.step()
            advantage = (target - value)[rows]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            surrogates = []
            for row, a in zip(rows.tolist(), advantage, strict=True):
                new = []
                for eps, t in zip(aux["epsilon"][row], aux["time"][row], strict=True):
                    point = (1 - t) * eps + t * aux["latent"][row]
                    network = twin.actor.network
                    output = network(point[None], t[None], network.condition(obs[row][None]))[0]
                    noise = point - t * 0.25 * output
                    new.append((eps - noise).square().mean())
                ratio = (aux["loss"][row].mean() - torch.stack(new).mean()).exp()
                surrogates.append(torch.minimum(ratio * a, ratio.clamp(0.95, 1.05) * a))
            adam.zero_grad()
            (-torch.stack(surrogates).mean()).backward()  # type: ignore[no-untyped-call]
            adam.step()
    before = [weight.detach().clone() for weight in made().actor.parameters()]
    torch.manual_seed(9)
    algorithm.update(data)
    for mine, theirs, was in zip(algorithm.actor.parameters(), weights, before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)
        assert (mine - was).abs().max() > 3e-4
    for one, other in zip(algorithm.critic.parameters(), twin.critic.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def bits(algorithm: FPO) -> list[Tensor]:
    """Weights of the actor, of what is judged and of V after two rollouts."""
    for seed in range(2):
        algorithm.update(rollout_of(algorithm, RISE, seed=seed))
    modules = (algorithm.actor, algorithm.policy, algorithm.critic)
    return [tensor for module in modules for tensor in module.state_dict().values()]


def test_fpo_plus_at_neutral_values_is_fpo_to_the_last_bit() -> None:
    plus = settings("fpo_plus")
    assert NEUTRAL.keys() <= plus.keys() and not NEUTRAL.keys() & settings("fpo").keys()
    sizes = {key: value for key, value in plus.items() if key not in NEUTRAL} | SMALL
    expected = bits(made(**{**settings("fpo"), **sizes}))
    found = bits(made(**{**plus, **SMALL, **NEUTRAL}))
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


@pytest.mark.parametrize("name", NEUTRAL)
def test_each_setting_of_fpo_plus_changes_something(name: str) -> None:
    # Limits that are reached even by small losses; a decay that is not lost in rounding.
    other = {"loss_limit": 0.2, "log_ratio_limit": 1e-6, "weight_decay": 1.0}
    value = other.get(name, settings("fpo_plus")[name])
    pairs = zip(bits(made()), bits(made(**{name: value})), strict=True)
    assert not all(torch.equal(*pair) for pair in pairs)


def test_what_is_judged_is_the_average() -> None:
    algorithm = made(average_decay=0.9, average_start=2)
    judged = algorithm.policy.network.obs_layer.weight
    expected = judged.clone()
    for number in range(1, 5):
        acted = algorithm.explore(torch.ones(2, 3), warmup=False)[1]["latent"]
        assert acted.isfinite().all() and not judged.requires_grad
        algorithm.update(rollout_of(algorithm, RISE, seed=number))
        now = algorithm.actor.network.obs_layer.weight.detach().clone()
        expected = now if number <= 2 else 0.9 * expected + 0.1 * now
        torch.testing.assert_close(judged, expected)
        assert torch.equal(judged, now) == (number <= 2)
    assert algorithm.policy.normalizer is algorithm.actor.normalizer
    assert isinstance(algorithm.policy.normalizer, RunningNormalizer)
    assert algorithm.policy.normalizer.fitted


def test_noise_of_actions_is_executed_and_stored() -> None:
    quiet, noisy = made(), made(action_noise=0.02)
    obs = torch.randn(4000, 3)
    latents = []
    for algorithm in (quiet, noisy):
        torch.manual_seed(3)
        action, aux = algorithm.explore(obs, warmup=False)
        assert torch.equal(algorithm.actor.squashed(aux["latent"]), action)
        latents.append(aux["latent"])
    noise = latents[1] - latents[0]
    assert noise.std().item() == pytest.approx(0.02, rel=0.03)
    assert abs(noise.mean().item()) < 1e-3


# The policy.


def test_policy_is_its_formula() -> None:
    """Ten Euler steps of a perceptron over observation, point and sines and cosines of the time."""
    torch.manual_seed(4)
    policy = SquashedFlowPolicy(SPEC, hidden=(16, 16))
    network = policy.network
    assert isinstance(network, DenoisingNetwork)
    obs, noise = torch.randn(5, 3), torch.randn(5, 2, 2)
    with torch.no_grad():
        point = noise.flatten(1)
        weight = torch.cat([network.obs_layer.weight, network.action_layer.weight], dim=1)
        bound = math.sqrt(3 / (3 + 4 + 8))  # LeCun's uniform weights of the joint layer
        assert 0.95 * bound < weight.abs().max() < bound
        for step in range(10):
            angle = torch.tensor([1.0, 2.0, 4.0, 8.0]) * step / 10
            features = torch.cat([angle.sin(), angle.cos()]).expand(5, -1)
            first = torch.cat([obs, point, features], dim=1) @ weight.T + network.obs_layer.bias
            second, last = network.body[1][0], network.body[1][2]  # type: ignore[index]
            silu = torch.nn.functional.silu
            point = point + 0.25 * last(silu(second(silu(first)))) / 10
        low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
        latent = point.reshape(5, 2, 2)
        expected = low + (high - low) * (torch.tanh(latent) + 1) / 2
        torch.testing.assert_close(policy(obs, noise), expected, rtol=1e-4, atol=1e-5)
        clipped = SquashedFlowPolicy(SPEC, hidden=(16, 16), squash="clip").squashed(latent)
        expected = low + (high - low) * (latent.clamp(-1, 1) + 1) / 2
        torch.testing.assert_close(clipped, expected, rtol=1e-4, atol=1e-5)


# Learning.

BANDIT = PolicySpec(2, 1, 2, (-1.0, -1.0), (1.0, 1.0))


def near(obs: Tensor, action: Tensor) -> Tensor:
    return -(action[:, 0] - 0.6 * torch.tanh(obs)).square().sum(1)


@pytest.mark.parametrize(
    ("name", "rollouts", "keywords"),
    [
        ("fpo", 6, {"learning_rate": 1e-3}),
        ("fpo_plus", 12, {"learning_rate": 2e-3, "clip": 0.3, "average_decay": 0.0, "pairs": 8}),
    ],
)
def test_learns_actions_that_depend_on_the_observation(
    name: str, rollouts: int, keywords: dict[str, Any]
) -> None:
    sizes = {"hidden": (32, 32), "rollout_steps": 8, "batch_size": 128, "epochs": 16}
    keywords = {**settings(name), "actor_hidden": (32, 32), **sizes, **keywords}
    algorithm = made(BANDIT, 64, **keywords)
    obs = torch.randn(1000, 2)
    before = near(obs, algorithm.policy.act(obs)).mean()
    for seed in range(rollouts):
        algorithm.update(rollout_of(algorithm, near, 64, seed))
    after = near(obs, algorithm.policy.act(obs)).mean()
    assert before < -0.7 and after > 0.4 * before


def test_keeps_two_actions_that_are_equally_good() -> None:
    """Until both are found; by chance a policy drifts to one of two equals if it goes on."""

    def good(obs: Tensor, action: Tensor) -> Tensor:
        return torch.exp(-((action[:, 0, 0].abs() - 0.6) / 0.2).square())

    spec = PolicySpec(2, 1, 1, (-1.0,), (1.0,))
    algorithm = made(
        spec, 128, hidden=(32, 32), actor_hidden=(32, 32, 32, 32), rollout_steps=8, batch_size=256,
        learning_rate=5e-4, epochs=16,
    )  # fmt: skip
    for seed in range(11):
        algorithm.update(rollout_of(algorithm, good, 128, seed))
    action = algorithm.policy.act(torch.randn(2000, 2)).flatten()
    assert ((action.abs() - 0.6).abs() < 0.25).float().mean() > 0.8
    assert 0.1 < (action > 0).float().mean() < 0.9
