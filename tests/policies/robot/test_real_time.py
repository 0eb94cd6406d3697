"""Policies that go on from the chunk that is being played: formulas, graphs, robots, logs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from trimtab.benchmarks.contracts import policies
from trimtab.errors import TrimtabError
from trimtab.policies.agent import PREVIOUS, RESTART, WEIGHTS
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import check_bundle, load_bundle, save_bundle
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.real_time_chunking import LIMIT, RealTimeChunkingPolicy, guided
from trimtab.policies.kinds.real_time_iteration import RealTimeIterationPolicy
from trimtab.policies.networks.samplers import Euler
from trimtab.policies.robot.modes import chunk_weights
from trimtab.policies.robot.replay import replay
from trimtab.policies.runtime import (
    NO_LIMITS,
    Hold,
    RealTimeChunking,
    RealTimeIteration,
    load_policy,
)
from trimtab.types import Batch, PolicySpec

ROWS, HORIZON, DIM = 5, 6, 2
SPEC = PolicySpec(3, HORIZON, DIM, (-2.0, -1.0), (2.0, 3.0))
BundleOf = Callable[[str], Path]


def flow(steps: int = 5, **keywords: Any) -> FlowPolicy:
    torch.manual_seed(0)
    policy = FlowPolicy(SPEC, hidden=(16,), sampling_steps=steps, **keywords).eval()
    for weight in policy.parameters():
        weight.data *= 1.5
    return policy


def diffusion(**keywords: Any) -> DiffusionPolicy:
    torch.manual_seed(0)
    return DiffusionPolicy(SPEC, hidden=(16,), sampling_steps=4, **keywords).eval()


def drawn(policy: Policy, seed: int = 1) -> tuple[dict[str, Tensor], Tensor]:
    """Return everything that a policy reads, and noise."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(ROWS, *shape, generator=generator)

    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    obs = {
        "obs": uniform(3), PREVIOUS: low + (high - low) * uniform(HORIZON, DIM),
        WEIGHTS: uniform(HORIZON), LIMIT: 10 * uniform(1), RESTART: uniform(1).round(),
    }  # fmt: skip
    noise = torch.randn(ROWS, HORIZON, DIM, generator=generator)
    return {name: obs[name] for name in policy.spec.layout}, noise


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (5, [5, 4.25, 2.1667, 2.1667, 4.25]),
        (10, [10, 9.1111, 4.25, 2.7619, 2.1667, 2, 2.1667, 2.7619, 4.25, 9.1111]),
    ],
)
def test_the_gains_are_those_of_the_paper(steps: int, expected: list[float]) -> None:
    one = torch.ones(1, 1, 1)
    field = guided(lambda x, _: 0 * x, Euler(steps).levels, one, one, steps * one)
    gains = [float(field(0 * one, one)) for _ in range(steps)]  # x1 = 0, so the error is 1
    assert np.abs(np.array(gains) - expected).max() < 1e-4


@pytest.mark.parametrize("previous", [-3.0, 2.0, 4.0])
def test_what_binds_is_drawn_to_the_previous_chunk_at_every_step(previous: float) -> None:
    """With v = y* - x, the identity for the Jacobian, and W = 1 for the first of two entries."""
    x, goal = torch.full((1, 2, 1), -1.0), 0.25
    old, weights = torch.full_like(x, previous), torch.tensor([[[1.0], [0.0]]])
    field = guided(lambda x, _: goal - x, Euler(5).levels, old, weights, torch.tensor(5.0))
    distances = []
    for step in range(5):
        expected = x + (1 - step / 5) * (goal - x)
        distances.append(abs(float(expected[0, 0]) - previous))
        x = x + field(x, torch.tensor([step / 5])) / 5
    distances.append(abs(float(x[0, 0]) - previous))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.05 * distances[0]
    assert abs(float(x[0, 1]) - (goal - (goal + 1) * 0.8**5)) < 1e-6  # the other is as it was


def test_the_chunk_is_that_of_lerobot_whose_time_runs_from_one_to_zero() -> None:
    policy = RealTimeChunkingPolicy(flow())
    base, (obs, noise) = policy.base, drawn(policy)
    y, w = base.normalizer.normalize_action(obs[PREVIOUS]), obs[WEIGHTS][..., None]
    x, ours = noise, base.field(obs)
    for step in range(5):
        t = 1 - step / 5
        v = -ours(x, torch.tensor([1 - t]))  # noise - data
        x1 = x - t * v
        tau = 1 - t
        square = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        gain = obs[LIMIT][..., None]
        if tau:
            gain = torch.minimum(torch.tensor((1 - tau) / tau / square), gain)
        x = x - (v - gain * (y - x1) * w) / 5
    torch.testing.assert_close(policy(obs, noise), base.normalizer.raw_action(x))


