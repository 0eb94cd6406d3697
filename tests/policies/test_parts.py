"""Observations of several parts, histories and inputs: networks, bundles and the robot."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from trimtab.observations import tree_map
from trimtab.policies.agent import Agent, PolicyInputs
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import check_bundle, load_bundle, save_bundle
from trimtab.policies.features import features, observations
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.policies.kinds.diagonal_gaussian import DiagonalGaussianPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.policies.opening import load_policy
from trimtab.types import Part, PolicySpec, Statistics, TrimtabError

FLAT = PolicySpec(5, 4, 2, (-1.0, -0.5), (1.0, 2.0))
PARTS = PolicySpec(
    3 + 12, 4, 2, (-1.0, -0.5), (1.0, 2.0),
    parts={"state": Part((3,)), "picture": Part((2, 2, 3), "uint8")},
)  # fmt: skip
SPECS: Mapping[str, PolicySpec] = {
    "flat": FLAT,
    "flat-history": FLAT.with_history(3),
    "flat-input": FLAT.with_input("guidance", 1.0),
    "parts": PARTS,
    "parts-history": PARTS.with_history(2),
    "all": PARTS.with_history(2).with_input("guidance", 1.5).with_input("goal", 0.0, (2,)),
}
CONTRACT = {"env": "x/y", "control_rate": 20.0, "act_steps": 2}


def random_observation(spec: PolicySpec, rows: int, seed: int) -> Any:
    """Return an observation with history and inputs, as arrays."""
    generator = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name, part in spec.layout.items():
        past = (spec.history,) if spec.history > 1 and part.given is None else ()
        shape = (rows, *past, *part.shape)
        if part.dtype == "uint8":
            found[name] = generator.integers(0, 256, shape, dtype=np.uint8)
        else:
            found[name] = generator.normal(size=shape).astype(np.float32)
    return found if spec.parts else found["obs"]


def tensors(obs: Any) -> Any:
    return tree_map(torch.as_tensor, obs)


@pytest.mark.parametrize("name", SPECS)
def test_features_are_all_numbers_in_order(name: str) -> None:
    spec, rows = SPECS[name], 3
    obs = random_observation(spec, rows, 0)
    parts = obs if spec.parts else {"obs": obs}
    expected = [
        [x for part in spec.layout for x in np.asarray(parts[part][row], np.float32).reshape(-1)]
        for row in range(rows)
    ]
    found = features(tensors(obs), spec)
    assert found.shape == (rows, spec.obs_dim) and found.dtype == torch.float32
    assert found.tolist() == np.array(expected, np.float32).tolist()
    again = observations(found, spec)
    for one, other in zip(
        (again if spec.parts else {"obs": again}).values(), parts.values(), strict=True
    ):
        assert np.array_equal(one.numpy(), other) and one.numpy().dtype == other.dtype


def test_features_of_rollouts_keep_their_leading_axes() -> None:
    spec = SPECS["all"]
    obs = tensors(random_observation(spec, 6, 1))
    folded = tree_map(lambda part: part.reshape(2, 3, *part.shape[1:]), obs)
    assert torch.equal(features(folded, spec).flatten(0, 1), features(obs, spec))


def test_an_input_that_is_left_out_has_its_default_and_a_part_has_none() -> None:
    spec = SPECS["all"]
    obs = tensors(random_observation(spec, 4, 2))
    told = features({**obs, "guidance": torch.full((4, 1), 1.5)}, spec)
    del obs["guidance"]
    assert torch.equal(features(obs, spec), told)
    del obs["state"]
    with pytest.raises(TrimtabError, match="lacks the part state"):
        features(obs, spec)


def test_an_input_may_come_first_and_be_left_out() -> None:
    spec = PolicySpec(
        3, 1, 1, (-1.0,), (1.0,), parts={"w": Part((1,), given=0.5), "p": Part((2,))}
    )  # fmt: skip
    found = features({"p": torch.tensor([[1.0, 2.0]])}, spec)
    assert found.tolist() == [[0.5, 1.0, 2.0]]


@pytest.mark.parametrize("name", SPECS)
def test_a_normaliser_is_fitted_part_by_part(name: str) -> None:
    spec = SPECS[name]
    sizes = [part.size for part in spec.observed.values()]
    width = sum(sizes)
    low, high = -torch.arange(1.0, width + 1), torch.arange(2.0, width + 2)
    action = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    policy = GaussianPolicy(spec, hidden=(8,))
    policy.fit_normalizer(Statistics(low * 0, low * 0 + 1, low, high, *action))
    obs = tensors(random_observation(spec, 7, 3))
    found = policy.normalizer.obs(obs)
    column, first = 0, 0
    vector = features(obs, spec)
    for part in spec.layout.values():
        for _ in range(spec.history if part.given is None else 1):
            for entry in range(part.size):
                x = vector[:, column]
                if part.given is None:
                    a, b = low[first + entry], high[first + entry]
                    x = (x - (a + b) / 2) / ((b - a) / 2)
                assert torch.allclose(found[:, column], x, atol=1e-6)
                column += 1
        first += part.size if part.given is None else 0
    assert column == spec.obs_dim


def test_bytes_are_scaled_where_nothing_is_fitted() -> None:
    policy = GaussianPolicy(PARTS, hidden=(8,))
    picture = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 2, 2, 3)
    found = policy.normalizer.obs({"state": torch.zeros(2, 3), "picture": picture})
    assert found[:, 3:].tolist() == [[-1.0] * 12, [1.0] * 12]


def test_running_statistics_are_those_of_the_features() -> None:
    spec = SPECS["parts-history"]
    policy = DiagonalGaussianPolicy(spec, hidden=(8,), normalize_observations=True)
    assert isinstance(policy.normalizer, RunningNormalizer)
    obs = tensors(random_observation(spec, 50, 4))
    policy.normalizer.see(obs)
    vector = features(obs, spec).double()
    assert torch.allclose(policy.normalizer.mean, vector.mean(0))
    assert torch.allclose(policy.normalizer.variance, vector.var(0, correction=0))


def best_of(spec: PolicySpec) -> Policy:
    base = FlowPolicy(spec, hidden=(16, 16), sampling_steps=2)
    return BestOfPolicy(base, candidates=5, hidden=(12,), act_steps=2)


def steered(spec: PolicySpec) -> Policy:
    base = FlowPolicy(spec, hidden=(16, 16), sampling_steps=2)
    return LatentPolicy(TanhGaussianPolicy(latent_spec(base, 1.5), hidden=(8,)), base)


KINDS: Mapping[str, Callable[[PolicySpec], Policy]] = {
    "flow": lambda spec: FlowPolicy(spec, hidden=(16, 16), sampling_steps=2),
    "latent": steered,
    "best_of": best_of,
}
Exported = Callable[..., tuple[Policy, Path]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Policies of these observations with their bundles, each made once."""
    root = tmp_path_factory.mktemp("bundles")

    @functools.cache
    def export(name: str, kind: str = "flow") -> tuple[Policy, Path]:
        torch.manual_seed(0)
        policy = KINDS[kind](SPECS[name]).eval()
        return policy, save_bundle(policy, root / name / kind, contract=CONTRACT)

    return export


