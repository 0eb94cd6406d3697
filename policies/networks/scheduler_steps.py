"""Steps of diffusers' DDPM and DDIM, each a row of numbers, so that a graph has them as a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.policies.networks.samplers import Field

__all__ = ["SchedulerSteps"]


class SchedulerSteps(nn.Module):
    """A sampler whose next point is a sum of the clean chunk, the point, the network and noise.

    Ho et al. (arXiv 2006.11239), equation 7, with the whole path as noise; or Song et al. (arXiv
    2010.02502), equation 12 with eta 0, from the initial latent. The latter keeps the network's
    estimate of the noise where that of the clean chunk is clipped, as diffusers does; ``DDIM`` of
    ``samplers.py`` computes it anew. In an ONNX graph the network stands once, whatever the number
    of steps.

    Args:
        alpha: share of the signal at each of T noise levels, the cleanest first.
        steps: of them, equally far apart.
        ancestral: whether it is DDPM, and not DDIM.
        clip: clean estimates are clipped to ``[-clip, clip]``; None: they are not.
        says_clean: whether the network says the clean chunk, and not the noise.

    Raises:
        TrimtabError: if there are more steps than levels.
    """

    rows: Tensor

    def __init__(
        self, alpha: Sequence[float], steps: int, *, ancestral: bool, clip: float | None,
        says_clean: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        if not 1 <= steps <= len(alpha):
            raise TrimtabError(f"sampling_steps must be from 1 to {len(alpha)}, got {steps}")
        self.ancestral, self.clip, self.says_clean = ancestral, clip, says_clean
        stride = len(alpha) // steps
        rows = []
        for level in range((steps - 1) * stride, -1, -stride):
            now, then = alpha[level], alpha[level - stride] if level else 1.0
            signal, rest = now**0.5, (1 - now) ** 0.5
            beta, left = 1 - now / then, (1 - then) / (1 - now)
            if ancestral:
                of_clean, of_point = then**0.5 * beta / (1 - now), (1 - beta) ** 0.5 * left
                of_said, std = 0.0, (left * beta) ** 0.5
            else:
                of_clean, of_noise, std = then**0.5, (1 - then) ** 0.5, 0.0
                of_point, of_said = 0.0, of_noise
                if says_clean:  # the noise is what the clean chunk leaves of the point
                    of_point, of_said = of_noise / rest, -of_noise * signal / rest
            rows.append((level / len(alpha), signal, rest, of_clean, of_point, of_said, std))
        self.register_buffer("rows", torch.tensor(rows), persistent=False)

    def noise_shape(self, horizon: int, action_dim: int) -> tuple[int, ...]:
        """Return ``(steps, H, A)``, the whole path, or ``(H, A)``, the initial latent."""
        return (len(self.rows), horizon, action_dim) if self.ancestral else (horizon, action_dim)

    def forward(self, field: Field, noise: Tensor) -> Tensor:
        """Return the chunk ``[B, H, A]`` that ``noise`` leads to."""

        def step(point: Tensor, given: Sequence[Tensor]) -> Tensor:
            time, signal, rest, of_clean, of_point, of_said, std = given[0].unbind()
            said = field(point, time.reshape(1))
            clean = said if self.says_clean else (point - rest * said) / signal
            if self.clip is not None:
                clean = clean.clamp(-self.clip, self.clip)
            following = of_clean * clean + of_point * point + of_said * said
            return following + std * given[1] if self.ancestral else following

        point, given = noise, [self.rows]
        if self.ancestral:
            point = noise[:, 0]
            # The last step has no noise of its own: its deviation is 0.
            given.append(torch.cat([noise[:, 1:], noise[:, :1]], dim=1).transpose(0, 1))
        if torch.onnx.is_in_onnx_export() and len(self.rows) > 1:
            return _scanned(step, point, given)
        for row in zip(*given, strict=True):
            point = step(point, row)
        return point


def _scanned(
    step: Callable[[Tensor, Sequence[Tensor]], Tensor], point: Tensor, given: list[Tensor]
) -> Tensor:
    """Return the last point of all steps, which become one loop of the graph."""
    from torch._higher_order_ops import scan  # slow to import, and only an export needs it

    def counted(carried: Tensor, row: list[Tensor]) -> tuple[Tensor, Tensor]:
        following = step(carried, row).contiguous()
        return following, following.new_zeros(1)

    last: Tensor = scan(counted, point.contiguous(), given)[0]
    return last
