"""Decision transformer: what it sees, samples and remembers, and that asking for more helps."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from played import evaluate

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.decision_transformer import DecisionTransformer
from trimtab.algorithms.phases import Budget
from trimtab.benchmarks.training.evaluate import torch_act
from trimtab.benchmarks.training.shapes import spec_of
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.envs.registry import get_spec
from trimtab.policies.agent import Agent
from trimtab.policies.bundle.bundle import load_bundle, save_bundle
from trimtab.policies.kinds.decision_transformer import DecisionTransformerPolicy, with_context
from trimtab.policies.networks.sequences import Context
from trimtab.policies.opening import load_policy
from trimtab.types import PolicySpec, TrimtabError

SPEC = PolicySpec(3, 1, 2, (-1.0, -2.0), (1.0, 4.0))
LENGTH = 4
SMALL: dict[str, Any] = {"embedding": 8, "layers": 2, "heads": 2, "context": LENGTH}


def recorded(lengths: tuple[int, ...] = (2, 7, 5)) -> Dataset:
    generator = np.random.default_rng(0)
    episodes = [
        Episode(
            observations=generator.normal(size=(steps + 1, 3)),
            actions=generator.uniform(-1, 1, size=(steps, 2)),
            rewards=generator.normal(size=steps),
            terminations=np.arange(steps) == steps,
            truncations=np.arange(steps) == steps - 1,
        )
        for steps in lengths
    ]
    return Dataset("t/t-v0", "x/y", {}, tuple(episodes), SPEC.action_low, SPEC.action_high)


def learner(dataset: Dataset | None = None, **settings: Any) -> DecisionTransformer:
    statistics = (dataset or recorded()).statistics()
    torch.manual_seed(0)
    setup = Setup(SPEC, statistics=statistics, discount=1.0)
    return DecisionTransformer(setup, **{**SMALL, **settings})


def lively(policy: DecisionTransformerPolicy) -> DecisionTransformerPolicy:
    """Return a policy in which what was before has more effect than in a fresh one."""
    for name, weight in policy.transformer.named_parameters():
        if name.endswith("weight") and weight.ndim == 2:
            weight.data *= 15
    return policy


def contexts(rows: int, seed: int = 0) -> Context:
    generator = torch.Generator().manual_seed(seed)
    return Context(
        obs=torch.randn(rows, LENGTH, 3, generator=generator),
        action=torch.randn(rows, LENGTH, 2, generator=generator),
        asked=torch.randn(rows, LENGTH, 1, generator=generator),
        step=torch.arange(LENGTH).expand(rows, -1),
        there=torch.ones(rows, LENGTH, dtype=torch.bool),
    )


@torch.no_grad()
def test_nothing_later_changes_an_action() -> None:
    policy = lively(learner().policy)
    one, other = contexts(5), contexts(5, seed=1)
    before = policy.actions(one)
    for place in range(LENGTH):
        # The action after s_t sees R, s up to t and actions before t.
        changed = {}
        for name, first in (("obs", place + 1), ("asked", place + 1), ("action", place)):
            mixed = getattr(one, name).clone()
            mixed[:, first:] = getattr(other, name)[:, first:]
            changed[name] = mixed
        after = policy.actions(dataclasses.replace(one, **changed))
        assert torch.equal(after[:, : place + 1], before[:, : place + 1])
        for name in ("obs", "asked"):  # and of what it sees, all has an effect
            moved = getattr(one, name).clone()
            moved[:, 0] += 1.0
            seen = policy.actions(dataclasses.replace(one, **{name: moved}))
            assert (seen[:, place] != before[:, place]).all()


@torch.no_grad()
def test_padding_has_no_effect() -> None:
    policy = lively(learner().policy)
    one, other = contexts(5), contexts(5, seed=1)
    absent = torch.arange(LENGTH) >= 2
    there = absent.expand(5, -1)
    padded = {
        name: torch.where(absent[:, None], a, b)
        for name, a, b in (
            (name, getattr(one, name), getattr(other, name)) for name in ("obs", "action", "asked")
        )
    }
    first = policy.actions(dataclasses.replace(one, there=there))[:, 2:]
    second = policy.actions(dataclasses.replace(one, there=there, **padded))[:, 2:]
    assert torch.equal(first, second)
    # As if the sequence were as short as what is there.
    short = Context(*(getattr(one, f.name)[:, 2:] for f in dataclasses.fields(Context)))
    torch.testing.assert_close(policy.actions(short), first)


def test_the_transformer_is_the_one_of_pytorch() -> None:
    network = lively(learner().policy).transformer
    peers = []
    for block in network.blocks:
        peer = torch.nn.TransformerEncoderLayer(
            8, 2, 32, dropout=0.0, batch_first=True, norm_first=True
        )
        peer.self_attn.load_state_dict(
            {
                "in_proj_weight": block.attend.weight, "in_proj_bias": block.attend.bias,
                "out_proj.weight": block.mix.weight, "out_proj.bias": block.mix.bias,
            }
        )  # fmt: skip
        for mine, theirs in (("first_norm", "norm1"), ("second_norm", "norm2"),
                             ("widen", "linear1"), ("narrow", "linear2")):  # fmt: skip
            getattr(peer, theirs).load_state_dict(getattr(block, mine).state_dict())
        peers.append(peer.train())
    tokens = torch.randn(3, 6, 8)
    there = torch.ones(3, 6, dtype=torch.bool)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(6)
    wanted = tokens
    for peer in peers:
        wanted = peer(wanted, src_mask=mask)
    torch.testing.assert_close(network(tokens, there), network.norm(wanted))


def test_the_batch_is_that_of_a_loop() -> None:
    dataset, method = recorded(), learner()
    source = ReplayBuffer.from_dataset(
        dataset, discount=1.0, chunked=True, seed=0, successors=False, batch_spec=method.batch_spec
    )
    batch = source.sample(64)
    assert batch.sequence is not None
    found = method.context(batch.sequence)
    policy = method.policy
    mean, std = (
        np.asarray(x) for x in (dataset.statistics().obs_mean, dataset.statistics().obs_std)
    )
    seen = set()
    for row in range(64):
        (episode, start) = next(
            (episode, start)
            for episode in dataset.episodes
            for start in range(len(episode))
            if np.array_equal(episode.observations[start], batch.obs[row])  # type: ignore[index]
        )
        part = range(start, min(start + LENGTH, len(episode)))
        pad = LENGTH - len(part)
        seen.add(pad)
        assert found.there[row].tolist() == [False] * pad + [True] * len(part)
        for place, step in enumerate(part, start=pad):
            to_go = sum(float(r) for r in episode.rewards[step:]) / policy.return_scale
            assert float(found.asked[row, place, 0]) == pytest.approx(to_go, abs=1e-6)
            assert int(found.step[row, place]) == step
            want = (episode.observations[step] - mean) / (std + 1e-6)
            assert found.obs[row, place].numpy() == pytest.approx(want, rel=1e-5, abs=1e-6)
            a = episode.actions[step]
            assert found.action[row, place].numpy() == pytest.approx(
                [a[0], (a[1] - 1.0) / 3.0], abs=1e-6
            )
    assert seen == {0, 1, 2, 3}
    # The loss is the mean over what is there, and the rate rises evenly.
    method = learner(dropout=0.0, rise_updates=4)
    found = method.context(batch.sequence)
    errors = (method.policy.actions(found) - found.action).square().mean(-1).detach()
    wanted = np.mean([float(errors[i, j]) for i, j in found.there.nonzero().tolist()])
    rates = []
    for update in range(6):
        metrics = method.update(batch)
        if update == 0:
            assert float(metrics["action_loss"]) == pytest.approx(wanted, rel=1e-5)
        rates.append(metrics["learning_rate"])
    assert rates == pytest.approx([1e-4 * share for share in (0.25, 0.5, 0.75, 1, 1, 1)])


def test_what_is_remembered_is_that_of_a_loop() -> None:
    policy = lively(learner(target_return=5.0).policy)
    generator = np.random.default_rng(3)
    reads: list[Any] = []

    def decide(obs: Any, noise: NDArray[np.float32]) -> NDArray[np.float32]:
        reads.append({name: value.copy() for name, value in obs.items()})
        return torch_act(policy)(obs, noise)

    agent = Agent(decide, 2, policy.inputs, deterministic=True)
    told: list[list[float]] = [[], []]
    history: list[list[Any]] = [[], []]
    began = [0, 0]
    for t in range(9):
        obs = generator.normal(size=(2, 3)).astype(np.float32)
        where = np.array([True, t % 3 != 1])  # the second row sits out every third tick
        chunk = agent.act(obs, where)
        for row in np.flatnonzero(where):
            read = {name: value[row] for name, value in reads[-1].items()}
            past, told_now = history[row][began[row] :], told[row][began[row] :]
            to_go = [5.0 - sum(told_now[:k]) for k in range(len(past) + 1)][-LENGTH:]
            assert read["return_to_go"][-len(to_go) :] == pytest.approx(to_go, abs=1e-5)
            assert read["step"].tolist() == [len(past)]
            kept = past[-(LENGTH - 1) :]
            for back, (old, action) in enumerate(reversed(kept), start=1):
                assert np.array_equal(read["past_observations"][-back], old)
                assert np.array_equal(read["past_actions"][-back], action)
            assert not read["past_actions"][: LENGTH - 1 - len(kept)].any()
            history[row].append((obs[row], chunk[row]))
        reward = generator.normal(size=2)
        agent.rewarded(np.where(where, reward, 0.0))
        for row in np.flatnonzero(where):
            told[row].append(float(reward[row]))
        if t == 4:  # one row begins a new episode, the other goes on
            agent.reset([0])
            began[0] = len(history[0])


def test_the_robot_sees_what_the_judge_sees(tmp_path: Path) -> None:
    method = learner(target_return=5.0, return_scale=2.0, layers=1)
    contract = {"env": "x/y", "control_rate": 20.0, "act_steps": 1}
    save_bundle(lively(method.policy), tmp_path / "b", contract=contract)
    policy = load_bundle(tmp_path / "b").policy
    assert policy.spec.layout["return_to_go"].given == 5.0
    runner = load_policy(tmp_path / "b")
    generator = np.random.default_rng(1)
    agent = Agent(torch_act(policy), 1, policy.inputs, deterministic=True)
    for asked in (None, 9.0):  # two episodes, the second for another return
        if asked is not None:
            agent.set_inputs({"return_to_go": asked})
        runner.reset(**({} if asked is None else {"return_to_go": asked}))
        agent.reset()
        reward, actions = None, []
        for _ in range(12):  # three times the context
            obs = generator.normal(size=3).astype(np.float32)
            if reward is not None:
                agent.rewarded(np.array([reward]))
            action = runner.step(obs, reward)
            assert action == pytest.approx(agent.act(obs[None])[0, 0], abs=1e-5)
            actions.append(action)
            reward = float(generator.normal())
        assert np.ptp(actions, axis=0).min() > 0
    for name in ("past_actions", "step"):
        with pytest.raises(TrimtabError, match="has no input.*it has return_to_go"):
            runner.reset(**{name: 0.0})
    with pytest.raises(TrimtabError, match="reward"):
        runner.step(np.zeros(3), math.nan)
    # Without rewards it goes on being asked for all of it, and so acts otherwise.
    agent.set_inputs({"return_to_go": 5.0})
    played = []
    for told in (False, True):
        runner.reset(return_to_go=5.0)
        agent.reset()
        actions = []
        for t in range(6):
            obs = np.full(3, t, np.float32)
            actions.append(runner.step(obs, 1.0 if told else None))
            if not told:
                assert actions[-1] == pytest.approx(agent.act(obs[None])[0, 0], abs=1e-5)
        played.append(np.array(actions))
    assert np.array_equal(played[0][0], played[1][0])
    assert np.abs(played[0] - played[1])[1:].max() > 1e-2


def test_episodes_side_by_side_are_those_alone() -> None:
    torch.manual_seed(0)
    task = get_spec("gym/Reacher-v5")
    spec = spec_of(task, 1)
    policy = lively(
        DecisionTransformerPolicy(
            with_context(spec, LENGTH, 5.0), embedding=8, layers=1, return_scale=1.0
        )
    )
    together = evaluate(policy, task.id, episodes=3, seed=5).episodes
    alone = [evaluate(policy, task.id, episodes=1, seed=5 + i).episodes[0] for i in range(3)]
    for one, other in zip(together, alone, strict=True):
        assert (one.eval_seed, one.length) == (other.eval_seed, other.length)
        assert one.return_ == pytest.approx(other.return_, abs=1e-3)
    assert len({round(one.return_, 2) for one in alone}) == 3
    # What was collected has an effect: the same policy, told of no rewards, plays otherwise.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agent, "rewarded", lambda self, reward: None)
        untold = evaluate(policy, task.id, episodes=3, seed=5).episodes
    differences = [abs(a.return_ - b.return_) for a, b in zip(together, untold, strict=True)]
    assert min(differences) > 1e-2, differences


def test_what_is_asked_for_decides() -> None:
    """Two steps, and each action is its reward: asked for R, the policy collects R."""
    generator = np.random.default_rng(0)
    episodes = []
    for _ in range(200):
        actions = np.repeat(generator.choice([-1.0, 1.0], size=(2, 1)), 2, axis=1)
        actions[:, 1] = 0.0
        episodes.append(
            Episode(
                observations=np.zeros((3, 3)) + np.arange(3)[:, None],
                actions=actions,
                rewards=actions[:, 0],
                terminations=np.arange(2) == 1,
                truncations=np.zeros(2),
            )
        )
    dataset = Dataset("t/t-v0", "x/y", {}, tuple(episodes), SPEC.action_low, SPEC.action_high)
    method = learner(
        dataset, embedding=16, learning_rate=3e-3, rise_updates=10, return_scale=2.0, dropout=0.0
    )
    assert method.policy.spec.layout["return_to_go"].given == 2.0  # the best of the data
    source = ReplayBuffer.from_dataset(
        dataset, discount=1.0, chunked=True, seed=0, successors=False, batch_spec=method.batch_spec
    )
    for _ in range(250):
        method.update(source.sample(64))
    agent = Agent(torch_act(method.policy), 3, method.policy.inputs, deterministic=True)
    collected = {}
    for asked in (2.0, -2.0):
        agent.set_inputs({"return_to_go": asked})
        agent.reset()
        total = np.zeros(3)
        for t in range(2):
            reward = agent.act(np.full((3, 3), t, np.float32))[:, 0, 0]
            agent.rewarded(reward)
            total += reward
        collected[asked] = total
    assert collected[2.0] == pytest.approx([2.0] * 3, abs=0.3)
    assert collected[-2.0] == pytest.approx([-2.0] * 3, abs=0.3)


def test_settings_that_do_not_fit() -> None:
    statistics = recorded().statistics()
    setup = Setup(SPEC, statistics=statistics)
    with pytest.raises(TrimtabError, match=r"discount=0\.99.*set discount=1"):
        DecisionTransformer(setup, **SMALL).phases(Budget(offline_steps=1, online_steps=0))
    for settings, line in (
        ({"context": 1}, "context=1"),
        ({"heads": 3}, "embedding=8.*multiple of heads=3"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"return_scale": 0.0}, "return_scale=0.0"),
    ):
        with pytest.raises(TrimtabError, match=line):
            DecisionTransformer(setup, **{**SMALL, **settings})
    with pytest.raises(TrimtabError, match="history=2"):
        DecisionTransformer(dataclasses.replace(setup, spec=SPEC.with_history(2)), **SMALL)
