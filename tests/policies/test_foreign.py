"""ONNX files of others become bundles: orders, scales, histories, states, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_networks import contract, linear, port, recurrent, saved
from onnx import helper

from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.benchmarks.cli.main import run as command
from trimtab.benchmarks.training.base import load_base
from trimtab.benchmarks.training.judging import BundleJudge
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.bundle.workspace import Workspace
from trimtab.policies.opening import load_policy
from trimtab.policies.runtime import Limits, PolicyRunner

WIDE = {"low": -1e3, "high": 1e3}


def opened(network: Path, folder: Path, /, **entries: Any) -> PolicyRunner:
    """Return the runner of a network with a contract of these entries."""
    place = contract(folder / "contract.yaml", **entries)
    export_policy(str(network), str(folder / "bundle"), contract=str(place))
    return load_policy(folder / "bundle")


def test_the_four_conventions_of_history_give_four_known_vectors(tmp_path: Path) -> None:
    """Check 21: one stream; a network that gives back what it reads shows the vector."""
    network = linear(tmp_path / "identity.onnx", np.eye(9, dtype=np.float32))
    stream = [[11, 12, 13], [21, 22, 23], [31, 32, 33], [41, 42, 43]]  # a is two numbers, b is one
    known = {
        ("oldest_first", "terms"): [21, 22, 31, 32, 41, 42, 23, 33, 43],
        ("newest_first", "terms"): [41, 42, 31, 32, 21, 22, 43, 33, 23],
        ("oldest_first", "frames"): [21, 22, 23, 31, 32, 33, 41, 42, 43],
        ("newest_first", "frames"): [41, 42, 43, 31, 32, 33, 21, 22, 23],
    }
    for number, ((order, layout), vector) in enumerate(known.items()):
        fill = ("first", "zeros")[number % 2]
        folder = tmp_path / f"{order}{layout}"
        folder.mkdir()
        runner = opened(
            network, folder, action=WIDE,
            observation={
                "order": "listed",
                "terms": {"a": {"size": 2}, "b": {"size": 1}},
                "history": {"length": 3, "order": order, "layout": layout, "fill": fill},
            },
        )  # fmt: skip
        for _ in range(2):  # the second episode begins anew
            runner.reset()
            first = runner.step(np.array(stream[0]))
            before = stream[0] * 2 if fill == "first" else [0] * 6
            assert sorted(first) == sorted([*before, *stream[0]])
            for row in stream[1:]:
                last = runner.step(np.array(row))
            assert last.tolist() == vector, (order, layout)


def test_terms_are_offset_scaled_and_clipped_as_the_contract_says(tmp_path: Path) -> None:
    network = linear(tmp_path / "identity.onnx", np.eye(4, dtype=np.float32))
    runner = opened(
        network, tmp_path, action=WIDE,
        observation={
            "order": ["d", "a", "c", "b"],
            "terms": {
                "a": {"size": 1, "subtract": 1.0, "scale": 0.5},
                "b": {"size": 1, "scale": 0.5, "clip": 2.0, "clip_first": True},
                "c": {"size": 1, "scale": 0.5, "clip": [-1.5, 2.0], "clip_first": False},
                "d": {"size": 1},
            },
        },
    )  # fmt: skip
    assert runner.step(np.array([5.0, 3.0, 3.0, 7.0])).tolist() == [7.0, 2.0, 1.5, 1.0]
    assert runner.step(np.array([5.0, -9.0, -9.0, 7.0])).tolist() == [7.0, 2.0, -1.5, -1.0]


def permuted(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return a contract whose robot has its joints in another order than the network."""
    return {
        "joints": {"robot": ["hip", "knee", "foot"], "network": ["foot", "hip", "knee"], **changes},
        "observation": {
            "order": "sorted",
            "terms": {
                "q": {
                    "joints": True, "subtract": "default",
                    "scale": {"hip": 1, "knee": 2, "foot": 3},
                },
                "last": {"last_action": "raw"},
            },
        },
        "action": {
            "default": [0.1, 0.2, 0.3], "scale": [10, 20, 30], "clip": 0.5, **WIDE,
        },
    }  # fmt: skip