def test_a_diffusion_policy_is_guided_as_the_flow_that_its_sampler_is() -> None:
    policy = RealTimeChunkingPolicy(diffusion())
    base, (obs, noise) = policy.base, drawn(policy)
    assert isinstance(base, DiffusionPolicy)
    y, w = base.normalizer.normalize_action(obs[PREVIOUS]), obs[WEIGHTS][..., None]
    network = base.field(obs)
    levels = [*base.sampler.levels, (1.0, 0.0)]
    z = noise / sum(levels[0])
    for (s, n), (later_s, later_n), k in zip(levels, levels[1:], [15, 10, 5, 0], strict=False):
        t, later = s / (s + n), later_s / (later_s + later_n)
        epsilon = network(z * (s + n), torch.tensor([k / 20]))
        v = (z * (s + n) - n * epsilon) / s - epsilon
        gain = obs[LIMIT][..., None].clamp(max=(t**2 + (1 - t) ** 2) / (t * (1 - t)))
        v = v + gain * w * (y - (z + (1 - t) * v).clamp(-1, 1))
        clean = (z + (1 - t) * v).clamp(-1, 1)
        v = (clean - z) / (1 - t)
        z = z + (later - t) * v
    found = policy(obs, noise)
    torch.testing.assert_close(found, base.normalizer.raw_action(z), atol=1e-5, rtol=1e-5)
    assert (found - base(obs["obs"], noise)).abs().max() > 0.1


@pytest.mark.parametrize("of_noise", [False, True])
def test_the_exact_gradient_is_that_of_the_expected_chunk(of_noise: bool) -> None:
    torch.manual_seed(2)
    matrix = torch.randn(3, 3)
    x, y, w = torch.randn(1, 1, 3), torch.randn(1, 1, 3), torch.rand(1, 1, 3)
    s, n = (0.8, 0.6) if of_noise else (0.3, 0.7)

    def network(point: Tensor, _: Tensor) -> Tensor:
        return torch.tanh(point @ matrix)

    def expected(point: Tensor) -> Tensor:
        if of_noise:
            return ((point - n * network(point, point)) / s).clamp(-1, 1)
        return point + n * network(point, point)

    limit = torch.tensor(1.5)
    with torch.no_grad():
        field = guided(network, [(s, n)], y, w, limit, of_noise=of_noise, exact=True)
        found = field(x, torch.ones(1)) - network(x, x)
    jacobian: Any = torch.autograd.functional.jacobian(lambda p: expected(p).flatten(), x)
    pulled = (w * (y - expected(x))).flatten() @ jacobian.reshape(3, 3)
    factor = -1.5 * s if of_noise else 1.5  # -t (s + n), as x is s + n times the flow's point
    torch.testing.assert_close(found.flatten(), factor * pulled)


def test_a_policy_with_the_exact_gradient_is_a_bundle_for_torch_alone(
    contract: dict[str, Any], tmp_path: Path
) -> None:
    policy = RealTimeChunkingPolicy(flow(), exact=True)
    found = policy(*drawn(policy))
    assert (found - RealTimeChunkingPolicy(flow())(*drawn(policy))).abs().max() > 0.01
    given = {**contract, "action_names": None}
    with pytest.raises(TrimtabError, match="^export: the exact gradient .* leave out exact"):
        save_bundle(policy, tmp_path / "bundle", contract=given)
    folder = save_bundle(policy, tmp_path / "bundle", contract=given, onnx=False)
    assert torch.equal(load_bundle(folder).policy(*drawn(policy)), found)


@pytest.mark.bits
@pytest.mark.parametrize("base", [flow, diffusion, lambda: flow(prefix=3)])
@pytest.mark.parametrize("kind", [RealTimeChunkingPolicy, RealTimeIterationPolicy])
def test_without_a_plan_it_is_plain_sampling_to_the_bit(
    kind: Callable[[Policy], Policy], base: Callable[[], Policy]
) -> None:
    policy = kind(base())
    obs, noise = drawn(policy)
    for name in {WEIGHTS, RESTART} & obs.keys():
        obs[name] = 0 * obs[name]
    with torch.no_grad():
        plain = base()(obs["obs"], noise)
        assert torch.equal(policy(obs, noise), plain)
        assert torch.equal(policy(obs["obs"], noise), plain)
    changed, _ = drawn(policy)
    assert not torch.equal(policy({**changed, WEIGHTS: torch.ones(ROWS, HORIZON)}, noise), plain)


