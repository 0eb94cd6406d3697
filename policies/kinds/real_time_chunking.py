"""A flow or diffusion policy whose new chunk goes on from the one that is being played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.agent import PREVIOUS, WEIGHTS
from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.networks.samplers import DDPM, Field, Level
from trimtab.types import Obs

LIMIT = "guidance_limit"
"""Name of the input that bounds the guidance: beta of the paper, which its code has as 5."""


class PlannedPolicy(ComposedPolicy):
    """A frozen policy that also reads what a robot is playing, the part ``previous_chunk``.

    Args:
        base: a flow policy, or a diffusion policy with a deterministic sampler.
        inputs: further inputs by name: default, shape, and the range in which golden rows are.

    Raises:
        TrimtabError: if ``base`` is another policy.
    """

    built_by_method = True
    base: FlowPolicy | DiffusionPolicy

    def __init__(
        self, base: Policy, inputs: Mapping[str, tuple[float, tuple[int, ...], float, float]]
    ) -> None:
        if not isinstance(base, FlowPolicy | DiffusionPolicy) or isinstance(base.sampler, DDPM):
            raise TrimtabError(
                f"a {base.kind} policy cannot take its previous chunk into its sampler; give a "
                "flow policy, or a diffusion policy with policy.sampler=ddim"
            )
        spec = base.spec.with_input(PREVIOUS, 0.0, (base.spec.horizon, base.spec.action_dim))
        for name, (default, shape, *_) in inputs.items():
            spec = spec.with_input(name, default, shape)
        super().__init__(spec, base.noise_shape)
        self.evaluate_deterministic = base.evaluate_deterministic
        self.base = base.requires_grad_(False).eval()
        own, inner, horizon = self.normalizer, base.normalizer, spec.horizon
        ends = [
            torch.tensor([low, high]).expand(*shape, 2) for _, shape, low, high in inputs.values()
        ]
        low, high = torch.cat(ends).T  # of golden rows; no network reads these inputs
        for buffer, of_obs, of_action, rest in (
            (own.obs_shift, inner.obs_shift, inner.action_shift, (high + low) / 2),
            (own.obs_scale, inner.obs_scale, inner.action_scale, (high - low) / 2),
        ):
            buffer.copy_(torch.cat([of_obs, of_action.repeat(horizon), rest.to(buffer)]))


class RealTimeChunkingPolicy(PlannedPolicy):
    """Real-time chunking: a robot plays on while the next chunk is computed, which agrees with it.

    ``previous_chunk`` y has at entry 0 the action of the observation's tick, and ``chunk_weights``
    W says how much each entry binds: 1 for what will have been played by then. With W = 0, this is
    the base, bit for bit.

    - A base without a ``prefix`` is guided (Black et al., arXiv 2506.07339): see :func:`guided`.
    - A base with one was trained for it (arXiv 2512.05964): entries with W = 1, as far as its
      ``prefix`` goes, are y itself at every call of the network, which knows which they are.

    Args:
        base: a flow policy, or a diffusion policy with a deterministic sampler.
        exact: the guidance's true gradient in place of the identity, of which no ONNX graph can be
            made. It costs a backward pass a step.
    """

    neutral = MappingProxyType({"exact": False})

    def __init__(self, base: Policy, *, exact: bool = False) -> None:
        self.prefix = base.prefix if isinstance(base, FlowPolicy) else 0
        rows = (base.spec.horizon,)
        super().__init__(
            base,
            {WEIGHTS: (0.0, rows, -0.5, 1.5)}
            if self.prefix
            else {WEIGHTS: (0.0, rows, 0.0, 1.0), LIMIT: (5.0, (1,), 0.0, 10.0)},
        )
        self.exact = exact
        if exact:
            self.no_graph = (
                "the exact gradient of real-time chunking has no ONNX graph; leave out exact=True, "
                "or write a bundle for torch alone by save_bundle(…, onnx=False)"
            )

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        base = self.base
        if isinstance(obs, Tensor) or PREVIOUS not in obs:
            planned: Tensor = base(obs, noise)
            return planned
        previous, weights = base.normalizer.normalize_action(obs[PREVIOUS]), obs[WEIGHTS]
        if isinstance(base, FlowPolicy) and self.prefix:
            known = weights >= 1
            known[:, self.prefix :] = False
            inner = base.field(obs, known.to(noise))
            known = known[..., None]
            end = base.sampler(lambda x, t: inner(torch.where(known, previous, x), t), noise)
            return base.normalizer.raw_action(torch.where(known, previous, end))
        field = guided(
            base.field(obs), base.sampler.levels, previous, weights[..., None],
            obs[LIMIT][..., None], of_noise=isinstance(base, DiffusionPolicy), exact=self.exact,
        )  # fmt: skip
        return base.normalizer.raw_action(base.sampler(field, noise))


def guided(
    field: Field,
    levels: Sequence[Level],
    previous: Tensor,
    weights: Tensor,
    limit: Tensor,
    *,
    of_noise: bool = False,
    exact: bool = False,
) -> Field:
    """Return a field that is drawn to a previous chunk (arXiv 2506.07339, equations 2 to 4).

    With the time t from 0 (noise) to 1 (action), at each call of the network:

    - x1 = x + (1 - t) v, the chunk that is to be expected
    - e = W (y - x1), and g = J^T e with J = d x1 / d x, or with the identity in its place
    - v <- v + min(beta, (t^2 + (1 - t)^2) / (t (1 - t))) g

    A network of the noise is the same: ``x = s clean + n noise`` divided by s + n lies on the
    straight path at ``t = s / (s + n)``, and a step of DDIM is an Euler step there with ``v =
    clean - noise``, so that the noise is corrected by ``-t`` times as much as v.

    Args:
        field: the network at some observations.
        levels: of a sampler's calls, in their order.
        previous: y, normalised ``[B, H, A]``.
        weights: W ``[B, H, 1]``.
        limit: beta ``[B, 1, 1]``.
        of_noise: whether the network tells the noise; otherwise the velocity.
        exact: whether the Jacobian is the true one.
    """
    left = iter(levels)

    def corrected(x: Tensor, time: Tensor) -> Tensor:
        signal, rest = next(left)

        def expected(point: Tensor) -> tuple[Tensor, Tensor]:
            told = field(point, time)
            if of_noise:
                return ((point - rest * told) / signal).clamp(-1.0, 1.0), told
            return point + rest * told, told

        told: Tensor
        error: Tensor
        if exact:
            clean, pull, told = torch.func.vjp(expected, x, has_aux=True)
            error = (signal + rest) * pull(weights * (previous - clean))[0]
        else:
            clean, told = expected(x)
            error = weights * (previous - clean)
        t = signal / (signal + rest)
        gain = limit.clamp(max=(t**2 + (1 - t) ** 2) / (t * (1 - t))) if 0 < t < 1 else limit
        return told - t * gain * error if of_noise else told + gain * error

    return corrected
