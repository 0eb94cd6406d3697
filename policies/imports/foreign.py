"""Make a bundle of an ONNX file of others and a contract that says what its numbers mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from trimtab.errors import TrimtabError
from trimtab.files import resolved, sha256_file
from trimtab.observations import FLAT, Part
from trimtab.policies.bundle.bundle import check_target, make_config
from trimtab.policies.bundle.files import UNTOLD, Contract
from trimtab.policies.bundle.golden import golden_rows
from trimtab.policies.bundle.onnx_policy import OnnxPolicy
from trimtab.policies.bundle.withheld import write_black_box
from trimtab.policies.defaults import torch_defaults
from trimtab.policies.imports.contract import ForeignContract, read_contract
from trimtab.policies.imports.onnx_file import read_onnx
from trimtab.policies.imports.wrapping import Network, action_port, find_network, wrap
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.policies.memory import STATE
from trimtab.types import PolicySpec

__all__ = ["ForeignPolicy", "read_foreign", "write_foreign"]


@dataclass(frozen=True)
class ForeignPolicy:
    """A network of others and its contract, read and put together.

    Attributes:
        path: the ONNX file.
        contract: what its numbers mean.
        network: its tensors.
        graph: the graph of a bundle: the network, and around it what the contract says.
        state: length of what lasts from one decision to the next; 0 for nothing.
    """

    path: Path
    contract: ForeignContract
    network: Network
    graph: bytes
    state: int

    @property
    def obs_dim(self) -> int:
        """How many numbers the robot gives at each decision."""
        return sum(term.size for term in self.contract.observed)


def read_foreign(path: str | Path, contract: str | Path) -> ForeignPolicy:
    """Read an ONNX file and its contract. Nothing of either is carried out.

    Args:
        path: the ONNX file.
        contract: the YAML file.

    Raises:
        TrimtabError: if one of them cannot be read, they contradict each other, or it cannot be
            told what a tensor is.
    """
    where = str(path)
    model = read_onnx(path)
    said = read_contract(
        contract, lambda name, states: int(action_port(model, name, states, where).shape[-1])
    )
    network = find_network(model, said, where)
    graph, state = wrap(model, network, said)
    return ForeignPolicy(Path(path), said, network, graph, state)


@torch_defaults()
def write_foreign(
    foreign: ForeignPolicy, folder: str | Path, facts: Mapping[str, Any]
) -> dict[str, float]:
    """Write a bundle whose policy is a network of others: a black box without weights.

    Args:
        foreign: as :func:`read_foreign` returned it.
        folder: where the bundle goes; an older bundle there is replaced.
        facts: of its task: ``env``, and the limits ``low`` and ``high``, without which those of the
            contract are taken; what else ``save_bundle`` takes in its contract.

    Returns:
        The largest difference of the golden rows, by backend.

    Raises:
        TrimtabError: if a limit is missing, or the bundle cannot be written or does not replay.
    """
    folder = resolved(folder)
    check_target(folder)
    contract, network = foreign.contract, foreign.network
    given = dict(facts)
    low, high = (tuple(given.pop(end, ())) or getattr(contract, end) for end in ("low", "high"))
    if not low:
        raise TrimtabError(
            f"{contract.where}: action: has no low and high; a robot is sent nothing beyond them, "
            "so give the limits of your joints"
        )
    parts: dict[str, Part] = {}
    if foreign.state:
        parts = {
            FLAT: Part((foreign.obs_dim,)), STATE: Part((foreign.state,), given=0, remembered=STATE)
        }  # fmt: skip
    spec = PolicySpec(
        foreign.obs_dim + foreign.state, network.horizon, network.actions, low, high, parts
    )
    policy = BlackBoxPolicy.of(spec, network.noise_shape, foreign.graph)
    policy.normalizer.take_range(_usual(foreign))
    policy.evaluate_deterministic = network.noise is None
    golden = golden_rows(policy)
    config = make_config(policy, {**_described(foreign), **given})
    where = f"bundle {folder}"
    parsed = Contract.parse(config, where)
    errors = OnnxPolicy(parsed, foreign.graph, where).check(
        {name: rows.numpy() for name, rows in golden.items()}
    )
    write_black_box(config, foreign.graph, safetensors.torch.save(golden), folder)
    return {"onnx": errors}


def _usual(foreign: ForeignPolicy) -> Any:
    """Return the ends of what the robot usually gives, as two observations."""
    terms = foreign.contract.observed
    rows = torch.tensor(
        [[x for term in terms for x in term.low], [x for term in terms for x in term.high]]
    )
    if not foreign.state:
        return rows
    ends = torch.tensor([[-1.0], [1.0]])
    return {FLAT: rows, STATE: ends.repeat(1, foreign.state)}


def _described(foreign: ForeignPolicy) -> dict[str, Any]:
    """Return what the contract of a bundle says of a foreign policy."""
    contract = foreign.contract
    terms = contract.observed
    units = [unit for term in terms for unit in term.units or ("",) * term.size]
    joints = {"names": contract.robot, "default": contract.pose, "scale": contract.scale,
              **contract.gains}  # fmt: skip
    found: dict[str, Any] = {
        "control_rate": contract.control_rate,
        "act_steps": contract.act_steps,
        "obs_names": [name for term in terms for name in term.names],
        "training": {
            "file": foreign.path.name,
            "file_sha256": sha256_file(foreign.path),
            "joints": {name: list(values) for name, values in joints.items()},
            "observed": {term.name: term.size for term in terms},
            "read_in_order": list(contract.order),
        },
    }
    said = {
        "obs_units": [unit or UNTOLD for unit in units] if any(units) else [],
        "action_names": list(contract.robot), "action_units": list(contract.units),
        "limits": dict(contract.limits),
    }  # fmt: skip
    return found | {name: value for name, value in said.items() if value}