def test_real_time_iteration_takes_the_last_steps_from_the_noised_plan() -> None:
    policy = RealTimeIterationPolicy(flow(), late_steps=2)
    base, (obs, noise) = policy.base, drawn(policy)
    assert 0 < obs[RESTART].sum() < ROWS
    field = base.field(obs)
    x = 0.6 * base.normalizer.normalize_action(obs[PREVIOUS]) + 0.4 * noise
    for step in (3, 4):
        x = x + field(x, torch.tensor([step / 5])) / 5
    found, plain = policy(obs, noise), base(obs["obs"], noise)
    expected = torch.where(obs[RESTART][..., None] == 1, base.normalizer.raw_action(x), plain)
    torch.testing.assert_close(found, expected)


def test_the_trained_prefix_keeps_what_is_known() -> None:
    policy = RealTimeChunkingPolicy(flow(prefix=3))
    obs, noise = drawn(policy)
    obs[WEIGHTS] = torch.from_numpy(chunk_weights(4, 6, HORIZON)).expand(ROWS, -1)
    found = policy(obs, noise)
    # Four bind, and three are what it was trained for.
    torch.testing.assert_close(found[:, :3], obs[PREVIOUS][:, :3])
    assert (found[:, 3:] - obs[PREVIOUS][:, 3:]).abs().min() > 1e-4
    other = {**obs, PREVIOUS: obs[PREVIOUS].flip(0)}
    assert not torch.equal(policy(other, noise)[:, 3:], found[:, 3:])
    hard = {**obs, WEIGHTS: torch.from_numpy(chunk_weights(4, 6, HORIZON, "zeros"))[None]}
    hard[WEIGHTS] = hard[WEIGHTS].expand(ROWS, -1)
    assert torch.equal(policy(hard, noise), found)


def test_a_prefix_is_learned() -> None:
    """Chunks are all +1 or all -1; a policy that is told the first action takes its sign."""
    torch.manual_seed(0)
    spec = PolicySpec(1, 4, 1, (-2.0,), (2.0,))
    policy = FlowPolicy(spec, hidden=(32, 32), sampling_steps=5, prefix=2)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    for _ in range(300):
        sign = torch.randint(2, (128, 1, 1)) * 2.0 - 1
        zero = torch.zeros(128)
        batch = Batch(
            obs=zero[:, None], action=sign.expand(-1, 4, 1), reward=zero, next_obs=zero[:, None],
            discount=zero, valid=torch.ones(128, 4, dtype=torch.bool),
        )  # fmt: skip
        optimizer.zero_grad()
        policy.bc_loss(batch).backward()
        optimizer.step()
    errors = policy.bc_errors(batch)
    known = (errors == 0).all(2)
    lengths = known.sum(1)  # no actions, one or two, each for a third of the rows
    assert [20 < int((lengths == length).sum()) < 64 for length in range(3)] == [True] * 3
    assert torch.equal(known, torch.arange(4) < lengths[:, None])
    robot = RealTimeChunkingPolicy(policy)
    noise, obs = torch.randn(200, 4, 1), torch.zeros(200, 1)
    for sign in (-1.0, 1.0):
        told = {
            "obs": obs, PREVIOUS: torch.full((200, 4, 1), sign),
            WEIGHTS: torch.tensor([1.0, 0, 0, 0]).expand(200, 4),
        }  # fmt: skip
        assert ((robot(told, noise)[:, 1:] * sign) > 0.5).float().mean() > 0.95
    assert 0.2 < (robot(obs, noise)[:, 1:] > 0).float().mean() < 0.8


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: RealTimeChunkingPolicy(GaussianPolicy(SPEC)), "a gaussian policy cannot take"),
        (lambda: RealTimeChunkingPolicy(diffusion(sampler="ddpm")), "sampler=ddim"),
        (lambda: RealTimeIterationPolicy(flow(), late_steps=5), "has 5 sampling steps"),
        (lambda: flow(prefix=6), "a chunk has 6 actions"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], word: str) -> None:
    with pytest.raises(TrimtabError, match=word):
        make()


@pytest.mark.parametrize("check", [name for name in policies.CHECKS if name != "export"])
@pytest.mark.parametrize("kind", [RealTimeChunkingPolicy, RealTimeIterationPolicy])
def test_it_keeps_the_contract_of_every_policy(
    check: str, kind: Callable[[Policy], Policy]
) -> None:
    assert policies.CHECKS[check](policies.Subject(lambda: kind(flow()), SPEC))


