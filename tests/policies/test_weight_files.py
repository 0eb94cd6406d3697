"""Weight files of other libraries act as a numpy formula of theirs; what is missing is refused."""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module
from omegaconf import OmegaConf

from trimtab.errors import TrimtabError
from trimtab.policies.imports.actors import GYMNASIUM, Unsaid
from trimtab.policies.imports.libraries import BRAX, RL_GAMES, RSL_RL, SKRL
from trimtab.policies.imports.torch_archive import TensorArchive
from trimtab.policies.imports.weights import read_actor
from trimtab.types import PolicySpec

files = load_module(Path(__file__).with_name("weight_files.py"))
CASES = files.CASES


def spec_of(case: Any) -> PolicySpec:
    return PolicySpec(files.OBS, 1, files.ACTIONS, (case.low,) * 2, (case.high,) * 2)


def unsaid_of(said: Any, folder: Path) -> Unsaid:
    if said.get("statistics", "").endswith(".npz"):
        said = said | {"statistics": str(files.statistics(folder / said["statistics"]))}
    return Unsaid(**said)


def refused(path: Path, **said: str) -> str:
    with pytest.raises(TrimtabError) as error:
        read_actor(path, Unsaid(**said))
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("example", CASES)
def test_acts_as_the_formula_says(example: str, tmp_path: Path) -> None:
    case = CASES[example]
    path = case.write(tmp_path / "model.pt")
    actor, library = read_actor(path, unsaid_of(case.said, tmp_path))
    assert example.startswith(library)
    policy = actor.policy(spec_of(case))
    # One entry varies little, so that scaled ones reach the clips.
    obs = files.MEAN + np.random.default_rng(0).normal(size=(200, files.OBS)) * [0.1, 1, 2, 1]
    obs = obs.astype(np.float32)
    ours = policy.act(torch.from_numpy(obs), deterministic=True)[:, 0].numpy()
    np.testing.assert_allclose(ours, case.act(obs.astype(np.float64)), atol=2e-5)
    assert np.ptp(ours, axis=0).min() > 0.1
    assert policy.kind == case.kind
    if case.kind == "diagonal_gaussian":
        np.testing.assert_allclose(policy.log_std.exp()[0].detach(), files.STD, rtol=1e-6)


def test_five_formulas_of_one_observation() -> None:
    mean, std, x = np.zeros(1), np.full(1, 1e-2), 0.1
    found = []
    for formula in (RSL_RL, RL_GAMES, SKRL, GYMNASIUM, BRAX):
        scaler = formula.scaler(mean, std)
        value = ((x - scaler.shift) / scaler.scale).item()
        found.append(
            value if scaler.limit is None else float(np.clip(value, -scaler.limit, scaler.limit))
        )
    np.testing.assert_allclose(found, [5.0, 5.0, 5.0, 9.9995, 10.0], atol=5e-5)