@pytest.mark.parametrize(
    ("name", "kind"), [("flat-input", "flow"), *(("all", kind) for kind in KINDS)]
)
def test_a_bundle_gives_the_same_actions_on_every_backend(
    name: str, kind: str, exported: Exported
) -> None:
    spec, (policy, folder) = SPECS[name], exported(name, kind)
    errors = check_bundle(folder)
    assert errors["torch"] == 0 and errors["onnx"] <= 1e-5
    opened, runner = load_bundle(folder).policy, load_policy(folder)
    assert opened.spec == spec and opened.config() == policy.config()
    obs = random_observation(spec, 9, 5)
    noise = np.random.default_rng(6).normal(size=(9, *policy.noise_shape)).astype(np.float32)
    with torch.no_grad():
        expected = policy(tensors(obs), torch.from_numpy(noise)).numpy()
    assert expected.std() > 1e-3
    assert np.abs(runner.predict(obs, noise) - expected).max() <= 1e-5
    model = onnx.load(folder / "policy.onnx")
    assert [port.name for port in model.graph.input] == [*spec.layout, "noise"]
    assert "input guidance" in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", ["flat-history", "parts-history", "all"])
def test_a_robot_gives_one_observation_a_tick_and_the_runner_remembers(
    name: str, exported: Exported
) -> None:
    spec, (policy, folder) = SPECS[name], exported(name)
    runner = load_policy(folder, seed=3)
    single = PolicySpec(
        sum(part.size for part in spec.observed.values()), 4, 2,
        spec.action_low, spec.action_high, parts=dict(spec.observed) if spec.parts else {},
    )  # fmt: skip
    ticks = random_observation(single, 7, 7)
    stream = np.random.Generator(np.random.Philox(3))
    seen: list[Any] = []
    for tick in range(7):
        now = tree_map(lambda part, tick=tick: part[tick], ticks)
        played = runner.step(now)
        if tick % 2 == 0:  # two actions of each chunk are played: decisions are the even ticks
            seen = [*(seen or [now] * (spec.history - 1)), now][-spec.history :]
            past: Any = tree_map(lambda *parts: torch.as_tensor(np.stack(parts))[None], *seen)
            noise = stream.standard_normal((1, 4, 2), dtype=np.float32)
            with torch.no_grad():
                chunk = policy(past, torch.from_numpy(noise))[0].numpy()
        assert np.abs(played - chunk[tick % 2]).max() <= 1e-5
    runner.reset(3)
    first = runner.step(tree_map(lambda part: part[0], ticks))
    runner.reset(3)
    assert np.array_equal(runner.step(tree_map(lambda part: part[0], ticks)), first)


