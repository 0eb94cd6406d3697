"""A policy of which only the graph is known: what it does, what it refuses, what is made of it."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import bundle_hash, check_bundle, load_bundle, save_bundle
from trimtab.policies.bundle.onnx_export import export_onnx
from trimtab.policies.bundle.withheld import withhold_weights
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.policies.kinds.constant_noise import ConstantNoisePolicy
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.policies.kinds.repeated_noise import RepeatedNoisePolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.opening import load_policy
from trimtab.types import PolicySpec, TrimtabError

SPEC = PolicySpec(3, 4, 2, (-1.0, -0.5), (1.0, 2.0))
WEIGHT = np.linspace(-1, 1, 24).reshape(3, 8).astype(np.float32)


def made_by_hand(version: int = 17) -> bytes:
    """The graph of ``tanh(obs W) + noise``, or of ``noise`` alone where its first sum is large.

    Its names are those that an exporter likes, and it has a branch.
    """

    def value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))

    branches = [
        helper.make_graph([helper.make_node("Identity", [told], ["chosen"])], told,
                          [], [value("chosen", "batch", 4, 2)])
        for told in ("noise", "add_7")
    ]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["obs", "weight"], ["linear"]),
        helper.make_node("Tanh", ["linear"], ["tanh"]),
        helper.make_node("Reshape", ["tanh", "val_6"], ["view"]),
        helper.make_node("Add", ["view", "noise"], ["add_7"]),
        helper.make_node("ReduceMax", ["noise"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "bound"], ["is_large"]),
        helper.make_node(
            "If", ["is_large"], ["action"], then_branch=branches[0], else_branch=branches[1]
        ),
    ]
    weights = [
        helper.make_tensor("weight", TensorProto.FLOAT, [3, 8], WEIGHT.flatten().tolist()),
        helper.make_tensor("val_6", TensorProto.INT64, [3], [-1, 4, 2]),
        helper.make_tensor("bound", TensorProto.FLOAT, [], [50.0]),
    ]
    graph = helper.make_graph(
        nodes, "by_hand", [value("obs", "batch", 3), value("noise", "batch", 4, 2)],
        [value("action", "batch", 4, 2)], weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def box(version: int = 17) -> BlackBoxPolicy:
    return BlackBoxPolicy.of(SPEC, (4, 2), made_by_hand(version))


def expected(obs: Tensor, noise: Tensor) -> Tensor:
    raw = torch.tanh(obs @ torch.from_numpy(WEIGHT)).reshape(-1, 4, 2) + noise
    return torch.maximum(torch.minimum(raw, torch.tensor([1.0, 2.0])), torch.tensor([-1.0, -0.5]))


def run(graph: bytes, obs: Tensor, noise: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    (action,) = session.run(["action"], {"obs": obs.numpy(), "noise": noise.numpy()})
    return torch.from_numpy(action)


def test_it_does_what_its_graph_does_within_the_limits() -> None:
    policy = box()
    obs, noise = torch.randn(7, 3), torch.randn(7, 4, 2)
    torch.testing.assert_close(policy(obs, noise), expected(obs, noise))
    torch.testing.assert_close(policy(obs, noise[:, :1].expand(-1, 4, -1)),
                               expected(obs, noise[:, :1].expand(-1, 4, -1)))  # fmt: skip
    assert not list(policy.parameters())
    # A copy, and one that is rebuilt, open the graph for themselves.
    rebuilt = BlackBoxPolicy(SPEC, (4, 2), len(made_by_hand()))
    rebuilt.load_state_dict(policy.state_dict())
    for other in (copy.deepcopy(policy), rebuilt):
        assert torch.equal(other(obs, noise), policy(obs, noise))


def test_it_opens_its_graph_again_where_that_has_changed() -> None:
    policy = box()
    obs, noise = torch.randn(5, 3), torch.randn(5, 4, 2)
    before = policy(obs, noise)
    model = onnx.load_from_string(made_by_hand())
    weight = np.frombuffer(
        np.array(model.graph.initializer[0].float_data, np.float32).tobytes(), np.float32
    )
    model.graph.initializer[0].float_data[:] = (-weight).tolist()
    other = model.SerializeToString()
    assert len(other) == len(made_by_hand())
    policy.load_state_dict(BlackBoxPolicy.of(SPEC, (4, 2), other).state_dict())
    assert not torch.equal(policy(obs, noise), before)


def test_a_policy_around_a_newer_graph_is_exported_with_its_operators() -> None:
    """Swish is an operator from version 24 on; the exporter writes older ones."""
    model = onnx.load_from_string(made_by_hand(24))
    next(node for node in model.graph.node if node.op_type == "Tanh").op_type = "Swish"
    policy = RepeatedNoisePolicy(BlackBoxPolicy.of(SPEC, (4, 2), model.SerializeToString()))
    obs = torch.randn(5, 3)
    noise = torch.zeros(5, *policy.noise_shape)
    torch.testing.assert_close(run(export_onnx(policy, {}), obs, noise), policy(obs, noise))


def test_no_gradient_passes_and_it_says_so() -> None:
    policy = box()
    noise = torch.randn(2, 4, 2, requires_grad=True)
    with pytest.raises(TrimtabError, match="a black box gives no gradients"):
        policy(torch.randn(2, 3), noise)
    with torch.no_grad():
        assert not policy(torch.randn(2, 3), noise).requires_grad


def test_a_graph_that_is_none_is_said_in_one_line() -> None:
    with pytest.raises(TrimtabError, match="black box: onnxruntime cannot open it"):
        BlackBoxPolicy.of(SPEC, (4, 2), b"no graph")


class Twice(Policy):
    """Asks its base twice and plays the middle."""

    def __init__(self, base: Policy) -> None:
        super().__init__(base.spec, base.noise_shape)
        self.base = base

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return the mean of two chunks."""
        first: Tensor = self.base(obs, noise)
        return (first + self.base(obs + 1, torch.tanh(first))) / 2


