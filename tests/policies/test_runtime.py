from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch
from onnx import TensorProto, helper
from packaging.requirements import Requirement

import trimtab
from trimtab.benchmarks.cli.robot import examine_robot
from trimtab.policies import runtime
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.bundle.files import Array, Contract, read_safetensors
from trimtab.policies.runtime import NO_LIMITS, Hold, PolicyRunner, RecedingHorizon
from trimtab.types import TrimtabError

pytestmark = pytest.mark.bits

load_policy = functools.partial(runtime.load_policy, limits=NO_LIMITS)
BundleOf = Callable[[str], Path]


def philox(seed: int, *shape: int) -> Array:
    generator = np.random.Generator(np.random.Philox(seed))
    return generator.standard_normal(shape, dtype=np.float32)


def test_attributes(bundle_of: BundleOf) -> None:
    runner = load_policy(bundle_of("flow"))
    assert (runner.obs_dim, runner.action_dim) == (6, 2)
    assert (runner.horizon, runner.act_steps) == (4, 3)
    assert runner.control_rate == 10.0
    below, above = np.nextafter(np.float32([-1 / 3, 1.1]), np.float32(0))
    assert runner.action_low.tolist() == [-1.0, below]
    assert runner.action_high.tolist() == [above, 2.0]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"mode": "ensemble"}, "mode='ensemble'"),
        ({"mode": RecedingHorizon}, "RecedingHorizon\\(2\\)"),
        ({"fallback": Hold}, "such as Hold\\(\\)"),
        ({"limits": {"velocity": 1.0}}, "such as Limits"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_a_wrong_setting_is_refused(
    settings: dict[str, Any], word: str, bundle_of: BundleOf, tmp_path: Path
) -> None:
    with pytest.raises(TrimtabError, match=word):
        load_policy(bundle_of("flow"), log=tmp_path / "log", **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("setting", [{"fallback": Hold()}, {"apart": True}])
def test_settings_of_a_robot_are_not_taken_for_those_of_a_policy(
    setting: dict[str, Any], bundle_of: BundleOf
) -> None:
    with pytest.raises(TrimtabError, match="by trimtab.policies.runtime.load_policy"):
        trimtab.load_policy(bundle_of("flow"), **setting)


@pytest.mark.parametrize("count", [1, 3, 64])
def test_onnxruntime_equals_torch(
    case: str, count: int, bundle_of: BundleOf, policy_of: Callable[[str], Policy], rows: Any
) -> None:
    policy = policy_of(case).eval()
    obs, noise = rows(policy, count)
    with torch.no_grad():
        expected = policy(torch.from_numpy(obs), torch.from_numpy(noise)).numpy()
    action = load_policy(bundle_of(case)).predict(obs, noise)
    assert action.shape == (count, 4, 2) and action.dtype == np.float32
    assert np.abs(action - expected).max() <= 1e-5
    assert expected.std() > 1e-2  # a constant would pass without testing anything


def test_judged_as_the_contract_says(
    case: str, bundle_of: BundleOf, policy_of: Callable[[str], Policy]
) -> None:
    runner = load_policy(bundle_of(case))
    assert runner.deterministic is policy_of(case).evaluate_deterministic
    assert load_policy(bundle_of(case), deterministic=True).deterministic is True
    assert load_policy(bundle_of(case), deterministic=False).deterministic is False


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("act_steps", [1, 3, 4])
def test_chunks_are_played_as_brute_force_says(
    act_steps: int, deterministic: bool, copy_of: BundleOf, reseal: Any, rows: Any
) -> None:
    folder = copy_of("flow")
    reseal(folder, config={"chunking": {"horizon": 4, "act_steps": act_steps}})
    runner = load_policy(folder, seed=9, deterministic=deterministic)
    policy = load_bundle(folder).policy
    obs, _ = rows(policy, 24)
    draws = iter(philox(9, 40, 4, 2))
    for start, stop in ((0, 7), (7, 12), (12, 24)):  # three episodes, two end in mid-chunk
        runner.reset()
        for tick in range(start, stop):
            age = (tick - start) % act_steps
            if age == 0:
                noise = np.zeros((4, 2), np.float32) if deterministic else next(draws)
                chunk = runner.predict(obs[tick][None], noise[None])[0]
            assert np.array_equal(runner.step(obs[tick]), chunk[age]), tick


def test_seeds(bundle_of: BundleOf) -> None:
    obs = np.ones(6)
    runner = load_policy(bundle_of("flow"), seed=4)
    first = runner.step(obs)
    runner.reset()
    second = runner.step(obs)
    runner.reset(4)
    assert np.array_equal(runner.step(obs), first)
    assert not np.array_equal(first, second)
    assert np.array_equal(load_policy(bundle_of("flow"), seed=4).step(obs), first)
    assert not np.array_equal(load_policy(bundle_of("flow"), seed=5).step(obs), first)


@pytest.mark.parametrize(
    ("obs", "word"),
    [
        ([0, 0, float("nan"), 0, 0, 0], "index (2,)"),
        ([0, 0, 0, 0, 0, float("-inf")], "index (5,)"),
        ([0, 0, 0, 0, 0, 1e39], "index (5,)"),
        (np.zeros(5), "(5,)"),
        (np.zeros((1, 6)), "(1, 6)"),
        (np.zeros(0), "(0,)"),
        (0.0, "()"),
        (None, "fallback"),
        (["a"] * 6, "numbers"),
        (np.zeros(6, dtype=bool), "bool"),
        (np.zeros(6, dtype=complex), "complex"),
        ([[0.0], [0.0, 1.0]], "no array"),
    ],
)
def test_a_bad_observation_raises_before_an_action(
    obs: Any, word: str, bundle_of: BundleOf
) -> None:
    runner, twin = (load_policy(bundle_of("flow"), seed=2) for _ in range(2))
    good = np.linspace(-1, 1, 6)
    for _ in range(5):  # act_steps is 3: before a prediction, and while actions are still queued
        with pytest.raises(TrimtabError) as caught:
            runner.step(obs)
        assert word in str(caught.value) and "\n" not in str(caught.value)
        # What was refused has moved neither the noise nor the queue.
        assert np.array_equal(runner.step(good), twin.step(good))


def test_integers_and_doubles_are_numbers(bundle_of: BundleOf) -> None:
    runner = load_policy(bundle_of("gaussian"))
    actions = []
    for dtype in (np.float32, np.float64, np.float16, np.int64, np.uint8):
        runner.reset()
        actions.append(runner.step(np.arange(6).astype(dtype)))
    assert all(np.array_equal(action, actions[0]) for action in actions)


def _graph(operator: str) -> tuple[Contract, bytes]:
    """Return a model whose action is ``operator`` of observation and noise, and its contract."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        for name, shape in (("obs", [1]), ("noise", [1]), ("action", [1, 1]))
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [2])
    nodes = [
        helper.make_node(operator, ["obs", "noise"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "axes"], ["action"]),
    ]
    graph = helper.make_graph(nodes, "policy", ports[:2], ports[2:], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return Contract(1, 1, 1, 1, (1,), (-1.0,), (1.0,), None, True), model.SerializeToString()


def test_an_action_that_is_not_finite_raises() -> None:
    runner = PolicyRunner(*_graph("Div"), "here")
    for obs in (0.0, 1.0):  # 0/0 is NaN, 1/0 is infinite
        with pytest.raises(TrimtabError, match="not finite; stop the robot"):
            runner.step([obs])
    assert runner.predict([[3.0]], [[6.0]]).item() == 0.5


def test_actions_are_inside_the_limits() -> None:
    runner = PolicyRunner(*_graph("Add"), "here")
    assert [runner.step([value]).item() for value in (5.0, 0.25, -5.0)] == [1.0, 0.25, -1.0]


def test_a_masked_value_is_a_missing_sensor() -> None:
    runner = PolicyRunner(*_graph("Add"), "here")
    missing = np.ma.masked_array([0.25], mask=[True])
    with pytest.raises(TrimtabError, match=r"^observation: value at index \(0,\) is masked"):
        runner.step(missing)
    for rows in (np.ma.masked_array([[0.5], [0.25]], mask=[[False], [True]]), [[0.5], missing]):
        with pytest.raises(TrimtabError, match=r"index \(1, 0\) is masked; check that sensor"):
            runner.predict(rows, np.zeros((2, 1)))
    for whole in (np.ma.masked_array([0.25]), np.ma.masked_array([0.25], mask=[False])):
        assert runner.step(whole).item() == 0.25
        assert type(runner.step(whole)) is np.ndarray


def test_a_graph_of_one_batch_size_is_refused() -> None:
    contract, data = _graph("Add")
    model = onnx.load_from_string(data)
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.dim[0].dim_value = 16
    runner = PolicyRunner(contract, model.SerializeToString(), "here")
    golden = {"obs": np.zeros((16, 1), "f"), "noise": np.zeros((16, 1), "f")}
    with pytest.raises(TrimtabError, match="onnxruntime failed"):
        runner.check({**golden, "action": np.zeros((16, 1, 1), "f")})


def test_a_graph_of_another_policy_is_refused(
    copy_of: BundleOf, bundle_of: BundleOf, reseal: Any
) -> None:
    folder = copy_of("gaussian")
    # The same shapes, so that only the golden rows can tell.
    reseal(folder, policy=(bundle_of("flow") / "policy.onnx").read_bytes())
    with pytest.raises(TrimtabError, match="do not replay with onnxruntime"):
        load_policy(folder)
    reseal(folder, policy=(bundle_of("ddpm") / "policy.onnx").read_bytes())
    with pytest.raises(TrimtabError, match="the contract says"):
        load_policy(folder)
    reseal(folder, policy=b"not a graph")
    with pytest.raises(TrimtabError, match=r"policy\.onnx: onnxruntime cannot open it"):
        load_policy(folder)


def test_reader_of_safetensors_agrees_with_the_library() -> None:
    tensors = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.zeros((4, 0), np.float32),
        "long name": np.array(2.5, np.float32),
    }
    data = safetensors.numpy.save(tensors, metadata={"note": "x"})
    read = read_safetensors(data, "here")
    assert read.keys() == tensors.keys()
    for name, value in tensors.items():
        assert np.array_equal(read[name], value) and read[name].shape == value.shape


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b'{"a": 3}',
        b'{"a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}',
        b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]}}',
        b'{"a": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [9223372036854775808],'
        b' "data_offsets": [0, 36893488147419103232]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
        b' "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"a": {"shape": [2], "data_offsets": [0, 8]}}',
    ],
)
def test_reader_of_safetensors_is_strict(header: bytes) -> None:
    data = len(header).to_bytes(8, "little") + header + bytes(8)
    with pytest.raises(TrimtabError, match="here: is not a readable safetensors file"):
        read_safetensors(data, "here")
    for short in (b"", data[:5], data[: len(header)], b"\xff" * 8 + data[8:]):
        with pytest.raises(TrimtabError):
            read_safetensors(short, "here")


def _distributions(name: str, found: set[str]) -> set[str]:
    """Return the installed distributions that ``name`` needs, itself among them."""
    if name not in found:
        found.add(name)
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                _distributions(requirement.name, found)
    return found


SCRIPT = """
import importlib, json, sys
sys.path[:0] = [sys.argv[1]]
for name in ("torch", "safetensors", "gymnasium", "hydra", "onnx", "diffusers", "h5py"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} is here")
from trimtab.policies.runtime import NO_LIMITS, load_policy
runner = load_policy(sys.argv[2], limits=NO_LIMITS, seed=3, deterministic=False)
actions = [runner.step([0.1 * tick] * runner.obs_dim).tolist() for tick in range(5)]
assert "torch" not in sys.modules
print(json.dumps(actions))
"""


def test_needs_numpy_and_onnxruntime_alone(tmp_path: Path, bundle_of: BundleOf) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name in _distributions("onnxruntime", {"numpy"}):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    source = Path(trimtab.__file__).parent
    only_code = shutil.ignore_patterns("results", "__pycache__")
    shutil.copytree(source, site / "trimtab", ignore=only_code)

    folder = bundle_of("latent")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SCRIPT, str(site), str(folder)],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""

    policy, noise = load_bundle(folder).policy, torch.from_numpy(philox(3, 2, 4, 2))
    expected = []
    for prediction, ticks in enumerate((range(0, 3), range(3, 5))):
        obs = torch.full((1, 6), 0.1 * ticks[0])
        with torch.no_grad():
            expected += policy(obs, noise[prediction][None])[0, : len(ticks)].tolist()
    assert np.abs(np.array(json.loads(done.stdout)) - np.array(expected)).max() <= 1e-5


@pytest.mark.parametrize(("rate", "level"), [(1e-3, "ok"), (None, "note"), (1e6, "error")])
def test_a_slow_decision_is_told_with_what_helps_it(
    rate: float | None, level: str, copy_of: BundleOf,
    reseal: Callable[..., None],
) -> None:  # fmt: skip
    for kind, sampled in (("flow", True), ("gaussian", False)):
        folder = copy_of(kind)
        reseal(folder, config={"control_rate": rate})
        found = examine_robot(folder)[-1]
        assert (found.what, found.level) == ("latency", level)
        assert ("apart=True" in found.message) == (level == "error")
        assert ("sampling_steps" in found.message) == (level == "error" and sampled)
