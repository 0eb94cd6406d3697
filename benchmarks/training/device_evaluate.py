"""The judge of runs whose simulations are on a GPU: all episodes at once, read back at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from trimtab.benchmarks.training.evaluate import EpisodeScore, Scores
from trimtab.envs.vector import make_vec
from trimtab.policies.agent import Agent, PolicyInputs
from trimtab.policies.base import Policy
from trimtab.types import Tensor

__all__ = ["DeviceEvaluator", "reads_observations_alone"]


def reads_observations_alone(inputs: PolicyInputs) -> bool:
    """Return whether a policy has no inputs but observations and noise."""
    return all(part.given is None for part in inputs.parts.values())


class DeviceEvaluator:
    """Judges policies on one task as ``Evaluator`` does, with tensors that stay on a device.

    Every episode has an environment. Its seed and its noise are those that ``Evaluator`` gives it;
    the noise is drawn beforehand. An episode whose simulation is no longer finite ends with that
    decision, for which it gets no reward.

    Args:
        env: task id.
        episodes: number of episodes.
        seed: that of the first episode.
        act_steps: executed actions of a chunk.
        device: where the simulations and the policies are.
        options: what the task is made with.
        foreign_code: around the making of the environments.

    Raises:
        TrimtabError: if the task is unknown or ``episodes`` is less than 1.
    """

    def __init__(
        self,
        env: str,
        *,
        episodes: int,
        seed: int,
        act_steps: int,
        device: str,
        options: Mapping[str, Any],
        foreign_code: AbstractContextManager[None] | None = None,
    ) -> None:
        self.seeds = [seed + number for number in range(episodes)]
        with foreign_code or nullcontext():
            self.envs: Any = make_vec(
                env, episodes, seed=seed, act_steps=act_steps, device=device, observations="flat",
                episode_seed=lambda number, _: self.seeds[number], **options,
            )  # fmt: skip

    @torch.no_grad()
    def judge_policy(
        self, policy: Policy, *, deterministic: bool, check: Callable[[], None] = lambda: None
    ) -> Scores:
        """Run all episodes and return their scores.

        Args:
            policy: on the device; it reads observations alone.
            deterministic: zero noise instead of sampled noise.
            check: called before every decision; what it raises ends the evaluation.
        """
        envs, history = self.envs, policy.spec.history
        policy.inputs.check_whole_chunks(envs.act_steps)
        started = time.perf_counter()
        noise = self._noise(policy, deterministic)
        obs = envs.reset(seed=self.seeds[0])[0]  # back to episode 0: always the same episodes
        read = obs if history == 1 else obs[:, None].repeat(1, history, 1)
        total = torch.zeros(2, len(self.seeds), dtype=torch.float64, device=envs.device)
        going = torch.ones(len(self.seeds), dtype=torch.bool, device=envs.device)
        for now in noise:
            check()
            obs, reward, restarted, _, info = envs.step(policy(read, now)[:, : envs.act_steps])
            total[0] += reward * going
            total[1] += going * info["steps"]
            going &= ~restarted
            read = obs if history == 1 else torch.cat([read[:, 1:], obs[:, None]], dim=1)
        returns, lengths = total.tolist()
        seconds = time.perf_counter() - started  # of each, as all were played at once
        return Scores(
            tuple(
                EpisodeScore(number, seed, returns[number], None, int(lengths[number]), seconds)
                for number, seed in enumerate(self.seeds)
            )
        )

    def _noise(self, policy: Policy, deterministic: bool) -> Tensor:
        """Return the noise of all decisions [T, N, *noise_shape], on the device."""
        agent = Agent(
            lambda obs, noise: noise, len(self.seeds), policy.inputs, deterministic=deterministic
        )
        agent.reset(seeds=self.seeds)
        decisions = -(-self.envs.horizon // self.envs.act_steps)
        drawn = [agent.draw_noise(decisions, row) for row in range(len(self.seeds))]
        return torch.as_tensor(np.stack(drawn, axis=1), device=self.envs.device)

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