@pytest.mark.parametrize(
    ("example", "changes", "words"),
    [
        ("rsl_rl 5", {"activation": None}, "activation: elu"),
        ("rl_games", {"activation": None}, "activation: elu"),
        ("skrl", {"output": None}, "output: tanh"),
        ("CleanRL PPO", {"statistics": None}, "statistics of its NormalizeObservation"),
        ("CleanRL PPO", {"statistics": "file"}, "save obs_rms"),
        ("Brax, protocol 4", {"statistics": None}, "statistics: none"),
        ("rsl_rl 5", {"statistics": "x.npz"}, "take statistics: x.npz out of the contract"),
        ("robomimic", {"output": "tanh"}, "take output: tanh out of the contract"),
        ("robomimic", {"output": "none"}, "gives a tanh; take output: none out"),
        ("skrl", {"statistics": None}, "statistics: file (skrl 1) or statistics: none (skrl 2)"),
        ("CleanRL TD3", {"statistics": "file"}, "has no statistics of observations"),
        ("Brax, protocol 4", {"activation": "gelu"}, "approximation by a tanh"),
    ],
)
def test_what_is_not_said_or_said_in_vain_is_refused(
    example: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    said = {key: value for key, value in {**CASES[example].said, **changes}.items() if value}
    assert words in refused(CASES[example].write(tmp_path / "model.pt"), **said)


def test_statistics_that_are_not_there_are_not_called_damaged(tmp_path: Path) -> None:
    path, said = CASES["CleanRL PPO"].write(tmp_path / "model.pt"), CASES["CleanRL PPO"].said
    missing = Unsaid(**{**said, "statistics": str(tmp_path / "none.npz")})
    with pytest.raises(TrimtabError, match=r"none.npz: cannot be read \(No such file"):
        read_actor(path, missing)


def without(example: str, *place: str, **changes: Any) -> Any:
    """A case's content with some entries of a dictionary in it changed."""
    content = CASES[example].content
    if not place:
        return {**content, **changes}
    return {**content, place[0]: {**content[place[0]], **changes}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"weights": {"a": 1}, "step": 2}, "it holds weights, step; in weights: a"),
        ([1, {"b": 2}], "a sequence of int, b"),
        (without("skrl", model=files.RL_GAMES), "as files of rl_games and skrl"),
        (
            without("rsl_rl 5", "actor_state_dict", **{"rnn.rnn.weight_ih_l0": torch.ones(3, 4)}),
            "rnn.rnn.weight_ih_l0",
        ),
        (
            {"actor_state_dict": files.named(["mlp.0"], files.LAYERS[:1])},
            "lacks distribution.std_param",
        ),
        (
            without("rl_games", "model", **{"a2c_network.mu.weight": torch.ones(2)}),
            "has shape (2,)",
        ),
        (without("robomimic", model=files.named(["policy.nets.rnn"], files.CRITIC[:1])), "ONNX"),
        (
            CASES["robomimic, two kinds of actions"].content | {"config": "{}"},
            "has no action_keys in its config",
        ),
        (
            CASES["robomimic, two kinds of actions"].content
            | {
                "config": '{"train": {"action_keys": ["b", "a"], "action_config": '
                '{"a": {"format": "rot_6d"}}}}'
            },
            "gives a rotation of six numbers, a",
        ),
        (without("robomimic", "shape_metadata", all_shapes={"image": [3, 84, 84]}), "pictures"),
        (
            without("rl_games", "model", **{"running_mean_std.running_var": -torch.ones(4)}),
            "deviation that is not above 0",
        ),
        (without("skrl", "policy", **{"policy_layer.bias": torch.full((2,), torch.nan)}), "finite"),
        (without("skrl", "state_preprocessor", running_mean=torch.ones(3)), "have 3 entries"),
    ],
)
def test_other_files_are_refused_by_what_they_hold(
    content: Any, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    torch.save(content, path)
    with pytest.raises(TrimtabError) as error:
        read_actor(path, Unsaid("elu", "none", "file"))[0].policy(spec_of(CASES["skrl"]))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_file_of_diffusion_policy_is_read_and_its_pickles_are_not(tmp_path: Path) -> None:
    mark = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    evil = pickle.dumps(Evil())
    network = {"model.down.0.weight": torch.arange(6.0).reshape(2, 3)}
    content = {
        "cfg": OmegaConf.create({"horizon": 16, "policy": {"_target_": "x", "steps": [1, 2]}}),
        "state_dicts": {"model": network, "ema_model": network, "optimizer": files.ADAM},
        "pickles": {"_output_dir": evil, "global_step": pickle.dumps(3)},
    }
    path = tmp_path / "latest.ckpt"
    torch.save(content, path)
    archive = TensorArchive(path.read_bytes(), "x")
    assert archive.content["pickles"]["_output_dir"] == evil
    inside = archive.within(archive.content["state_dicts"]["ema_model"])
    np.testing.assert_array_equal(inside["model.down.0.weight"], [[0, 1, 2], [3, 4, 5]])
    assert "DiffusionUnetLowdimPolicy is read, and no x" in refused(path) and not mark.exists()


def test_lerobot_and_other_formats_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "pi0"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"type": "pi0", "input_features": {"observation.state": {"type": "STATE", "shape": [2]}}}'
    )
    (folder / "model.safetensors").write_bytes(b"")
    assert "policy 'pi0' of LeRobot that reads observation.state" in refused(folder)
    for data, words in (
        (b"\x89HDF\r\n", "neither a file of torch nor a pickle"),
        (b"\x10\0\0\0\0\0\0\0{}", "neither"),
        (bytes.fromhex("80028a0a6cfc9c46f9206aa850192e") + b"...", "before 1.6"),
        (b"", "neither"),
    ):
        (tmp_path / "file").write_bytes(data)
        assert words in refused(tmp_path / "file")
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "file"))
    assert "TorchScript" in refused(tmp_path / "file")


