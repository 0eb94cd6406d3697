"""A teacher of many steps and its student of one: what can teach, and what the student learns.

Teachers are policies whose noise is one latent chunk: flow policies, diffusion policies of a
deterministic sampler, and steered ones. A student that maps the same noise to the same chunk keeps
the whole map, so that what steers one can be tried on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.kinds.consistency import ConsistencyPolicy
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.kinds.diagonal_gaussian import DiagonalGaussianPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.normalizer import Normalizer
from trimtab.types import Obs

__all__ = ["KarrasDenoiser", "check_teacher", "same_chunk_loss", "same_noise_loss", "student_of"]

_ONE_STEP = (DeterministicPolicy, DiagonalGaussianPolicy, GaussianPolicy, TanhGaussianPolicy)


def check_teacher(base: Policy) -> None:
    """Check that a policy has something to teach to a student of one step.

    Raises:
        TrimtabError: if it takes one step itself, or its noise is not one latent chunk.
    """
    advice = "give a base of kind flow, or diffusion with policy.sampler=ddim"
    if isinstance(base, _ONE_STEP):
        raise TrimtabError(
            f"a consistency student of a {base.kind} policy has nothing to learn: the base takes "
            f"one step itself; {advice}"
        )
    if base.noise_shape != (base.spec.horizon, base.spec.action_dim):
        raise TrimtabError(
            f"a consistency student starts from one latent (H, A), and the noise of the base has "
            f"shape {base.noise_shape}; {advice}"
        )
    if type(base.normalizer) is not Normalizer:
        raise TrimtabError(
            f"a consistency student clips no observations as the base does; {advice}"
        )


def student_of(
    base: Policy, *, hidden: Sequence[int], time_dim: int, levels: int, sampling_steps: int = 1
) -> ConsistencyPolicy:
    """Return a fresh consistency policy with the shapes, units and device of ``base``.

    Raises:
        TrimtabError: if ``base`` cannot teach it.
    """
    check_teacher(base)
    student = ConsistencyPolicy(
        base.spec, hidden=hidden, time_dim=time_dim, levels=levels, sampling_steps=sampling_steps
    ).to(base.normalizer.obs_shift.device)
    student.normalizer.load_state_dict(base.normalizer.state_dict())
    return student


def same_chunk_loss(
    student: ConsistencyPolicy, obs: Tensor, teach: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return ``mean |student(s, z) - teach(z)|^2`` in normalised units, ``z ~ N(0, I)``.

    The student's chunk is taken before it is clipped to the limits.

    Args:
        student: of one step.
        obs: normalised observations ``[B, O]``.
        teach: from noise to normalised chunks at these observations.
    """
    noise = student.sample_noise(len(obs))
    with torch.no_grad():
        taught = teach(noise)
    learned = student.chunk(student.network.condition(obs), noise)
    return (learned - taught).square().mean()


def same_noise_loss(student: ConsistencyPolicy, teacher: Policy, obs: Obs) -> Tensor:
    """Return ``mean |student(s, z) - teacher(s, z)|^2`` in normalised units for raw ``obs``."""
    normalizer = student.normalizer
    return same_chunk_loss(
        student, normalizer.obs(obs), lambda z: normalizer.normalize_action(teacher(obs, z))
    )


class KarrasDenoiser(nn.Module):
    """What a flow or diffusion policy takes for the clean chunk at a student's noise levels.

    A chunk ``x = a + sigma eps`` of the student is, for a flow, ``x_t = t x`` at ``t = 1 / (1 +
    sigma)``, with ``a = x_t + (1 - t) v(x_t, t)``; for a diffusion policy it is ``sqrt(alpha) x``
    with ``alpha = 1 / (1 + sigma^2)``, with ``a = x - sigma eps(sqrt(alpha) x)``, clipped to
    [-1, 1] as in its sampler. Between the levels of a diffusion policy time runs linearly in
    ``ln sigma``; beyond them it stands still.

    Args:
        teacher: a flow or a diffusion policy.
        student: whose levels are meant.

    Raises:
        TrimtabError: if the teacher is of another kind.
    """

    sigma: Tensor
    scale: Tensor
    time: Tensor

    def __init__(self, teacher: Policy, student: ConsistencyPolicy) -> None:
        super().__init__()
        if not isinstance(teacher, FlowPolicy | DiffusionPolicy):
            raise TrimtabError(
                f"algorithm.target=consistency: follows the field of a flow or diffusion policy, "
                f"and the base is a {teacher.kind} policy; use algorithm.target=same_noise"
            )
        self.network, self.straight = teacher.network, isinstance(teacher, FlowPolicy)
        sigma = student.sigmas
        if isinstance(teacher, FlowPolicy):
            scale = time = 1.0 / (1.0 + sigma)
        else:
            scale = (1.0 + sigma.square()).rsqrt()
            time = _times(sigma, ((1.0 - teacher.alpha) / teacher.alpha).sqrt())
        for name, value in (("sigma", sigma), ("scale", scale), ("time", time)):
            self.register_buffer(name, value.clone(), persistent=False)

    def condition(self, obs: Tensor) -> Tensor:
        """Return what the teacher's network makes of normalised observations, ``[B, hidden]``."""
        return self.network.condition(obs)

    def forward(self, noisy: Tensor, level: Tensor, condition: Tensor) -> Tensor:
        """Return the clean chunks ``[B, H, A]``.

        Args:
            noisy: the student's ``x``, ``[B, H, A]``.
            level: index of each row's noise level ``[B]``.
            condition: what :meth:`condition` returned.
        """
        time = self.time[level]
        seen = self.scale[level][:, None, None] * noisy
        field: Tensor = self.network(seen, time, condition)
        if self.straight:
            return seen + (1.0 - time)[:, None, None] * field
        return (noisy - self.sigma[level][:, None, None] * field).clamp(-1.0, 1.0)

    def step(self, noisy: Tensor, level: Tensor, condition: Tensor) -> Tensor:
        """Return the chunks one level lower on the teacher's path ``dx = (x - a) / sigma dsigma``.

        One step of Heun's method (Karras et al., arXiv 2206.00364, algorithm 1).
        """
        high, low = (self.sigma[at][:, None, None] for at in (level, level + 1))
        slope = (noisy - self(noisy, level, condition)) / high
        reached = noisy + (low - high) * slope
        following = (reached - self(reached, level + 1, condition)) / low
        moved: Tensor = noisy + (low - high) * (slope + following) / 2
        return moved


def _times(sigma: Tensor, known: Tensor) -> Tensor:
    """Return k / K at noise levels ``sigma`` ``[N]``, where ``known`` ``[K]`` are those of k."""
    logs, points = sigma.log().contiguous(), known.log()
    count = len(known)
    if count == 1:
        return torch.zeros_like(sigma)
    above = torch.searchsorted(points, logs).clamp(1, count - 1)
    low, high = points[above - 1], points[above]
    return (above - 1 + ((logs - low) / (high - low)).clamp(0, 1)) / count
