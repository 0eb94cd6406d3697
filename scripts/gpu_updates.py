"""SAC's update on a CUDA GPU: eager, compiled and as a CUDA graph, each against its peer.

A part of ``scripts/gpu.py``. Each way to update is first checked: with its noise held at zero, it
must lead to the weights that ``SAC.update`` leads to. Its peer is Stable-Baselines3 on the same
GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import torch
from gpu_part import Part
from torch import Tensor

from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.benchmarks.speed.cases.shared import (
    BATCH,
    HIDDEN,
    SB3,
    TASK,
    fill_sb3,
    filled_replay,
    setup,
    silenced,
)
from trimtab.benchmarks.speed.measure import Pair, Side, Stage, Work
from trimtab.errors import TrimtabError
from trimtab.types import Batch

UPDATES, STORED = 1_000, 100_000
WARMUP, CHECKED, TOLERANCE = 3, 10, 1e-3
"""Updates before a graph is captured, updates that are compared, and how far weights may differ."""

Update = Callable[[Batch], object]
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def make(device: str) -> SAC:
    """Return a SAC of Hopper's sizes, with the same weights every time."""
    torch.manual_seed(0)
    return SAC(replace(setup(), device=device), hidden=HIDDEN)


def eager(sac: SAC) -> Update:
    """Return the update as runs call it."""
    return sac.update


def without_metrics(sac: SAC, compiled: Compile = lambda function: function) -> Update:
    """Return the same update in three functions of tensors alone; no number is read back."""
    normalizer = sac.actor.normalizer

    @compiled
    def backup(data: Batch) -> Tensor:
        alpha = sac.temperature()
        return data.reward + data.discount * sac.next_value(data, alpha)

    @compiled
    def critic_loss(data: Batch, target: Tensor) -> Tensor:
        action = normalizer.normalize_action(data.action)
        return sac.critic_loss(sac.critic(normalizer.obs(data.obs), action), target)

    @compiled
    def actor_loss(data: Batch) -> tuple[Tensor, Tensor]:
        action, log_prob = sac.sample(data.obs)
        value = sac.critic(normalizer.obs(data.obs), action).amin(0)
        return (sac.temperature().detach() * log_prob - value).mean(), log_prob.detach()

    def update(data: Batch) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            target = backup(data)
        sac.critic_optimizer.step(critic_loss(data, target))
        loss, log_prob = actor_loss(data)
        sac.actor_optimizer.step(loss)
        entropy_error = log_prob + sac.target_entropy
        sac.temperature_optimizer.step(-(sac.temperature.log * entropy_error).mean())
        polyak(sac.target, sac.critic, sac.tau)

    return update


def compiled(sac: SAC) -> Update:
    """Return the update with its three functions compiled, which on a GPU are CUDA graphs then."""
    return without_metrics(sac, lambda function: torch.compile(function, mode="reduce-overhead"))


def cuda_graph(sac: SAC) -> Update:
    """Return the whole update as one CUDA graph, optimisers included, after ``WARMUP`` updates."""
    learn = without_metrics(sac)
    graph = torch.cuda.CUDAGraph()
    fixed: dict[str, Any] = {}
    calls = 0

    def update(data: Batch) -> None:
        nonlocal calls
        calls += 1
        values = {name: value for name, value in vars(data).items() if isinstance(value, Tensor)}
        if calls <= WARMUP:  # on another stream, as capturing asks for
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                learn(data)
            torch.cuda.current_stream().wait_stream(stream)
            return
        if not fixed:
            fixed.update({name: value.clone() for name, value in values.items()})
            with torch.cuda.graph(graph):
                learn(replace(data, **fixed))
        for name, value in values.items():
            fixed[name].copy_(value)
        graph.replay()

    return update


WAYS: Mapping[str, Callable[[SAC], Update]] = {
    "sac_update_eager": eager,
    "sac_update_compiled": compiled,
    "sac_update_cuda_graph": cuda_graph,
}
"""The ways to update, by the names of their rows."""


def check(way: Callable[[SAC], Update], device: str) -> float:
    """Return how far the weights of a way to update are from those of ``SAC.update``.

    Raises:
        TrimtabError: if it is too far.
    """
    weights = []
    for build in (eager, way):
        sac = make(device)
        shape = sac.actor.noise_shape
        # Random numbers come in another order in a compiled graph, so there are none.
        actor: Any = sac.actor
        actor.sample_noise = lambda rows, shape=shape: torch.zeros(rows, *shape, device=device)
        update, buffer = build(sac), filled_replay(STORED)
        buffer.device = torch.device(device)
        for _ in range(CHECKED):
            update(buffer.sample(BATCH))
        modules = (sac.actor, sac.critic, sac.target, sac.temperature)
        weights.append(torch.cat([p.detach().flatten() for m in modules for p in m.parameters()]))
    furthest = float((weights[0] - weights[1]).abs().max())
    if not furthest <= TOLERANCE:
        raise TrimtabError(f"weights differ by {furthest:.1e} from those of SAC.update")
    return furthest


def ours(way: Callable[[SAC], Update]) -> Side:
    """Return the side of one way to update, drawing its batches included."""

    def side(stage: Stage) -> Work:
        update, buffer = way(make("cuda")), filled_replay(STORED)
        buffer.device = torch.device("cuda")
        for _ in range(CHECKED):  # compiled or captured before anything is timed
            update(buffer.sample(BATCH))
        count = stage.amount(UPDATES)

        def work() -> float:
            for _ in range(count):
                update(buffer.sample(BATCH))
            torch.cuda.synchronize()
            return count

        return work

    return side


def sb3(stage: Stage) -> Work:
    """Set Stable-Baselines3's SAC up on the GPU."""
    from stable_baselines3 import SAC as Theirs

    model = Theirs(
        "MlpPolicy", gymnasium.make(TASK), buffer_size=STORED, learning_starts=0, batch_size=BATCH,
        policy_kwargs={"net_arch": list(HIDDEN)}, device="cuda",
    )  # fmt: skip
    silenced(model).learn(1)
    fill_sb3(model.replay_buffer)
    count = stage.amount(UPDATES)

    def work() -> float:
        for _ in range(count):
            model.train(gradient_steps=1, batch_size=BATCH)
        torch.cuda.synchronize()
        return count

    return work


def parts() -> Iterator[Part]:
    """Yield each way to update as a part of the measurement."""
    for name, way in WAYS.items():
        pair = Pair(name, "gpu", "updates/s", ours(way), sb3, SB3)
        yield Part(pair, functools.partial(checked, way))


def checked(way: Callable[[SAC], Update]) -> dict[str, float]:
    """Return what the check of a way to update found."""
    return {"difference": check(way, "cuda")}
