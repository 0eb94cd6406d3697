"""Policy-guided diffusion: trajectories that the learner's own policy is likely to take.

Jackson et al., "Policy-Guided Diffusion" (arXiv 2404.06356). A diffusion model learns the data's
sub-trajectories tau of L decisions, each row an observation, an action, a reward and how it ends.
Sampling from it moves actions, before each step but the last, to where the target policy pi has
more density, so that what is made lies between p(tau) of the data and that of pi:

- model:     EDM (``algorithms/common/edm.py``) with a U-Net over rows, on values of mean 0 and
             standard deviation 1; sampled with the moving average of its weights
- guidance:  a <- a + lambda_i g,  g = grad_a sum_t log pi(a_t | s_t), divided by its norm over the
             trajectory; lambda_i = w ((1 - i / n) + c sin(pi (i + 1) / n)) in step i of n
- a deterministic policy is taken for N(a, 1), in units where its actions are from -1 to 1
- learner:   any offline method, on batches of what was made and a sixteenth of the data, made anew
             from the policy of then after every ``refresh_every`` batches; the first time w = 0

Deviations: actions are as they were taken, clipped to their limits when made (there: the inverse of
tanh of actions, and densities of their tanh); windows begin anywhere (there: at every eighth row);
a row also says whether its episode was still going on, so that windows may reach beyond an end, and
a transition is only made where it was; Heun's step starts from the rows with the added noise, as
EDM has it; 1e-8 bounds the norm from below (there it is added to the quotient). The settings are
for a CPU: the authors' ``hidden`` is [1024, 2048, 4096], with 8192 rollouts of 256 steps and a
``churn`` of 80, which widens what a sampler of few steps makes. w is 0 in their script; here it is
1 of a normalised gradient.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.edm import NoiseLevels, denoised, denoising_loss, heun_sample
from trimtab.algorithms.common.schedules import cosine
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.generator import Generator
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.networks.trajectory_unet import TrajectoryUNet
from trimtab.settings import Bounds, Count, NonNegative, Share, Size
from trimtab.types import Batch, BatchSpec, Metrics, Source

LOOKED_AT = 4096
"""Windows that means and standard deviations are taken of."""
TOGETHER = 256
"""Trajectories that are made side by side, which bounds memory."""
_FAINTEST = 1e-30  # discount of a trajectory that can still be told from 0
_SMALLEST = 1e-3  # standard deviation below which a number counts as constant


class PolicyGuidedDiffusion(Generator):
    """Makes transitions near the learner's policy by a model of the data's trajectories.

    Args:
        setup: of the run.
        learner: the method that learns from them; its policy guides.
        guidance: weight w of the guidance; 0: samples of the data's distribution.
        cosine_weight: c, how much more the middle of sampling is guided.
        normalized: whether the guidance of a trajectory has norm 1 before it is weighted.
        guide_denoised: whether the policy is asked about the rows as the model cleans them, and not
            about the noisy ones; costs half as much again.
        length: decisions L of a trajectory.
        rollouts: trajectories that are made each time.
        refresh_every: batches until they are made anew.
        real_share: share of each batch that is the data's own.
        fit_updates: updates of the model, before the method learns.
        hidden: channels of the U-Net's levels.
        learning_rate: Adam's highest; it rises for a tenth of the updates, then falls to 0.
        batch_size: trajectories in one update of the model.
        ema_rate: weight of the newest weights in the moving average.
        ema_every: updates between two of its steps.
        sampling_steps: steps n of the sampler.
        churn: noise that the sampler adds again, see :class:`NoiseLevels`.

    Raises:
        TrimtabError: if a setting is outside its range, or the method cannot be served.
    """

    def __init__(
        self,
        setup: Setup,
        learner: Algorithm,
        *,
        guidance: NonNegative = 1.0,
        cosine_weight: NonNegative = 0.3,
        normalized: bool = True,
        guide_denoised: bool = False,
        length: Annotated[int, Bounds(least=2)] = 32,
        rollouts: Size = 1024,
        refresh_every: Count = 10_000,
        real_share: Share = 0.0625,
        fit_updates: Count = 100_000,
        hidden: Sequence[Size] = (64, 128, 256),
        learning_rate: NonNegative = 2e-3,
        batch_size: Size = 32,
        ema_rate: Share = 0.005,
        ema_every: Count = 10,
        sampling_steps: Size = 32,
        churn: NonNegative = 0.0,
    ) -> None:
        _check_served(learner)
        if not setup.discount**length > _FAINTEST:
            raise TrimtabError(
                f"discount={setup.discount}: too small to tell the end of an episode within "
                f"source.length={length} decisions; raise it"
            )
        self.learner, self.spec, self.discount = learner, setup.spec, setup.discount
        self.guidance, self.cosine_weight = guidance, cosine_weight
        self.normalized, self.guide_denoised = normalized, guide_denoised
        self.length, self.rollouts, self.refresh_every = length, rollouts, refresh_every
        self.real_share, self.fit_updates, self.batch_size = real_share, fit_updates, batch_size
        self.learning_rate, self.ema_rate, self.ema_every = learning_rate, ema_rate, ema_every
        self.sampling_steps = sampling_steps
        self.levels = NoiseLevels(churn=churn)
        self.batch_spec = BatchSpec(n_step=length, sequence=length)
        self.flat = setup.spec.horizon * setup.spec.action_dim
        channels = setup.spec.obs_dim + self.flat + 3
        self.network = TrajectoryUNet(channels, length, hidden).to(setup.device)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = Adam(self.network.parameters(), learning_rate)
        self.low = torch.tensor(setup.spec.action_low, device=setup.device)
        self.high = torch.tensor(setup.spec.action_high, device=setup.device)
        self.mean = torch.zeros(channels, device=setup.device)
        self.std = torch.ones(channels, device=setup.device)
        self.updates = self.drawn = 0
        self.made: dict[str, Tensor] = {}

    def begin(self, data: Source) -> None:
        """Take the mean and the standard deviation of each number of a row."""
        rows = self.rows(data.sample(LOOKED_AT)).flatten(0, 1)
        self.mean = rows.mean(0)
        std = rows.std(0, correction=0)
        self.std = torch.where(std > _SMALLEST, std, torch.ones_like(std))

    def rows(self, data: Batch) -> Tensor:
        """Return trajectories ``[B, L, C]``: observation, action, reward, terminal, going on.

        A batch's discount is that of its L decisions, which is 0 where the last real one of them
        ended its episode for good. Rows behind an end repeat the last one and do not go on.
        """
        sequence = data.sequence
        assert sequence is not None and isinstance(sequence.obs, Tensor)
        valid = sequence.valid
        last = valid.sum(1, keepdim=True) - 1
        ended = torch.arange(self.length, device=valid.device) == last
        terminal = ended & (data.discount == 0)[:, None]
        columns = [sequence.reward, terminal.float(), valid.float()]
        return torch.cat(
            [sequence.obs, sequence.action.flatten(2), torch.stack(columns, dim=-1)], dim=-1
        )

    def update(self, data: Batch) -> Metrics:
        """Take one step of the model on trajectories of the data."""
        clean = (self.rows(data) - self.mean) / self.std
        loss = denoising_loss(self.network, clean, self.levels)
        rising = max(self.fit_updates // 10, 1)
        made = torch.tensor(self.updates, dtype=torch.float64, device=self.mean.device)
        rise = 0.1 + 0.9 * (made / rising).clamp(max=1.0)
        falling = max(self.fit_updates - rising, 1)
        rate = cosine(self.learning_rate, 0.0, (made - rising).clamp(min=0.0), falling)
        self.optimizer.learning_rate = rise * rate
        self.optimizer.step(loss)
        self.updates += 1
        if self.updates % self.ema_every == 0:
            polyak(self.average, self.network, self.ema_rate)
        return {"denoising_loss": loss.detach()}

    def sample(self, batch_size: int) -> Batch:
        """Return transitions that were made; they are made anew where that is due."""
        if self.drawn % self.refresh_every == 0:
            self.made = self.transitions(0.0 if self.drawn == 0 else self.guidance)
        self.drawn += 1
        count = len(self.made["reward"])
        index = torch.randint(count, (batch_size,), device=self.mean.device)
        made = {name: one[index] for name, one in self.made.items()}
        return Batch(
            obs=made["obs"],
            action=made["action"],
            reward=made["reward"],
            next_obs=made["next_obs"],
            discount=made["discount"],
            valid=torch.ones_like(made["action"][..., 0], dtype=torch.bool),
            next_action=made["next_action"],
            whole=True,
        )

    @torch.no_grad()
    def transitions(self, guidance: float) -> dict[str, Tensor]:
        """Make trajectories and return their transitions, by the names that a batch has.

        Raises:
            TrimtabError: if none of them is within an episode, or a number is not finite.
        """
        left = [min(TOGETHER, self.rollouts - n) for n in range(0, self.rollouts, TOGETHER)]
        rows = torch.cat([self.trajectories(count, guidance) for count in left])
        if not bool(torch.isfinite(rows).all()):
            raise TrimtabError(
                "source: the diffusion model makes numbers that are not finite; lower "
                "source.learning_rate, or source.guidance"
            )
        obs = rows[..., : self.spec.obs_dim]
        action = rows[..., self.spec.obs_dim : -3]
        action = action.unflatten(-1, (self.spec.horizon, self.spec.action_dim))
        action = torch.maximum(torch.minimum(action, self.high), self.low)
        terminal, going_on = rows[..., -2] > 0.5, rows[..., -1] > 0.5
        # A transition counts if nothing has ended before it, and what follows is known.
        before = (going_on[:, :-1] & ~terminal[:, :-1]).long().cumprod(1).bool()
        begun = torch.cat([torch.ones_like(before[:, :1]), before[:, :-1]], dim=1)
        usable = begun & going_on[:, :-1] & (going_on[:, 1:] | terminal[:, :-1])
        if not bool(usable.any()):
            raise TrimtabError(
                f"source: none of the {self.rollouts} trajectories that the diffusion model makes "
                "is within an episode; give it more source.fit_updates"
            )
        gamma = self.discount * (~terminal[:, :-1]).float()
        return {
            "obs": obs[:, :-1][usable],
            "action": action[:, :-1][usable],
            "reward": rows[:, :-1, -3][usable],
            "next_obs": obs[:, 1:][usable],
            "discount": gamma[usable],
            "next_action": action[:, 1:][usable],
        }

    @torch.no_grad()
    def trajectories(self, count: int, guidance: float) -> Tensor:
        """Return trajectories ``[count, L, C]`` in raw units, guided with a weight w."""
        noise = torch.randn(count, self.length, len(self.mean), device=self.mean.device)

        def denoiser(noisy: Tensor, level: float) -> Tensor:
            return denoised(self.average, noisy, noisy.new_full((1,), level), self.levels.data)

        def guide(noisy: Tensor, level: float, step: int) -> Tensor:
            asked = denoiser(noisy, level) if self.guide_denoised else noisy
            passed = step / self.sampling_steps
            bow = math.sin(math.pi * (step + 1) / self.sampling_steps)
            weight = guidance * (1.0 - passed + self.cosine_weight * bow)
            moved = noisy.clone()
            moved[..., self.spec.obs_dim : -3] += weight * self.direction(asked)
            return moved

        guided = guide if guidance > 0 else None
        normal = heun_sample(denoiser, noise, self.levels, self.sampling_steps, guided)
        return normal * self.std + self.mean

    def direction(self, normal: Tensor) -> Tensor:
        """Return the guidance g ``[B, L, H A]`` at normalised trajectories ``[B, L, C]``."""
        place = slice(self.spec.obs_dim, -3)
        raw = normal * self.std + self.mean
        obs = raw[..., : self.spec.obs_dim].flatten(0, 1)
        with torch.enable_grad():
            moved = normal[..., place].detach().requires_grad_()
            action = moved * self.std[place] + self.mean[place]
            chunks = action.reshape(-1, self.spec.horizon, self.spec.action_dim)
            density = _log_density(self.learner.policy, obs, chunks).sum()
            (gradient,) = torch.autograd.grad(density, moved)
        if self.normalized:
            gradient = gradient / gradient.flatten(1).norm(dim=1).clamp_min(1e-8)[:, None, None]
        return gradient

    def state_dict(self) -> dict[str, Any]:
        """Return the model, its scale, its optimiser, and what was made last."""
        return {
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "mean": self.mean,
            "std": self.std,
            "made": self.made,
            "updates": self.updates,
            "drawn": self.drawn,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state`` was taken."""
        for name in ("network", "average", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        device = self.mean.device
        self.mean, self.std = state["mean"].to(device), state["std"].to(device)
        self.made = {name: one.to(device) for name, one in state["made"].items()}
        self.updates, self.drawn = int(state["updates"]), int(state["drawn"])


def _log_density(policy: Policy, obs: Tensor, action: Tensor) -> Tensor:
    """Return the log-density ``[B, H]`` of raw action chunks ``[B, H, A]``, but for a constant.

    A policy without noise is taken for a normal distribution around its actions, of standard
    deviation 1 where these are scaled to [-1, 1].
    """
    if math.prod(policy.noise_shape):
        return policy.log_density(obs, action)
    normalize = policy.normalizer.normalize_action
    with torch.no_grad():
        mean = normalize(policy(obs, policy.sample_noise(len(obs))))
    return -0.5 * (normalize(action) - mean).square().sum(-1)


def _check_served(learner: Algorithm) -> None:
    """Check that a method can learn from single transitions, and has a policy to guide by.

    Raises:
        TrimtabError: naming what it wants.
    """
    method, batch_spec, spec = type(learner).__name__, learner.batch_spec, learner.policy.spec
    lacking = [
        name
        for name, wanted in (
            ("n-step returns", batch_spec.n_step > 1),
            ("returns of whole episodes", batch_spec.mc_return),
            ("sequences", batch_spec.sequence > 0),
            ("goals", batch_spec.goal is not None),
            ("costs", batch_spec.cost),
            ("a history", max(batch_spec.history, spec.history) > 1),
            ("observations in parts", bool(learner.policy.inputs.observed)),
        )
        if wanted
    ]
    if lacking:
        raise TrimtabError(
            f"source: {method} learns from {', '.join(lacking)}, and what a diffusion model makes "
            "are single transitions; leave source= out, or choose another algorithm="
        )
    known = type(learner.policy).log_density is not Policy.log_density
    if math.prod(learner.policy.noise_shape) and not known:
        raise TrimtabError(
            f"source: the {learner.policy.kind} policy of {method} has no density of its actions "
            "that could guide; choose a method with a Gaussian or a deterministic policy"
        )