@pytest.fixture(scope="module")
def chunked(
    policy_of: Callable[[str], Policy], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Bundles of the flow policy of these tests, made once."""
    root = tmp_path_factory.mktemp("chunked")
    kinds: dict[str, Callable[[Policy], Policy]] = {
        "rtc": RealTimeChunkingPolicy,
        "rti": functools.partial(RealTimeIterationPolicy, late_steps=1),
    }
    contract = {"env": "gym/Hopper-v5", "control_rate": 10.0, "act_steps": 3}

    def bundle(word: str) -> Path:
        folder = root / word
        policy = kinds[word](policy_of("flow"))
        return folder if folder.exists() else save_bundle(policy, folder, contract=contract)

    return bundle


@pytest.mark.bits
def test_the_graphs_are_those_of_torch_and_without_a_plan_plain_ones(
    chunked: Callable[[str], Path], bundle_of: BundleOf
) -> None:
    plain = load_policy(bundle_of("flow"), limits=NO_LIMITS)
    generator = np.random.default_rng(0)
    obs = generator.normal(size=(9, 6)).astype(np.float32)
    noise = generator.normal(size=(9, 4, 2)).astype(np.float32)
    for word, name, shape in (("rtc", WEIGHTS, (4,)), ("rti", RESTART, (1,))):
        graph, whole = (
            load_policy(chunked(word), limits=NO_LIMITS),
            load_bundle(chunked(word)).policy,
        )
        told = {
            "obs": obs, PREVIOUS: generator.uniform(-0.3, 1, (9, 4, 2)).astype(np.float32),
            name: np.zeros((9, *shape), np.float32),
        }  # fmt: skip
        if word == "rtc":
            told[LIMIT] = np.full((9, 1), 5, np.float32)
        assert np.array_equal(graph.predict(told, noise), plain.predict(obs, noise))
        for binding in (np.ones((9, 1)), np.arange(9)[:, None] % 2):  # all rows, or some
            told[name] = np.broadcast_to(binding, (9, *shape)).astype(np.float32)
            found = graph.predict(told, noise)
            assert np.abs(found - whole(told, noise)).max() < 1e-5
            assert not np.array_equal(found, plain.predict(obs, noise))
        assert set(check_bundle(chunked(word))) == {"torch", "onnx"}
        data = (chunked(word) / "policy.onnx").read_bytes()
        assert b"site-packages" not in data and str(Path(__file__).parents[3]).encode() not in data
        operators = {node.op_type for node in onnx.load_from_string(data).graph.node}
        assert ("If" in operators) == (word == "rti")  # the early steps are left out


def observations(count: int) -> Any:
    return np.random.default_rng(3).normal(size=(count, 6)).astype(np.float32)


@pytest.mark.bits
@pytest.mark.parametrize("word", ["rtc", "rti"])
def test_a_robot_tells_its_policy_the_plan_and_its_log_is_played_again(
    word: str, chunked: Callable[[str], Path], tmp_path: Path
) -> None:
    mode = RealTimeChunking(2, schedule="linear") if word == "rtc" else RealTimeIteration(2)
    runner = load_policy(
        chunked(word),
        limits=NO_LIMITS,
        seed=5,
        deterministic=False,
        mode=mode,
        fallback=Hold(),
        log=tmp_path / "log",
    )
    for tick, obs in enumerate(observations(20)):
        if tick != 9:
            runner.step(obs, tick=tick)
    runner.reset(7)
    if word == "rtc":
        runner.reset(7, guidance_limit=2.0)
    first, second, third = observations(3)
    runner.step(first)
    old = runner.plan().actions
    runner.step(second)
    noise = load_policy(chunked(word), seed=7, deterministic=False, limits=NO_LIMITS).sample_noise(
        2
    )
    told = {"obs": third[None], PREVIOUS: np.zeros((1, 4, 2), np.float32)}
    told[PREVIOUS][0, :2] = old[1:]
    if word == "rtc":
        told |= {WEIGHTS: chunk_weights(0, 2, 4, "linear")[None], LIMIT: np.float32([[2]])}
    else:
        told |= {RESTART: np.ones((1, 1), np.float32)}
        told[PREVIOUS][0, 2:] = old[-1]
    assert np.array_equal(runner.step(third), runner.predict(told, noise[1:])[0, 0])
    runner.close()
    found = replay(tmp_path / "log")
    assert (found.ticks, found.equal) == (22, True)


def test_in_another_process_the_plan_is_told_too(
    chunked: Callable[[str], Path], tmp_path: Path
) -> None:
    runner = load_policy(
        chunked("rtc"),
        limits=NO_LIMITS,
        mode=RealTimeChunking(2),
        fallback=Hold(),
        apart=True,
        log=tmp_path / "log",
    )
    assert runner.obs_dim == 6  # the plan that the mode tells is not observed
    try:
        runner.reset(action=(0.5, 0.25))
        for obs in observations(60):
            runner.step(obs)
            time.sleep(0.002)
    finally:
        runner.close()
    assert runner.counts["fallback"] < 60
    found = replay(tmp_path / "log")
    assert (found.ticks, found.equal) == (60, True)
