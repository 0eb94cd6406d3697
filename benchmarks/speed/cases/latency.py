"""Decisions of policies, from an observation in numpy to an action in numpy, at batch 1 and 64."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.benchmarks.speed.cases.shared import HIDDEN, OBS_DIM, SB3, TASK, hopper
from trimtab.benchmarks.speed.measure import BEST_OF_BOTH, Pair, Side, Stage, Work, repeated
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import save_bundle
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.runtime import NO_LIMITS, PolicyRunner, load_policy

HORIZON, SAMPLING_STEPS, WIDTHS = 8, 5, (256, 256, 256)
CALLS = {1: 1_000, 64: 400}
"""Calls of a turn, by rows of a batch."""

Act = Callable[[NDArray[np.float32]], Any]


def diffusion() -> DiffusionPolicy:
    """Return the diffusion policy of all rows."""
    return DiffusionPolicy(hopper(HORIZON), hidden=WIDTHS, sampling_steps=SAMPLING_STEPS)


def flow() -> FlowPolicy:
    """Return the flow policy of all rows."""
    return FlowPolicy(hopper(HORIZON), hidden=WIDTHS, sampling_steps=SAMPLING_STEPS)


def actor() -> TanhGaussianPolicy:
    """Return SAC's actor."""
    return TanhGaussianPolicy(hopper(), hidden=HIDDEN)


def deciding(make: Callable[[Stage], Act], rows: int, calls_of_turn: int | None = None) -> Side:
    """Return a side that decides for ``rows`` observations at once, many times."""

    def side(stage: Stage) -> Work:
        act, calls = make(stage), stage.amount(calls_of_turn or CALLS[rows])
        obs = np.random.default_rng(0).standard_normal((rows, OBS_DIM), dtype=np.float32)
        return repeated(lambda: act(obs), calls, rows)

    return side


def on_torch(policy: Callable[[], Policy]) -> Callable[[Stage], Act]:
    """Return what makes a policy act as the harness has it act."""

    def make(stage: Stage) -> Act:
        made = policy().eval()
        return lambda obs: made.act(torch.from_numpy(obs)).numpy()

    return make


def on_onnx(policy: Callable[[], Policy]) -> Callable[[Stage], Act]:
    """Return what makes a policy act as on a robot, noise drawn as there."""

    def make(stage: Stage) -> Act:
        runner = exported(policy)
        return lambda obs: runner.predict(obs, runner.sample_noise(len(obs)))

    return make


@functools.cache
def exported(policy: Callable[[], Policy]) -> PolicyRunner:
    """Return a policy's ONNX runner; writing a bundle takes seconds, and several rows share it."""
    contract = {"env": f"gym/{TASK}", "control_rate": 125.0, "act_steps": policy().spec.horizon}
    with tempfile.TemporaryDirectory() as folder:
        save_bundle(policy().eval(), Path(folder, "bundle"), contract=contract)
        return load_policy(Path(folder, "bundle"), deterministic=False, limits=NO_LIMITS)


def diffusers_loop(stage: Stage) -> Act:
    """Set up the loop that users of diffusers write, around the very network of ours."""
    from diffusers.schedulers.scheduling_ddim import DDIMScheduler

    policy = diffusion().eval()
    network, normalizer = policy.network, policy.normalizer
    scheduler: Any = DDIMScheduler(
        num_train_timesteps=policy.train_steps, beta_schedule="squaredcos_cap_v2", clip_sample=True
    )
    scheduler.set_timesteps(SAMPLING_STEPS)

    @torch.no_grad()
    def act(obs: NDArray[np.float32]) -> Any:
        condition = network.condition(normalizer.obs(torch.from_numpy(obs)))
        action = torch.randn(len(obs), *policy.noise_shape)
        for step in scheduler.timesteps:
            epsilon = network(action, step[None] / policy.train_steps, condition)
            action = scheduler.step(
                epsilon, step, action, eta=0.0, use_clipped_model_output=True
            ).prev_sample
        return normalizer.raw_action(action).numpy()

    return act


def sb3_predict(stage: Stage) -> Act:
    """Set Stable-Baselines3's SAC up, of which only ``predict`` is used."""
    from stable_baselines3 import SAC

    env = gymnasium.make(TASK)
    stage.exits.callback(env.close)
    model = SAC(
        "MlpPolicy", env, buffer_size=1, policy_kwargs={"net_arch": list(HIDDEN)}, device="cpu"
    )
    return model.predict


def rows_at(rows: int) -> list[Pair]:
    """Return the rows of one batch size."""

    def pair(
        name: str,
        ours: Callable[[Stage], Act],
        peer: Callable[[Stage], Act] | None = None,
        peer_name: str | None = None,
    ) -> Pair:
        side = None if peer is None else deciding(peer, rows)
        return Pair(
            f"{name}_{rows}", "latency", "decisions/s", deciding(ours, rows), side, peer_name,
            BEST_OF_BOTH,
        )  # fmt: skip

    return [
        pair("diffusion", on_torch(diffusion), diffusers_loop, "diffusers, DDIM loop"),
        pair("diffusion_onnx", on_onnx(diffusion), diffusers_loop, "diffusers, DDIM loop"),
        pair("flow", on_torch(flow)),
        pair("flow_onnx", on_onnx(flow)),
        pair("actor", on_torch(actor), sb3_predict, f"{SB3}, predict"),
        pair("actor_onnx", on_onnx(actor), sb3_predict, f"{SB3}, predict"),
    ]


PAIRS = [*rows_at(1), *rows_at(64)]