def test_permuted_joints_are_permuted_back(tmp_path: Path) -> None:
    """Check 19: the robot's order in, the robot's order out; the last action is the raw output."""
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(6, 3)).astype(np.float32)
    runner = opened(linear(tmp_path / "n.onnx", weight), tmp_path, **permuted(tmp_path))
    assert runner.obs_dim == 3  # what the policy remembers itself is not observed
    pose, scale = np.array([0.1, 0.2, 0.3]), np.array([10.0, 20.0, 30.0])
    order = [2, 0, 1]  # foot, hip, knee in the robot's list
    runner.reset()
    raw = np.zeros(3)
    for _ in range(4):
        q = generator.normal(size=3)
        # By hand: "last" comes before "q", and both are in the network's order.
        raw = np.concatenate([raw, ((q - pose) * [1, 2, 3])[order]]) @ weight
        target = np.empty(3)
        target[order] = np.clip(raw, -0.5, 0.5) * scale[order] + pose[order]
        np.testing.assert_allclose(runner.step(q), target, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "factor"), [("raw", [1, 1, 1]), ("clipped", [1, 1, 1]), ("scaled", [30, 10, 20])]
)
def test_the_last_action_is_raw_clipped_or_scaled(
    tmp_path: Path, kind: str, factor: list[float]
) -> None:
    weight = np.concatenate([3 * np.eye(3), np.eye(3)]).astype(np.float32)
    entries = permuted(tmp_path)
    entries["observation"]["terms"]["last"]["last_action"] = kind
    runner = opened(linear(tmp_path / "n.onnx", weight), tmp_path, **entries)
    pose, raw, order = np.array([0.1, 0.2, 0.3]), np.zeros(3), [2, 0, 1]
    for q in ([0.3, 0.1, 0.2], [0.0, 0.0, 0.0], [0.1, 0.1, 0.1]):
        last = raw if kind == "raw" else np.clip(raw, -0.5, 0.5) * factor
        raw = 3 * last + ((np.array(q) - pose) * [1, 2, 3])[order]
        target = np.empty(3)
        target[order] = np.clip(raw, -0.5, 0.5) * [30, 10, 20] + pose[order]
        np.testing.assert_allclose(runner.step(np.array(q)), target, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_state_lasts_until_the_reset(tmp_path: Path, kind: str) -> None:
    """Check 18: by hand, tick for tick; without the reset the second episode differs."""
    generator = np.random.default_rng(1)
    hidden, width, gates = 4, 3, 4 if kind == "LSTM" else 3
    weights = {
        name: generator.normal(size=shape).astype(np.float32)
        for name, shape in {
            "w": (1, gates * hidden, width), "r": (1, gates * hidden, hidden),
            "b": (1, 2 * gates * hidden), "out": (hidden, 2),
        }.items()
    }  # fmt: skip
    start = [0.1, -0.2, 0.3, -0.4]
    states: dict[str, Any] = {"h_in": {"next": "h_out", "initial": start}}
    states |= {"c_in": "c_out"} if kind == "LSTM" else {}
    network = recurrent(tmp_path / "n.onnx", kind, weights, hidden)
    runner = opened(
        network, tmp_path, action=WIDE, network={"action": "actions", "states": states},
        observation={"terms": {"o": {"size": width}}},
    )  # fmt: skip
    rows = generator.normal(size=(6, width)).astype(np.float32)
    expected = _by_hand(kind, weights, np.array(start), rows)
    for _ in range(2):
        runner.reset()
        played = [runner.step(row) for row in rows]
        np.testing.assert_allclose(played, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(runner.step(rows[0]) - expected[0]).max() > 1e-2  # not reset
    again = tmp_path / "again"
    source = str(tmp_path / "bundle")
    with pytest.raises(TrimtabError, match="no such setting|no setting"):
        export_policy(source, str(again), settings={"sampling_steps": 2})
    with pytest.raises(TrimtabError, match="no entry 'speed'"):
        export_policy(source, str(again), limits={"speed": 2.0})
    export_policy(source, str(again), limits={"velocity": 1e6})
    assert load_bundle(again).config["limits"] == {"velocity": 1e6}
    runner = load_policy(again)
    runner.reset(action=played[0])
    assert runner.step(rows[0]).tolist() == played[0].tolist()


def _by_hand(kind: str, weights: Any, start: Any, rows: Any) -> Any:
    """Return the outputs of a network of one layer, by ONNX's definitions of LSTM and GRU."""
    w, r, bias = weights["w"][0], weights["r"][0], weights["b"][0].reshape(2, -1)
    n, h, c = len(start), start, np.zeros(len(start))
    outputs = []
    for x in rows:
        if kind == "LSTM":  # input, output, forget, cell
            i, o, f, g = (w @ x + r @ h + bias.sum(0)).reshape(4, n)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
        else:  # update, reset, hidden
            a, b = (w @ x + bias[0]).reshape(3, n), (r @ h + bias[1]).reshape(3, n)
            z = _sigmoid(a[0] + b[0])
            h = z * h + (1 - z) * np.tanh(a[2] + _sigmoid(a[1] + b[1]) * b[2])
        outputs.append(h @ weights["out"])
    return np.array(outputs)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_a_clock_becomes_a_state_as_the_page_does_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dancing = saved(
        tmp_path / "dancing.onnx", [helper.make_node("Mul", ["obs", "time_step"], ["action"])],
        [port("obs", 1, 2), port("time_step", 1, 1)], [port("action", 1, 2)],
    )  # fmt: skip
    refused(dancing, tmp_path, "An input that is neither, such as a clock", **LINEAR)
    page = (root / "docs" / "foreign-policies.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python file=clock.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    clock = {"action": "action", "states": {"time_step": "next_time_step"}}
    runner = opened(tmp_path / "clocked.onnx", tmp_path, **LINEAR, network=clock)
    for _ in range(2):
        runner.reset()
        played = [runner.step(np.array([1.0, 2.0])).tolist() for _ in range(3)]
        assert played == [[0, 0], [1, 2], [2, 4]]


def test_a_policy_that_remembers_is_judged_alike_by_both_backends(tmp_path: Path) -> None:
    """Several episodes at once, each with its own last action; late answers as well."""
    generator = np.random.default_rng(2)
    weight = generator.normal(size=(5, 1)).astype(np.float32)
    place = contract(
        tmp_path / "contract.yaml", control_rate=25, task="gym/InvertedPendulum-v5",
        observation={
            "order": "listed", "terms": {"o": {"size": 4}, "last": {"last_action": "raw"}},
        },
    )  # fmt: skip
    network = linear(tmp_path / "n.onnx", weight, batch="rows", opset=17)
    export_policy(str(network), str(tmp_path / "bundle"), contract=str(place))
    bundle = load_base(str(tmp_path / "bundle"))
    judge = BundleJudge(bundle, "gym/InvertedPendulum-v5", {})
    on_torch, on_onnx = (
        judge.judge(episodes=3, seed=5, backend=backend, deterministic=True)
        for backend in ("torch", "onnx")
    )
    returns = [episode.return_ for episode in on_torch.episodes]
    assert returns == [episode.return_ for episode in on_onnx.episodes]
    timing = judge.timing("receding", 1, 80.0, 0.0, 0.0)
    late = judge.judge(episodes=3, seed=5, deterministic=True, timing=timing)
    assert returns != [episode.return_ for episode in late.episodes]
    # The first action of an episode knows no last one: an independent look at one episode.
    runner = load_policy(tmp_path / "bundle")
    raw = 0.0
    for row in generator.normal(size=(5, 4)).astype(np.float32):
        raw = float(np.append(row, raw) @ weight[:, 0])
        np.testing.assert_allclose(runner.step(row), np.clip([raw], -3, 3), rtol=1e-4)


def test_noise_and_chunks_of_a_foreign_network(tmp_path: Path) -> None:
    """A network of (obs, noise) that plans two actions: zero noise, and given noise."""
    nodes = [
        helper.make_node("Add", ["obs", "eps"], ["sum"]),
        helper.make_node("Unsqueeze", ["sum", "one"], ["first"]),
        helper.make_node("Neg", ["first"], ["second"]),
        helper.make_node("Concat", ["first", "second"], ["chunk"], axis=1),
    ]
    network = saved(
        tmp_path / "n.onnx", nodes, [port("obs", "b", 2), port("eps", "b", 2)],
        [port("chunk", "b", 2, 2)], {"one": np.array([1], np.int64)},
    )  # fmt: skip
    runner = opened(
        network, tmp_path, network={"observation": "obs", "noise": "eps"},
        action={**WIDE, "act_steps": 2}, observation={"terms": {"o": {"size": 2}}},
    )  # fmt: skip
    given = runner.predict(np.ones((3, 2)), np.full((3, 2), 0.5))
    assert given.tolist() == [[[1.5, 1.5], [-1.5, -1.5]]] * 3
    policy = load_bundle(tmp_path / "bundle").policy
    assert policy.act(np.ones((1, 2)), deterministic=True).tolist() == [[[1, 1], [-1, -1]]]


def test_an_old_operator_keeps_its_meaning(tmp_path: Path) -> None:
    """Up to version 12 Hardmax of axis 1 takes the largest of all that follows, and not of each."""
    nodes = [
        helper.make_node("Reshape", ["obs", "square"], ["rows"]),
        helper.make_node("Hardmax", ["rows"], ["largest"], axis=1),
        helper.make_node("Reshape", ["largest", "flat"], ["action"]),
    ]
    shapes = {"square": np.array([1, 2, 2], np.int64), "flat": np.array([1, 4], np.int64)}
    network = saved(
        tmp_path / "n.onnx", nodes, [port("obs", 1, 4)], [port("action", 1, 4)], shapes, opset=11
    )
    runner = opened(network, tmp_path, action=WIDE, observation={"terms": {"o": {"size": 4}}})
    assert runner.step(np.array([1.0, 2.0, 4.0, 3.0])).tolist() == [0, 0, 1, 0]


LINEAR = {"action": WIDE, "observation": {"terms": {"o": {"size": 2}}}}


def refused(network: Path, folder: Path, text: str, /, **entries: Any) -> None:
    """Check that a network with a contract is refused, in words that have ``text``."""
    with pytest.raises(TrimtabError, match=re.escape(text)):
        opened(network, folder, **entries)
    assert not (folder / "bundle").exists()


@pytest.mark.parametrize("location", ["../weights.bin", "/tmp/weights.bin", "link.bin"])
def test_weights_outside_of_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    """Check 41: by a path that leaves the folder, an absolute one, or a link."""
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(np.eye(2, dtype=np.float32).tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    path = linear(folder / "n.onnx", np.eye(2, dtype=np.float32))
    model = onnx.load(path)
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path.write_bytes(model.SerializeToString())
    refused(path, folder, "lie outside of its folder", **LINEAR)
    tensor.external_data[0].value = "beside.bin"
    path.write_bytes(model.SerializeToString())
    refused(path, folder, "are not beside it", **LINEAR)
    (folder / "beside.bin").write_bytes((tmp_path / "weights.bin").read_bytes())
    assert opened(path, folder, **LINEAR).step(np.array([1.0, 2.0])).tolist() == [1.0, 2.0]


def test_operators_of_others_and_unclaimed_tensors_are_refused(tmp_path: Path) -> None:
    own = saved(
        tmp_path / "own.onnx", [helper.make_node("Secret", ["obs"], ["action"], domain="com.acme")],
        [port("obs", 1, 2)], [port("action", 1, 2)], domain="com.acme",
    )  # fmt: skip
    refused(own, tmp_path, "operator com.acme::Secret", **LINEAR)
    weights = {
        "w": np.zeros((1, 12, 2), np.float32), "r": np.zeros((1, 12, 4), np.float32),
        "b": np.zeros((1, 24), np.float32), "out": np.zeros((4, 2), np.float32),
    }  # fmt: skip
    network = recurrent(tmp_path / "gru.onnx", "GRU", weights, 4)
    refused(
        network, tmp_path, "network.states: there is no output h_in",
        **LINEAR, network={"action": "actions", "states": {"h_in": "h_in"}},
    )  # fmt: skip
    refused(network, tmp_path, "which output is the action?", **LINEAR)
    refused(
        network, tmp_path, "network: {observation: obs, states: {h_in: h_out}}",
        **LINEAR, network={"action": "actions", "observation": "obs"},
    )  # fmt: skip
    refused(
        network, tmp_path, "network.states: there is no input h; its inputs are obs [1, 2]; h_in",
        **LINEAR, network={"action": "actions", "states": {"h": "h_out"}},
    )  # fmt: skip
    plain = linear(tmp_path / "n.onnx", np.eye(3, dtype=np.float32))
    refused(plain, tmp_path, "reads 3 numbers (obs [1, 3]), and the contract's terms", **LINEAR)
    (tmp_path / "text.onnx").write_text("not a network")
    refused(tmp_path / "text.onnx", tmp_path, "is no", **LINEAR)


def test_networks_whose_rows_or_numbers_cannot_be_told_are_refused(tmp_path: Path) -> None:
    """An open number of actions, four rows in every call, sparse weights, own random numbers."""
    split = [helper.make_node("Reshape", ["obs", "shape"], ["action"])]
    steps = saved(
        tmp_path / "steps.onnx", split, [port("obs", "b", 2)], [port("action", "b", "steps", 1)],
        {"shape": np.array([-1, 2, 1], np.int64)},
    )  # fmt: skip
    refused(steps, tmp_path, "does not say how many actions it plans", **LINEAR)
    rows = linear(tmp_path / "rows.onnx", np.eye(2, dtype=np.float32), batch=4)
    refused(rows, tmp_path, "has 4 rows in every call", **LINEAR)
    model = onnx.load(linear(tmp_path / "sparse.onnx", np.eye(2, dtype=np.float32)))
    values, places = np.ones(2, np.float32), np.array([0, 3])
    sparse = helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(values, "weight"),
        onnx.numpy_helper.from_array(places, "places"), [2, 2],
    )  # fmt: skip
    del model.graph.initializer[:]
    model.graph.sparse_initializer.append(sparse)
    onnx.save(model, tmp_path / "sparse.onnx")
    refused(tmp_path / "sparse.onnx", tmp_path, "has sparse weights", **LINEAR)
    drawn = [
        helper.make_node("RandomNormalLike", ["obs"], ["draw"]),
        helper.make_node("Add", ["obs", "draw"], ["action"]),
    ]
    path = saved(tmp_path / "random.onnx", drawn, [port("obs", 1, 2)], [port("action", 1, 2)])
    refused(path, tmp_path, "draws its own random numbers (RandomNormalLike)", **LINEAR)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "missing joint": ({"joints": {"robot": ["a", "b"], "network": ["a", "c"]}}, "lacks b"),
    "double joint": ({"joints": {"robot": ["a", "a"]}}, "'a' twice"),
    "fewer joints": ({"joints": {"robot": ["a"]}}, "has 1 names, and the network has 2"),
    "no limits": ({"action": {}}, "has no low and high"),
    "one limit": ({"action": {"low": -1}}, "one of low and high"),
    "crossed limits": ({"action": {"low": 1, "high": [2, 1]}}, "not below high 1 at 1"),
    "unknown entry": ({"actoin": {}}, "no entry 'actoin'; did you mean action?"),
    "no order": (
        {"observation": {"terms": {"o": {"size": 1}, "p": {"size": 1}}}}, "observation.order: is"
    ),
    "wrong order": (
        {"observation": {"order": ["o", "q"], "terms": {"o": {"size": 1}, "p": {"size": 1}}}},
        "the terms are o, p",
    ),
    "clip and scale": (
        {"observation": {"terms": {"o": {"size": 2, "clip": 5, "scale": 2}}}}, "clip_first: true"
    ),
    "no size": ({"observation": {"terms": {"o": {}}}}, "terms.o.size: is missing"),
    "gains": ({"gains": {"stiffness": 1, "damping": [1, -1]}}, "gains.damping: must be at least 0"),
    "limits": ({"limits": []}, "limits: must be a mapping"),
    "limit": ({"limits": {"velocity": math.inf}}, "yaml: limits: velocity=inf: give a finite"),
    "long limit": ({"limits": {"velocity": 10**400}}, "give a finite number"),
    "long rate": ({"control_rate": 10**400}, "control_rate: must be decisions a second"),
    "range": (
        {"observation": {"terms": {"o": {"size": 2, "range": [5, -5]}}}},
        "observation.terms.o.range: low 5 is not below high -5 at 0",
    ),
    "one state for two": (
        {"network": {"states": {"h": "next", "c": "next"}}},
        "network.states.c: next is the next value of h already",
    ),
    "infinite": ({"observation": {"terms": {"o": {"size": 2, "scale": math.inf}}}}, "finite"),
    "history": (
        {"observation": {"terms": {"o": {"size": 1}}, "history": {"length": 2}}},
        "history.order: is missing; write one of oldest_first, newest_first",
    ),
    "history of a term": (
        {"observation": {"terms": {"o": {"size": 1, "history": 2}}}},
        "history.order: is missing; write one of oldest_first, newest_first",
    ),
    "clip of the last action": (
        {"observation": {"order": "listed", "terms": {
            "o": {"size": 2}, "last": {"last_action": "clipped"},
        }}},
        "action.clip says no limits",
    ),
    "joints or not": (
        {"joints": {"robot": ["a", "b"], "network": ["b", "a"]}},
        "terms.o: has as many numbers as there are joints",
    ),
    "two units of one pose": (
        {
            "joints": {"robot": ["a", "b"]},
            "action": {**WIDE, "default": [0, 0.3], "units": "deg"},
            "observation": {
                "terms": {"q": {"joints": True, "subtract": "default", "units": "rad"}},
            },
        },
        "terms.q.subtract: the default pose of b is taken off in rad and added to an action in deg",
    ),
    "pose beyond the limits": (
        {"action": {"default": [0.5, 20], "low": -1, "high": 1}},
        "action.default: 20 of 1 is beyond action.high, 1; look at its unit",
    ),
    "pose beyond what the robot keeps": (
        {
            "joints": {"robot": ["a", "b"]},
            "action": {**WIDE, "default": [0, -0.5]},
            "limits": {"velocity": 1.0, "low": {"a": -1, "b": -0.25}},
        },
        "action.default: -0.5 of b is beyond limits.low, -0.25; look at its unit",
    ),
    "pose beyond a limit of all": (
        {"action": {**WIDE, "default": [0.3, 0]}, "limits": {"high": 0.25}},
        "action.default: 0.3 of 0 is beyond limits.high, 0.25",
    ),
    "rate": ({"control_rate": -1}, "control_rate"),
    "chunk": ({"action": {**WIDE, "act_steps": 2}}, "act_steps=2: the network gives 1"),
    "task": ({"task": "gym/InvertedPendulum-v5"}, "gym/InvertedPendulum-v5 has 4"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_a_contract_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, fault: str) -> None:
    changes, text = REFUSED[fault]
    network = linear(tmp_path / "n.onnx", np.eye(2, dtype=np.float32))
    refused(network, tmp_path, text, **{**LINEAR, **changes})


def test_no_tag_of_a_contract_is_carried_out(tmp_path: Path) -> None:
    """Check 20, of our own file: an unknown tag is refused, and what it names does not run."""
    network = linear(tmp_path / "n.onnx", np.eye(2, dtype=np.float32))
    place, trace = tmp_path / "contract.yaml", tmp_path / "trace"
    place.write_text(f"task: !!python/object/apply:os.mkdir ['{trace}']\n")
    with pytest.raises(TrimtabError, match="is no YAML"):
        export_policy(str(network), str(tmp_path / "bundle"), contract=str(place))
    assert not trace.exists()
    place.write_text("task: a\ncontrol_rate: 1\ncontrol_rate: 2\n")
    with pytest.raises(TrimtabError, match=r"is no YAML .line 3: found duplicate key control_rate"):
        export_policy(str(network), str(tmp_path / "bundle"), contract=str(place))


def test_an_export_that_leaves_limits_out_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = linear(tmp_path / "n.onnx", np.eye(2, dtype=np.float32))
    limits = {"velocity": 1.0, "acceleration": 5.0}
    opened(network, tmp_path, **LINEAR, limits=limits)
    bundle = str(tmp_path / "bundle")
    export_policy(bundle, str(tmp_path / "copy"), limits={"velocity": 0.5})
    opened(network, tmp_path, **LINEAR)  # over the bundle that had limits
    copied, replaced = (said for said in caplog.messages if "left out" in said)
    assert "copy: what the bundle before stated is left out: limits.acceleration; " in copied
    assert "left out: limits.acceleration, limits.velocity; " in replaced


def test_an_export_replaces_no_bundle_of_another_policy(tmp_path: Path) -> None:
    network = linear(tmp_path / "n.onnx", np.eye(2, dtype=np.float32))
    other = linear(tmp_path / "other.onnx", -np.eye(2, dtype=np.float32))
    opened(network, tmp_path, **LINEAR)
    bundle, place = tmp_path / "bundle", str(tmp_path / "contract.yaml")
    (bundle / "golden.safetensors").write_bytes(b"damaged")
    assert opened(network, tmp_path, **LINEAR, control_rate=9).control_rate == 9  # the same file
    before = (bundle / "config.json").read_bytes()
    export_policy(str(other), str(tmp_path / "other"), contract=place)
    for _ in range(2):
        export_policy(str(network), str(tmp_path / "packed"), contract=place, lerobot=True)
    again = "another bundle is there already; name a new folder, or remove that one"
    for source, out in ((other, bundle), (tmp_path / "other", bundle), (other, "packed")):
        told = place if source.suffix else ""
        with pytest.raises(TrimtabError, match=again):
            export_policy(str(source), str(tmp_path / out), contract=told, lerobot=out == "packed")
    assert (bundle / "config.json").read_bytes() == before
    for out, told in ((bundle / "rows", "lies within"), ("/proc/x", "cannot be written")):
        with pytest.raises(TrimtabError, match=f"evaluate: out={out}.* {told}"):
            command(["evaluate", f"policy={bundle}", f"out={out}"])
    (bundle / "config.json").write_text("{}")  # nothing says what it was
    with pytest.raises(TrimtabError, match=again):
        export_policy(str(network), str(bundle), contract=place)
    with pytest.raises(TrimtabError, match="lies within .*bundle, a bundle"):
        command(["calibrate", f"bundle={bundle}", "dataset=x", f"out={bundle / 'inner'}"])
    (tmp_path / "x.pt2").write_bytes(b"mine")
    with pytest.raises(TrimtabError, match=r"x\.pt2: is there already; name a new file"):
        export_policy(str(tmp_path / "other"), str(tmp_path / "x.pt2"))
    assert (tmp_path / "x.pt2").read_bytes() == b"mine"


def test_limits_of_commands_may_be_given_by_joint(tmp_path: Path) -> None:
    network = linear(tmp_path / "n.onnx", np.eye(2, dtype=np.float32))
    box = {"position": ["o.0"], "low": 0.1}
    limits = {"velocity": {"knee": 2, "hip": 1}, "workspace": box}
    by_joint = {"joints": {"robot": ["hip", "knee"]}, "limits": limits}
    runner = opened(network, tmp_path, **LINEAR, **by_joint, control_rate=10)
    assert runner.contract.limits == Limits(velocity=(1.0, 2.0), workspace=Workspace.parse(box))


def test_limits_that_a_task_has_may_be_written_down_too(tmp_path: Path) -> None:
    """The task has them in float32; others than the task's are refused."""
    network = linear(tmp_path / "n.onnx", np.zeros((4, 1), np.float32))
    entries: dict[str, Any] = {"observation": {"terms": {"o": {"size": 4}}}}
    entries |= {"task": "gym/InvertedPendulum-v5", "control_rate": 25.0000001}
    refused(network, tmp_path, "action.low", action={"low": -2, "high": 3}, **entries)
    runner = opened(network, tmp_path, action={"low": -3.0000001, "high": 3}, **entries)
    assert runner.action_low.tolist() == [-3.0]