def fitted(policy: Policy) -> Policy:
    generator = torch.Generator().manual_seed(5)
    for weight in policy.parameters():
        weight.data = 0.3 * torch.randn(weight.shape, generator=generator)
    return policy.eval()


def steered(base: Policy) -> LatentPolicy:
    return LatentPolicy(fitted(TanhGaussianPolicy(latent_spec(base, 1.5), hidden=(8,))), base)


@pytest.mark.parametrize(
    "compose",
    [
        steered,
        ConstantNoisePolicy,
        lambda base: fitted(BestOfPolicy(base, candidates=3, hidden=(8,))),
        Twice,
    ],
    ids=["latent", "constant", "best of", "twice"],
)
def test_what_is_made_of_it_exports_as_one_graph(compose: Callable[[Policy], Policy]) -> None:
    torch.manual_seed(0)
    policy = compose(box())
    graph = export_onnx(policy, {"trimtab": "{}"})
    model = onnx.load_from_string(graph)
    onnx.checker.check_model(model)
    assert {one.domain for one in model.opset_import} == {""}
    assert sum(node.op_type == "If" for node in model.graph.node) in (1, 2)
    for rows in (1, 6):
        obs = torch.randn(rows, 3)
        noise = policy.sample_noise(rows)
        with torch.no_grad():
            torch.testing.assert_close(run(graph, obs, noise), policy(obs, noise))


def test_operators_of_another_version_are_converted_or_refused() -> None:
    obs, noise = torch.randn(4, 3), torch.randn(4, 1, 2)
    for version in (15, 20):
        policy = RepeatedNoisePolicy(box(version))
        torch.testing.assert_close(run(export_onnx(policy, {}), obs, noise), policy(obs, noise))


# Bundles.


