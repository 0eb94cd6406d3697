"""Updates on a CUDA GPU: replayed as CUDA graphs, as runs do it, and kernel by kernel.

A part of ``scripts/gpu.py``. The replayed updates of each method are first checked: with the same
draws they must lead to the very weights that plain ones lead to. Then both take turns. SAC also has
Stable-Baselines3 on the same GPU as a peer, in both ways.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import gymnasium
import torch

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.finetuning.nft import NFT
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.algorithms.offline.awac import AWAC
from trimtab.algorithms.offline.bc import BehaviorCloning
from trimtab.algorithms.offline.cql import CQL
from trimtab.algorithms.offline.iql import IQL
from trimtab.algorithms.offline.rebrac import ReBRAC
from trimtab.algorithms.offline.td3_bc import TD3BC
from trimtab.algorithms.phases import Feed, Phase
from trimtab.algorithms.steering.dsrl_na import DSRLNA
from trimtab.benchmarks.contracts.recorded_graph import RecordedGraph
from trimtab.benchmarks.speed.cases import improvement, latency, offline
from trimtab.benchmarks.speed.cases.shared import BATCH, HIDDEN, SB3, TASK, fill_sb3, silenced
from trimtab.benchmarks.speed.measure import Pair, Side, Stage, Work, repeated
from trimtab.benchmarks.training.graphs import CapturedUpdate, replay_updates
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.errors import TrimtabError
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import Batch, Metrics

UPDATES, STORED = 1_000, 100_000
CHECKED = 30
"""Updates that are compared: enough to capture and replay a delayed actor."""

Update = Callable[[Batch], Metrics]
Way = Callable[[Algorithm, str], Update]


def make(kind: Callable[..., Algorithm], device: str) -> Algorithm:
    """Return a method of Hopper's sizes, with the same weights every time."""
    torch.manual_seed(0)
    return kind(replace(offline.setup(), device=device), hidden=HIDDEN)


def improving(kind: Callable[..., Algorithm], device: str) -> Algorithm:
    """Return a method that starts from a flow, which plans chunks."""
    torch.manual_seed(0)
    setup = replace(improvement.improving(latency.flow().to(device)), device=device)
    return kind(replace(setup, statistics=offline.setup().statistics), hidden=HIDDEN)


def cloning(device: str) -> Algorithm:
    """Return behaviour cloning of a flow."""
    torch.manual_seed(0)
    policy = functools.partial(FlowPolicy, hidden=latency.WIDTHS)
    return BehaviorCloning(replace(offline.setup(), policy=policy, device=device))


METHODS: Mapping[str, Callable[[str], Algorithm]] = {
    **{
        name: functools.partial(make, kind)
        for name, kind in {
            "sac": SAC, "td3": TD3, "td3_bc": TD3BC, "iql": IQL, "cql": CQL, "awac": AWAC,
            "rebrac": ReBRAC,
        }.items()
    },
    "bc_flow": cloning,
    "dsrl_na": functools.partial(improving, DSRLNA),
    "nft": functools.partial(improving, NFT),
}  # fmt: skip
"""What makes each method, on a device."""
CHUNKED = {"dsrl_na", "nft"}
"""Those whose decisions are chunks of actions."""


def plain(algorithm: Algorithm, device: str) -> Update:
    """Return the update itself."""
    return algorithm.update


def graphs(algorithm: Algorithm, device: str) -> Update:
    """Return the update as runs replay it; on a processor, as the contract tests do."""
    if device == "cpu":
        return CapturedUpdate(algorithm, algorithm.update, RecordedGraph)
    phases = (Phase("", 1, "updates", Feed.DATASET, algorithm.update),)
    (phase,) = replay_updates(phases, algorithm, device)
    assert phase.update is not None
    return phase.update


def batches(name: str, algorithm: Algorithm, device: str) -> ReplayBuffer:
    """Return what a method learns from: random transitions, or chunks where it plans them."""
    return ReplayBuffer.from_dataset(
        offline.dataset(), window=improvement.ACT_STEPS if name in CHUNKED else 1, chunked=True,
        device=device, batch_spec=algorithm.batch_spec,
    )  # fmt: skip


def check(name: str, device: str, way: Way = graphs, updates: int = CHECKED) -> float:
    """Return how far a method's weights are from those of plain updates with the same draws.

    Raises:
        TrimtabError: if there is a difference at all.
    """
    weights = []
    for learning in (plain, way):
        algorithm = METHODS[name](device)
        update, source = learning(algorithm, device), batches(name, algorithm, device)
        for step in range(updates):
            torch.manual_seed(step)
            update(source.sample(BATCH))
        parts = [part for part in algorithm.state().values() if isinstance(part, torch.nn.Module)]
        weights.append(torch.cat([p.detach().flatten() for m in parts for p in m.parameters()]))
    furthest = float((weights[0] - weights[1]).abs().max())
    if not furthest == 0.0:
        raise TrimtabError(f"{name}: replayed weights differ by {furthest:.1e} from plain ones")
    return furthest


def side(name: str, way: Way, updates: int = UPDATES) -> Side:
    """Return the side of a method in one way to update, drawing its batches included."""

    def set_up(stage: Stage) -> Work:
        algorithm = METHODS[name]("cuda")
        update, source = way(algorithm, "cuda"), batches(name, algorithm, "cuda")
        for _ in range(CHECKED):  # captured before anything is timed
            update(source.sample(BATCH))
        return repeated(
            lambda: update(source.sample(BATCH)), stage.amount(updates), last=torch.cuda.synchronize
        )

    return set_up


def sb3(stage: Stage) -> Work:
    """Set Stable-Baselines3's SAC up on the GPU."""
    from stable_baselines3 import SAC as Theirs

    model = Theirs(
        "MlpPolicy", gymnasium.make(TASK), buffer_size=STORED, learning_starts=0, batch_size=BATCH,
        policy_kwargs={"net_arch": list(HIDDEN)}, device="cuda",
    )  # fmt: skip
    silenced(model).learn(1)
    fill_sb3(model.replay_buffer)
    return repeated(
        lambda: model.train(gradient_steps=1, batch_size=BATCH),
        stage.amount(UPDATES // 4),  # it is slower
        last=torch.cuda.synchronize,
    )


def parts() -> Iterator[tuple[Pair, Callable[[], Mapping[str, float]]]]:
    """Yield SAC in both ways beside its peer, and each method beside its own plain updates.

    Beside each row is its check, which returns further numbers of it.
    """
    for row, way in (("sac_update_cuda_graph", graphs), ("sac_update_eager", plain)):
        pair = Pair(row, "gpu", "updates/s", side("sac", way), sb3, SB3)
        yield pair, functools.partial(found, "sac", way)
    for name in METHODS:
        pair = Pair(
            f"{name}_replayed", "gpu", "updates/s", side(name, graphs),
            side(name, plain, UPDATES // 4), "the same update, kernel by kernel",
        )  # fmt: skip
        yield pair, functools.partial(found, name, graphs)


def found(name: str, way: Way) -> dict[str, float]:
    """Return what the check of a row found."""
    return {"difference": check(name, "cuda", way)}


ROWS = tuple(pair.name for pair, _ in parts())
"""The names of the rows, which need no JAX."""