def test_an_input_is_chosen_at_reset_and_stays(exported: Exported) -> None:
    policy, folder = exported("flat-input")
    runner = load_policy(folder, deterministic=True)
    obs = np.full(5, 0.3, np.float32)

    def expected(weight: float) -> np.ndarray[Any, Any]:
        given = {"obs": torch.from_numpy(obs)[None], "guidance": torch.tensor([[weight]])}
        with torch.no_grad():
            action: np.ndarray[Any, Any] = policy(given, torch.zeros(1, 4, 2))[0, 0].numpy()
        return action

    assert np.allclose(runner.step(obs), expected(1.0), atol=1e-6)
    runner.reset(guidance=4.0)
    assert np.allclose(runner.step(obs), expected(4.0), atol=1e-6)
    runner.reset()
    assert np.allclose(runner.step(obs), expected(4.0), atol=1e-6)
    for wrong, words in (({"guidanc": 1.0}, "no input 'guidanc'; it has guidance"),
                         ({"guidance": np.nan}, "must be finite"),
                         ({"guidance": [1.0, 2.0]}, "shape \\(1,\\)")):  # fmt: skip
        with pytest.raises(TrimtabError, match=words):
            runner.reset(**wrong)
    runner.reset()
    assert np.allclose(runner.step(obs), expected(4.0), atol=1e-6)


def test_wrong_parts_are_one_line(exported: Exported) -> None:
    runner = load_policy(exported("parts-history")[1])
    state, picture = np.zeros(3), np.zeros((2, 2, 3), np.uint8)
    for wrong, words in (
        (np.zeros(15), "give a mapping with the parts state, picture"),
        ({"state": state}, "lacks the part picture"),
        ({"state": state, "picture": picture, "extra": state}, "has the part extra"),
        ({"state": state, "picture": picture.astype(np.float32)}, "give bytes"),
        ({"state": np.array([0.0, np.nan, 0.0]), "picture": picture}, "part state: value at"),
        ({"state": np.zeros(4), "picture": picture}, "part state: has shape"),
    ):
        with pytest.raises(TrimtabError, match=words):
            runner.step(wrong)
    assert runner.step({"state": state, "picture": picture}).shape == (2,)