@pytest.fixture(scope="module")
def withheld(bundle_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a flow policy without its weights."""
    return withhold_weights(bundle_of("flow"), tmp_path_factory.mktemp("withheld") / "bundle")


def test_a_bundle_without_weights_opens_as_a_black_box(
    withheld: Path, bundle_of: Callable[[str], Path]
) -> None:
    files = {path.name for path in withheld.iterdir()}
    assert files == {"config.json", "policy.onnx", "golden.safetensors", "README.md"}
    assert json.loads((withheld / "config.json").read_text())["policy"] == {"kind": "black_box"}
    whole, opened = load_bundle(bundle_of("flow")), load_bundle(withheld)
    policy = opened.policy
    assert isinstance(policy, BlackBoxPolicy) and policy.label == "black_box"
    assert (policy.spec, policy.noise_shape) == (whole.policy.spec, whole.policy.noise_shape)
    assert policy.evaluate_deterministic == whole.policy.evaluate_deterministic
    obs, noise = torch.randn(9, policy.spec.obs_dim), policy.sample_noise(9)
    with torch.no_grad():
        torch.testing.assert_close(policy(obs, noise), whole.policy(obs, noise))
    assert max(check_bundle(withheld).values()) < 1e-5
    assert bundle_hash(withheld) == bundle_hash(withheld) != bundle_hash(bundle_of("flow"))
    # On a robot it is a bundle like others.
    acted = load_policy(withheld).predict(obs.numpy(), noise.numpy())
    np.testing.assert_allclose(acted, policy(obs, noise).numpy(), atol=1e-6)


def test_the_range_of_observations_is_that_of_the_golden_rows(
    withheld: Path, bundle_of: Callable[[str], Path]
) -> None:
    box, whole = load_bundle(withheld).policy, load_bundle(bundle_of("flow")).policy
    found, true = box.normalizer, whole.normalizer
    # The golden rows are uniform in the fitted range, and 32 of them come near to its ends.
    assert ((found.obs_shift - true.obs_shift).abs() < 0.2 * true.obs_scale).all()
    assert (found.obs_scale <= 1.0001 * true.obs_scale).all()
    assert (found.obs_scale > 0.75 * true.obs_scale).all()


def test_what_is_made_of_it_is_a_bundle_again(
    withheld: Path, bundle_of: Callable[[str], Path], contract: dict[str, Any], tmp_path: Path
) -> None:
    base = load_bundle(withheld).policy
    policy = steered(base)
    folder = save_bundle(policy, tmp_path / "steered", contract=contract)
    assert max(check_bundle(folder).values()) < 1e-5
    opened = load_bundle(folder).policy
    whole = load_bundle(bundle_of("flow")).policy
    obs = torch.randn(4, base.spec.obs_dim)
    with torch.no_grad():
        acted = opened.act(obs, deterministic=True)
        assert torch.equal(acted, policy.act(obs, deterministic=True))
        latent = policy.actor.act(obs, deterministic=True)
        torch.testing.assert_close(acted, whole(obs, latent))


def test_a_graph_that_was_changed_is_refused(withheld: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(withheld, tmp_path / "copy"))
    data = (folder / "policy.onnx").read_bytes()
    (folder / "policy.onnx").write_bytes(data + b"x")
    with pytest.raises(TrimtabError, match=r"policy.onnx: was changed"):
        load_bundle(folder)
    (folder / "policy.onnx").unlink()
    with pytest.raises(TrimtabError, match="has no policy.onnx"):
        load_bundle(folder)


def test_what_cannot_be_withheld_is_said(
    withheld: Path, contract: dict[str, Any], policy_of: Callable[[str], Policy], tmp_path: Path
) -> None:
    with pytest.raises(TrimtabError, match=r"bundle .*: exists"):
        withhold_weights(withheld, withheld)
    plain = save_bundle(policy_of("flow"), tmp_path / "plain", contract=contract, onnx=False)
    with pytest.raises(TrimtabError, match="has no policy.onnx; make a complete one"):
        withhold_weights(plain, tmp_path / "out")
