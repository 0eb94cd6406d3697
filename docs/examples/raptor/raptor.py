"""RAPTOR, a quadrotor's policy of others (Eschmann et al., 2025), as ONNX; and its flight in l2f.

    python raptor.py raptor.onnx  # the weights of the installed package foundation-policy
    trimtab export run=raptor.onnx out=raptor contract=raptor.yaml
    python raptor.py raptor       # the bundle flies

l2f is the simulator in which it was trained. Its package compiles for half an hour; eight
flights side by side are enough here and take a minute and a half:

    CPPFLAGS="-DDEBUG -w" pip install --no-deps l2f==2.0.18
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import h5py
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OBSERVED = tuple(range(18))
"""Entries of l2f's observation that the policy reads: position, rotation and velocities.

The action before stands behind them, and older ones behind that one.
"""


def checkpoint() -> dict[str, Any]:
    """Return what the package's file holds, by name; its code is not imported.

    Raises:
        FileNotFoundError: if the package has no such file.
    """
    files = metadata.files("foundation-policy") or []
    file = next((one for one in files if one.name == "checkpoint.h5"), None)
    if file is None:
        raise FileNotFoundError("foundation-policy: has no checkpoint.h5")
    found: dict[str, Any] = {}

    def keep(name: str, one: h5py.Group | h5py.Dataset) -> None:
        if isinstance(one, h5py.Dataset):
            found[name] = one[()]

    with h5py.File(str(file.locate())) as opened:
        opened.visititems(keep)
    return found


def network(told: dict[str, Any]) -> onnx.ModelProto:
    """Return the weights as ONNX: 22 -> 16 relu -> GRU 16 -> 4.

    Args:
        told: what the package's file holds.

    Raises:
        ValueError: if its GRU does not begin with a state of zeros.
    """

    def layer(number: int, name: str) -> Any:
        return told[f"actor/layers/{number}/{name}/parameters"].astype(np.float32)

    def gates(array: Any) -> Any:
        """Reorder reset, update, new, as the file has them, to ONNX's update, reset, new."""
        reset, update, new = np.split(array, 3)
        return np.concatenate([update, reset, new])

    if layer(1, "initial_hidden_state").any():
        raise ValueError("the GRU begins with a state that the contract does not name")
    weights = {
        "w0": layer(0, "weights"), "b0": layer(0, "biases")[0],
        "w": gates(layer(1, "weights_input"))[None], "r": gates(layer(1, "weights_hidden"))[None],
        "b": np.concatenate([gates(layer(1, f"biases_{n}")) for n in ("input", "hidden")])[None],
        "w2": layer(2, "weights"), "b2": layer(2, "biases")[0], "zero": np.array([0], np.int64),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gemm", ["obs", "w0", "b0"], ["dense"], transB=1),
        helper.make_node("Relu", ["dense"], ["relu"]),
        helper.make_node("Unsqueeze", ["relu", "zero"], ["steps"]),
        helper.make_node(
            "GRU", ["steps", "w", "r", "b", "", "h_in"], ["", "h_out"], hidden_size=16,
            linear_before_reset=1,
        ),
        helper.make_node("Squeeze", ["h_out", "zero"], ["last"]),
        helper.make_node("Gemm", ["last", "w2", "b2"], ["action"], transB=1),
    ]  # fmt: skip

    def port(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes, "raptor", [port("obs", 1, 22), port("h_in", 1, 1, 16)],
        [port("action", 1, 4), port("h_out", 1, 1, 16)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def fly(bundle: str, observed: Sequence[int] = OBSERVED, *, ticks: int = 500, seed: int = 0) -> Any:
    """Return the distances from the target at which eight flights end, in metres.

    All are of l2f's own quadrotor, a Crazyflie; what it calls its initial parameters are equal.
    Each flight has a runner of its own, which keeps the hidden state and the last action.

    Args:
        bundle: its folder.
        observed: which entries of l2f's observation it reads.
        ticks: of 10 ms.
        seed: of where the first one starts; the next one has the next seed.
    """
    import l2f
    from l2f import vector8 as vector

    from trimtab.policies.opening import load_policy

    device, draws, env = l2f.Device(), vector.VectorRng(), vector.VectorEnvironment()
    parameters = vector.VectorParameters()
    state, following = vector.VectorState(), vector.VectorState()
    vector.initialize_rng(device, draws, seed)
    vector.initialize_environment(device, env)
    vector.sample_initial_parameters(device, env, parameters, draws)
    vector.sample_initial_state(device, env, parameters, state, draws)
    runners = [load_policy(bundle) for _ in range(env.N_ENVIRONMENTS)]
    seen = np.zeros((env.N_ENVIRONMENTS, env.OBSERVATION_DIM), np.float32)
    for _ in range(ticks):
        vector.observe(device, env, parameters, state, seen, draws)
        rows = zip(runners, seen[:, list(observed)], strict=True)
        actions = np.array([runner.step(row) for runner, row in rows], np.float32)
        vector.step(device, env, parameters, state, np.clip(actions, -1, 1), following, draws)
        state.assign(following)
    return np.array([np.linalg.norm(one.position) for one in state.states])


if __name__ == "__main__":
    (given,) = sys.argv[1:]
    if given.endswith(".onnx"):
        onnx.save(network(checkpoint()), given)
    else:
        print(f"they end {np.array2string(fly(given), precision=3)} m from the target")