def test_impossible_parts_are_refused() -> None:
    limits: Any = (1, 1, (-1.0,), (1.0,))
    for make, words in (
        (lambda: PolicySpec(4, *limits, parts={"a": Part((3,))}), "obs_dim is 4"),
        (lambda: PolicySpec(3, *limits, parts={"noise": Part((3,))}), "'noise'"),
        (lambda: FLAT.with_input("seed", 0.0), "'seed'"),
        (lambda: PolicySpec(3, *limits, parts={"obs": Part((3,))}), "obs alone"),
        (lambda: PolicySpec(5, *limits, history=2), "no multiple"),
        (lambda: FLAT.with_input("obs", 0.0), "already"),
        (lambda: Part((3,), "float16"), "float32 or uint8"),
        (lambda: Part((0,)), "at least 1"),
        (lambda: Part((1,), given=float("nan")), "finite"),
    ):
        with pytest.raises(TrimtabError, match=words):
            make()


def test_the_best_candidate_is_played(tmp_path: Path) -> None:
    torch.manual_seed(3)
    policy = best_of(FLAT).eval()
    assert isinstance(policy, BestOfPolicy)
    obs, noise = torch.randn(6, 5), torch.randn(6, *policy.noise_shape)
    with torch.no_grad():
        played = policy(obs, noise)
        places = set()
        for row in range(6):
            chunks = [policy.base(obs[row : row + 1], noise[row : row + 1, i]) for i in range(5)]
            worth = [policy.value(obs[row : row + 1], chunk).min().item() for chunk in chunks]
            places.add(int(np.argmax(worth)))
            assert torch.allclose(played[row], chunks[int(np.argmax(worth))][0], atol=1e-6)
    assert len(places) > 1  # a policy that always took one candidate would pass otherwise
    for wrong in ({"candidates": 0}, {"act_steps": 5}):
        with pytest.raises(TrimtabError, match=next(iter(wrong))):
            BestOfPolicy(FlowPolicy(FLAT, hidden=(8,)), **wrong)


@pytest.mark.parametrize("parts", [False, True])
def test_an_agent_remembers_each_episode_by_itself(parts: bool) -> None:
    generator = np.random.default_rng(8)
    rows, length, steps = 3, 3, 12
    told: list[Any] = []

    def decide(obs: Any, noise: Any) -> Any:
        told.append(tree_map(np.copy, obs))
        return np.zeros((rows, 2, 1), np.float32)

    agent = Agent(decide, rows, PolicyInputs((1,), history=length), act_steps=1, deterministic=True)
    books: list[list[Any]] = [[] for _ in range(rows)]
    for step in range(steps):
        flat = generator.normal(size=(rows, 2)).astype(np.float32)
        acting = generator.random(rows) < 0.8 if step else np.ones(rows, np.bool_)
        agent.act({"a": flat, "b": flat[:, :1]} if parts else flat, acting)
        for row in np.flatnonzero(acting):
            books[row] = [*(books[row] or [flat[row]] * (length - 1)), flat[row]][-length:]
            seen = told[-1]["a"][row] if parts else told[-1][row]
            assert np.array_equal(seen, np.stack(books[row]))
        ended = np.flatnonzero(acting & (generator.random(rows) < 0.3)).tolist()
        agent.reset(ended)
        for row in ended:
            books[row] = []
        if step == 5:  # what it remembers can be saved
            state = agent.state_dict()
            agent = Agent(decide, rows, PolicyInputs((1,), history=length), deterministic=True)
            agent.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda inputs: {k: {**v, "given": 0.0} for k, v in inputs.items()}, "environment's"),
        (lambda inputs: dict(reversed(inputs.items())), "order of parts"),
    ],
)
def test_a_contract_of_other_parts_is_refused(
    change: Any, words: str, tmp_path: Path, reseal: Any
) -> None:
    policy = GaussianPolicy(PARTS, hidden=(8,))
    folder = save_bundle(policy, tmp_path / "bundle", contract=CONTRACT, onnx=False)
    inputs = json.loads((folder / "config.json").read_text())["inputs"]
    noise = inputs.pop("noise")
    if words == "environment's":
        for entry in inputs.values():
            entry["dtype"] = "float32"
    reseal(folder, config={"inputs": {**change(inputs), "noise": noise}})
    with pytest.raises(TrimtabError, match=words):
        load_bundle(folder)
