"""The step loops of diffusers' DDIM and DDPM schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import exchange
import torch
from diffusers.schedulers import scheduling_ddpm
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from torch import Tensor

SCHEDULE = "squaredcos_cap_v2"


def field(weight: Tensor, x: Tensor, time: Tensor) -> Tensor:
    """Return a noise estimate that is not linear, depends on time and is often clipped."""
    return (1.5 * torch.tanh(x.flatten(1) @ weight + torch.sin(5 * time))).reshape(x.shape)


def denoised(scheduler: Any, steps: int, weight: Tensor, latent: Tensor, **keywords: Any) -> Tensor:
    """Denoise as the pipelines of diffusers do."""
    scheduler.set_timesteps(steps)
    action = latent
    for t in scheduler.timesteps:
        time = torch.full((1,), int(t) / scheduler.config.num_train_timesteps)
        estimate = field(weight, action, time)
        action = scheduler.step(estimate, int(t), action, **keywords).prev_sample
    return action


def ddim(train_steps: int, steps: int, weight: Tensor, noise: Tensor) -> Tensor:
    """Return what DDIM with eta 0 makes of the latent ``noise``."""
    scheduler = DDIMScheduler(num_train_timesteps=train_steps, beta_schedule=SCHEDULE)
    return denoised(scheduler, steps, weight, noise, eta=0.0, use_clipped_model_output=True)


def ddpm(train_steps: int, steps: int, weight: Tensor, noise: Tensor) -> Tensor:
    """Return what DDPM makes of the path ``noise``: the latent, then the noise of each step."""
    scheduler = DDPMScheduler(
        num_train_timesteps=train_steps,
        beta_schedule=SCHEDULE,
        variance_type="fixed_small",
        clip_sample=True,
    )
    path = iter(noise[:, 1:].unbind(1))
    with exchange.replaced(scheduling_ddpm, "randn_tensor", lambda *a, **k: next(path)):
        action = denoised(scheduler, steps, weight, noise[:, 0])
    if next(path, None) is not None:
        raise ValueError("the scheduler drew less noise than the path holds")
    return action


def answer(part: Path) -> exchange.Answers:
    """Return the end of the loop for every pair of training steps and steps."""
    sampler = {"ddim": ddim, "ddpm": ddpm}[part.name]
    given = exchange.arrays_of(part / "in.npz").items()
    inputs = {name: torch.from_numpy(array) for name, array in given}
    return {
        name: sampler(train_steps, steps, inputs["weight"], inputs[name]).numpy()
        for name, train_steps, steps in exchange.settings_of(part)
    }


if __name__ == "__main__":
    exchange.main(answer, "diffusers")
