"""A recurrent network of others as the frozen base of residual: its state is kept and handed on."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_networks import contract, recurrent

from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.benchmarks.training.base import load_base
from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.collector import Collector, make_collector, make_training_envs
from trimtab.benchmarks.training.experience import make_experience
from trimtab.benchmarks.training.judging import BundleJudge
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.errors import TrimtabError
from trimtab.policies.agent import Agent
from trimtab.policies.base import Policy
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.policies.kinds.edited import EditedPolicy
from trimtab.policies.opening import load_policy

TASK, HIDDEN = "gym/InvertedPendulum-v5", 3


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GRU that acts on the pendulum, as a bundle."""
    place, generator = tmp_path_factory.mktemp("gru"), np.random.default_rng(0)
    shapes = {
        "w": (1, 3 * HIDDEN, 4), "r": (1, 3 * HIDDEN, HIDDEN), "b": (1, 6 * HIDDEN),
        "out": (HIDDEN, 1),
    }  # fmt: skip
    weights = {
        name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()
    }
    network = recurrent(place / "gru.onnx", "GRU", weights, HIDDEN)
    said = contract(
        place / "contract.yaml", control_rate=25, task=TASK,
        network={"action": "actions", "states": {"h_in": "h_out"}},
        observation={"terms": {"o": {"size": 4}}},
    )  # fmt: skip
    export_policy(str(network), str(place / "base"), contract=str(said))
    return place / "base"


def words(base: Path, out: Path, *more: str) -> list[str]:
    return [
        f"env={TASK}", "algorithm=residual", f"base={base}", "algorithm.hidden=[8]",
        "algorithm.warmup_steps=20", "algorithm.batch_size=8", "algorithm.explore_decisions=0",
        "online_steps=60", "num_envs=2", "eval_episodes=2", f"out={out}", *more,
    ]  # fmt: skip


def decides(policy: Policy) -> Any:
    """Return a policy as a function of arrays."""

    def decide(obs: Any, noise: Any) -> Any:
        with torch.no_grad():
            given = {name: torch.as_tensor(part) for name, part in obs.items()}
            return policy(given, torch.as_tensor(noise)).numpy()

    return decide


def test_every_stored_state_is_the_networks_own(base: Path, tmp_path: Path) -> None:
    """The state of a decision and of the next one, by the network alone; zero as episodes begin."""
    plan = Plan(compose_run(words(base, tmp_path)))
    buffer = make_experience(plan, None, 60).buffer
    collector = make_collector(
        make_training_envs(plan, nullcontext()), plan.algorithm, buffer, "cpu", nullcontext()
    )
    assert isinstance(buffer, ReplayBuffer) and isinstance(collector, Collector)
    for _ in range(30):
        collector.step(warmup=False)
    box = load_base(str(base)).policy
    assert isinstance(box, BlackBoxPolicy)
    drawn = buffer.sample(400)
    assert isinstance(drawn.obs, dict) and isinstance(drawn.next_obs, dict)
    read = {name: part.numpy() for name, part in drawn.obs.items()}
    following = box.advance(read, np.zeros((400, 0), np.float32))["state"]
    assert np.array_equal(drawn.next_obs["state"].numpy(), following)
    begun = (read["state"] == 0).all(1)
    assert collector.episodes > 0 and 0 < begun.mean() < 1
    later = {row.tobytes() for row in read["state"][~begun]}
    assert later <= {row.tobytes() for row in following}  # nothing lasts from another episode
    assert np.array_equal(collector.agent.with_memories(collector.obs)["obs"], collector.obs)


def test_the_edited_network_is_one_bundle_that_keeps_its_state(base: Path, tmp_path: Path) -> None:
    done = train(compose_run(words(base, tmp_path)))
    errors = export_policy(str(done.folder), str(tmp_path / "edited"))
    assert set(errors) == {"torch", "onnx"} and max(errors.values()) < 1e-5
    bundle = load_base(str(tmp_path / "edited"))
    judge = BundleJudge(bundle, TASK, {})
    on_torch, on_onnx = (
        judge.judge(episodes=3, seed=5, backend=backend, deterministic=True)
        for backend in ("torch", "onnx")
    )
    assert [e.return_ for e in on_torch.episodes] == [e.return_ for e in on_onnx.episodes]
    # Without a correction it is the network, whose state the corrections never touch.
    edited, plain = load_policy(tmp_path / "edited"), load_policy(base)
    rows = np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32)
    scale = 0.1 * 3.0  # of an action from -3 to 3
    for _ in range(2):
        edited.reset()
        plain.reset()
        apart = [np.abs(edited.step(row) - plain.step(row)).max() for row in rows]
        assert 0 < max(apart) <= scale + 1e-5
    policy = bundle.policy
    assert isinstance(policy, EditedPolicy)
    for weight in policy.editor.parameters():
        torch.nn.init.zeros_(weight)
    agents = [
        Agent(decides(one), 1, one.inputs, deterministic=True)
        for one in (policy, load_base(str(base)).policy)
    ]
    for row in rows:
        ours, theirs = (agent.act(row[None]) for agent in agents)
        np.testing.assert_allclose(ours, theirs, atol=1e-6)  # the edit's units round
        states = [agent.with_memories(row[None])["state"].tobytes() for agent in agents]
        assert states[0] == states[1]


def test_a_killed_run_goes_on_to_the_same_weights(base: Path, tmp_path: Path) -> None:
    whole = train(compose_run(words(base, tmp_path / "whole")))
    # Episodes have nine steps here: a checkpoint at every 18 would have states of zero alone.
    cut = compose_run(words(base, tmp_path / "cut", "checkpoint_every=10"))

    class Killed(Callback):
        def on_step(self, now: RunProgress) -> None:
            if now.env_steps >= 44:
                raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(cut, callbacks=[Killed()])
    again = train(cut)
    ours, theirs = (load_base(str(run.folder)).policy.state_dict() for run in (whole, again))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["algorithm=dsrl_sac"], "reads state of its episode, which this method does not keep"),
        (
            [
                "algorithm=residual",
                "dataset=two_doors",
                "offline_share=0.5",
                "algorithm.store_base=false",
            ],
            "hands on state .* no dataset has",
        ),
    ],
)
def test_what_cannot_keep_it_says_so(
    more: list[str], told: str, base: Path, tmp_path: Path
) -> None:
    given = [f"env={TASK}", f"base={base}", f"out={tmp_path}", "online_steps=60", *more]
    with pytest.raises(TrimtabError, match=told):
        train(compose_run(given))