def test_a_nested_file_is_read_with_every_kind_of_tensor(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    known: dict[str, tuple[torch.Tensor, Any]] = {
        "view": (base[1:3, ::2], [[6, 8, 10], [12, 14, 16]]),
        "turned": (base.T, np.arange(24.0).reshape(4, 6).T),
        "bf16": (
            torch.tensor([1.0, -2.5, 1.5 * 2.0**100], dtype=torch.bfloat16),
            [1, -2.5, 1.5 * 2.0**100],
        ),
        "bf16 number": (torch.tensor(-2.5, dtype=torch.bfloat16), -2.5),
        "half": (torch.tensor([0.5, -2.0]).half(), [0.5, -2]),
        "empty": (torch.zeros(0, 3), np.zeros((0, 3))),
        "number": (torch.tensor(2.5), 2.5),
        "truth": (torch.tensor([True, False]), [True, False]),
        "byte": (torch.tensor([7, 255], dtype=torch.uint8), [7, 255]),
        "whole": (torch.tensor([-3, 4], dtype=torch.int32), [-3, 4]),
        "parameter": (torch.nn.Parameter(torch.ones(2)), [1, 1]),
    }
    content = {
        "tensors": OrderedDict((name, tensor) for name, (tensor, _) in known.items()),
        "nested": [{"a": (1, 2.5, None, True)}, "text", b"bytes", {3: [], 2**40: -1}],
        "array": np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::-1],
        "fortran": np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]),
        "scalar": np.float64(3),
    }
    path = tmp_path / "file.pt"
    torch.save(content, path)
    archive = TensorArchive(path.read_bytes(), "file")
    inside = archive.within(archive.content["tensors"])
    assert list(inside) == list(known)
    for name, (_, value) in known.items():
        np.testing.assert_allclose(inside[name], value, rtol=1e-4, err_msg=name)
        assert inside[name].shape == np.shape(value)
    assert archive.content["nested"] == content["nested"]
    np.testing.assert_array_equal(archive["array"], content["array"])
    np.testing.assert_array_equal(archive["fortran"], content["fortran"])
    assert archive.content["scalar"].class_name == "numpy.core.multiarray scalar"


def test_a_tensor_that_is_meant_negated_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    torch.save({"a": torch.complex(torch.ones(2), torch.ones(2)).conj().imag}, path)
    assert (torch.load(path)["a"] == -1).all()  # of a storage that holds ones
    with pytest.raises(TrimtabError, match="meant in another way"):
        TensorArchive(path.read_bytes(), "file")


def test_an_unknown_name_is_refused_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "imported"
    (tmp_path / "never_seen.py").write_text(f"open({str(mark)!r}, 'w')\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    pickled = b"\x80\x02cnever_seen\nThing\nq\x00)R."
    pickle.loads(pickled)
    assert mark.exists()  # a pickle is imported where it is loaded
    mark.unlink()
    monkeypatch.delitem(sys.modules, "never_seen")
    (tmp_path / "file.pkl").write_bytes(pickled)
    assert "a call of 'never_seen.Thing'" in refused(tmp_path / "file.pkl")
    assert not mark.exists()


def test_a_compressed_zip_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 100_000_000)
    assert "compressed" in refused(tmp_path / "model.pt")


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02(" + b"(" * 1000 + b"t" * 1001 + b".",  # depth
        b"\x80\x02}(" + b"(" * 5000 + b"t" * 5000 + b"K\x01u.",  # a tuple as a key
        b"\x80\x02](" + b"h\x00e.",  # what was never kept
        b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
        b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00O8\x89\x88\x87R.",  # an array of objects
        b"\x80\x02X\xff\xff\xff\x7fabc.",  # a text of two gigabytes
    ],
)
def test_hostile_pickles_end_in_one_line(pickled: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.pkl").write_bytes(pickled)
    assert refused(tmp_path / "file.pkl")
