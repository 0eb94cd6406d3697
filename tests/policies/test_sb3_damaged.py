"""Damaged and hostile files of Stable-Baselines3 are refused, and nothing in them is executed."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import pickletools
import random
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module

from trimtab.policies.imports.sb3 import policy_from_sb3
from trimtab.policies.imports.torch_archive import TensorArchive
from trimtab.types import TrimtabError

models = load_module(Path(__file__).with_name("sb3_models.py"))
CASES, KINDS, SPEC, Walk = models.CASES, models.KINDS, models.SPEC, models.Walk
Saved = models.Saved
saved = models.saved  # a fixture


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def with_weights(data: bytes, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """A model whose ``policy.pth`` has its files changed, and whose zips are whole."""
    outer = members(data)
    inner = members(outer["policy.pth"])
    change(inner)
    return zipped({**outer, "policy.pth": zipped(inner)})


def read(data: bytes, folder: Path) -> str:
    """The error of reading a model, or nothing; any error but ours goes through."""
    path = folder / "model.zip"
    path.write_bytes(data)
    try:
        policy_from_sb3(path, SPEC)
    except TrimtabError as error:
        assert "\n" not in str(error) and str(path) in str(error)
        return str(error)
    return ""


class Reduced:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments, state) if state is not None else (function, arguments)

    def __reduce__(self) -> Any:
        return self.parts


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("place", ["alone", "as a tensor", "as an attribute"])
def test_a_call_in_the_pickle_is_refused_and_not_executed(
    saved: Saved, tmp_path: Path, protocol: int, place: str
) -> None:
    mark = tmp_path / "executed"
    call = Reduced(os.system, f"touch {mark}")
    tensors: Any = OrderedDict()
    if place == "as a tensor":
        tensors["actor.mu.0.weight"] = call
    elif place == "as an attribute":
        tensors._metadata = call
    else:
        tensors = call
    evil = pickle.dumps(tensors, protocol)
    pickle.loads(evil)
    assert mark.exists()  # it would work
    mark.unlink()
    data = with_weights(
        saved("td3")[1].read_bytes(), lambda inner: inner.update({"archive/data.pkl": evil})
    )
    assert "nothing was executed: it holds" in read(data, tmp_path)
    assert not mark.exists()


def test_pickles_in_the_json_are_never_decoded(saved: Saved, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    evil = base64.b64encode(pickle.dumps(Reduced(os.system, f"touch {mark}"))).decode()
    outer = members(saved("ppo_relu")[1].read_bytes())
    data = json.loads(outer["data"])
    for entry in data.values():
        if isinstance(entry, dict) and ":serialized:" in entry:
            entry[":serialized:"] = evil
    for name in ("pytorch_variables.pth", "policy.optimizer.pth"):
        outer[name] = pickle.dumps(Reduced(os.system, f"touch {mark}"))
    assert not read(zipped({**outer, "data": json.dumps(data).encode()}), tmp_path)
    assert not mark.exists()


def pickled(storage: Any, *arguments: Any) -> bytes:
    """What torch would write for one tensor, with any numbers in it."""
    stream = io.BytesIO()

    class Writer(pickle._Pickler):  # the one in Python: it lets a reference be told apart
        def persistent_id(self, value: Any) -> Any:
            return value.parts[1] if isinstance(value, Reduced) and not value.parts[0] else None

    tensor = Reduced(torch._utils._rebuild_tensor_v2, Reduced(None, *storage), *arguments)
    Writer(stream, 2).dump(OrderedDict({"actor.mu.0.weight": tensor}))
    return stream.getvalue()


GOOD = ("storage", torch.FloatStorage, "0", "cpu", 48)
REST = (False, OrderedDict())


@pytest.mark.parametrize(
    ("storage", "arguments"),
    [
        (GOOD, (0, (13, 4), (4, 1), *REST)),
        (GOOD, (1, (12, 4), (4, 1), *REST)),
        (GOOD, (0, (12, 4), (5, 1), *REST)),
        (GOOD, (-1, (12, 4), (4, 1), *REST)),
        (GOOD, (0, (12, 4), (-4, 1), *REST)),
        (GOOD, (0, (12, 4), (4,), *REST)),
        (GOOD, (0, (2**40, 4), (0, 0), *REST)),
        (GOOD, (0, (12, "4"), (4, 1), *REST)),
        (GOOD, (0, (12, 4.0), (4, 1), *REST)),
        (GOOD, (0,)),
        ((*GOOD[:4], 1000), (0, (12, 4), (4, 1), *REST)),
        (("storage", torch.FloatStorage, "../data.pkl", "cpu", 48), (0, (12, 4), (4, 1), *REST)),
        (("storage", torch.BoolStorage, "0", "cpu", 48), (0, (12, 4), (4, 1), *REST)),
        (("module", torch.FloatStorage, "0", "cpu", 48), (0, (12, 4), (4, 1), *REST)),
    ],
)
def test_impossible_tensors_are_refused(saved: Saved, storage: Any, arguments: Any) -> None:
    inner = members(members(saved("td3")[1].read_bytes())["policy.pth"])
    inner["archive/data.pkl"] = pickled(storage, *arguments)
    with pytest.raises(TrimtabError):
        TensorArchive(zipped(inner), "x")["actor.mu.0.weight"]


def test_the_impossible_ones_differ_from_a_possible_one(saved: Saved) -> None:
    inner = members(members(saved("td3")[1].read_bytes())["policy.pth"])
    inner["archive/data.pkl"] = pickled(GOOD, 0, (4, 12), (1, 4), *REST)
    weight = saved("td3")[0].policy.state_dict()["actor.mu.0.weight"].numpy()
    np.testing.assert_array_equal(TensorArchive(zipped(inner), "x")["actor.mu.0.weight"], weight.T)


def test_reads_every_instruction_that_torch_writes(saved: Saved) -> None:
    tensors = {
        "plain": torch.randn(3, 4),
        "turned": torch.randn(3, 4).T,
        "part": torch.randn(10, 6)[2:5, 1::2],
        "number": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "wide": torch.randn(300).double(),
        "whole": torch.arange(5),
        "half": torch.randn(70_000).half(),
    }
    stream = io.BytesIO()
    torch.save(OrderedDict(tensors), stream)
    archive = TensorArchive(stream.getvalue(), "file")
    assert set(archive) == set(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(archive[name], tensor.numpy(), err_msg=name)
        assert archive[name].dtype == tensor.numpy().dtype
    with pytest.raises(TrimtabError, match="tensor nothing"):
        archive["nothing"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("actor.mu.0.weight", float("nan"), "not finite"),
        ("actor.mu.2.bias", float("inf"), "not finite"),
    ],
)
def test_weights_that_are_not_finite_are_refused(
    tmp_path: Path, name: str, value: float, words: str
) -> None:
    kind, keywords = CASES["td3"]
    model = kind("MlpPolicy", Walk(), device="cpu", **keywords)
    model.policy.state_dict()[name].view(-1)[0] = value
    model.save(tmp_path / "saved")
    assert words in read((tmp_path / "saved.zip").read_bytes(), tmp_path)


@pytest.mark.parametrize("missing", ["data", "policy.pth"])
def test_a_zip_without_its_parts_is_refused(saved: Saved, tmp_path: Path, missing: str) -> None:
    outer = members(saved("sac")[1].read_bytes())
    del outer[missing]
    assert f"'{missing}'" in read(zipped(outer), tmp_path) or missing in read(
        zipped(outer), tmp_path
    )


def test_no_file_and_no_zip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="No such file"):
        policy_from_sb3(tmp_path / "nothing.zip", SPEC)
    with pytest.raises(TrimtabError):
        policy_from_sb3(tmp_path, SPEC)
    for data in (b"", b"PK", b"\x80\x02.", os.urandom(500)):
        assert read(data, tmp_path)


def test_a_zip_that_says_that_it_is_huge_is_not_read(saved: Saved, tmp_path: Path) -> None:
    data = bytearray(saved("sac")[1].read_bytes())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = len(archive.read("policy.pth"))
    at = data.rindex(b"PK\x01\x02", 0, data.rindex(b"policy.pth"))
    assert int.from_bytes(data[at + 24 : at + 28], "little") == size
    data[at + 24 : at + 28] = (2**31).to_bytes(4, "little")
    assert f"{2**31} bytes" in read(bytes(data), tmp_path)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Bytes with some of them changed, cut out, doubled, or all after them lost."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(changed))
        match chance.randrange(5):
            case 0 | 1:
                changed[at] = chance.randrange(256)
            case 2:
                del changed[at : at + chance.randrange(1, 20)]
            case 3:
                changed[at:at] = changed[at : at + chance.randrange(1, 20)]
            case 4:
                del changed[at:]
        if not changed:
            break
    return bytes(changed)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pickletools, on broken escapes
@pytest.mark.parametrize("example", KINDS)
def test_mutations_are_errors_or_read(saved: Saved, tmp_path: Path, example: str) -> None:
    """Two hundred: of the whole file, and, with whole zips around them, of its pickle and JSON."""
    chance = random.Random(example)
    data = saved(example)[1].read_bytes()
    outer = members(data)
    errors = 0
    for number in range(200):
        if number % 4 == 0:
            changed = mutated(data, chance)
        elif number % 4 == 1:
            changed = zipped({**outer, "data": mutated(outer["data"], chance)})
        else:
            changed = with_weights(
                data,
                lambda inner: inner.update(
                    {"archive/data.pkl": mutated(inner["archive/data.pkl"], chance)}
                ),
            )
        errors += bool(read(changed, tmp_path))
    assert 60 < errors < 200


def test_the_disassembler_is_all_that_touches_the_pickle(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("unpickled")

    path = saved("ppo")[1]
    for module, names in ((pickle, ("load", "loads", "Unpickler")), (torch, ("load",))):
        for name in names:
            monkeypatch.setattr(module, name, forbidden)
    assert pickletools.genops
    policy_from_sb3(path, SPEC)
