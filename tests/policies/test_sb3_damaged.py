"""Damaged and hostile files of Stable-Baselines3 are refused, and nothing in them is executed."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
from loading import load_module

from trimtab.policies.imports.sb3 import policy_from_sb3
from trimtab.types import TrimtabError

models = load_module(Path(__file__).with_name("sb3_models.py"))
CASES, KINDS, SPEC, Walk = models.CASES, models.KINDS, models.SPEC, models.Walk
Saved, save = models.Saved, models.save
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


def read(data: bytes, weights: bytes, folder: Path) -> str:
    """The error of reading a model, or nothing; any error but ours goes through."""
    path = folder / "model.zip"
    path.write_bytes(data)
    path.with_suffix(".safetensors").write_bytes(weights)
    try:
        policy_from_sb3(path, SPEC)
    except TrimtabError as error:
        assert "\n" not in str(error) and str(path.with_suffix("")) in str(error)
        return str(error)
    return ""


def files(saved: Saved, example: str) -> tuple[bytes, bytes]:
    path = saved(example)[1]
    return path.read_bytes(), path.with_suffix(".safetensors").read_bytes()


class Evil:
    """Pickles as a call."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_no_pickle_is_ever_decoded(saved: Saved, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    evil = pickle.dumps(Evil(mark))
    pickle.loads(evil)
    assert mark.exists()  # it would work
    mark.unlink()
    whole, weights = files(saved, "ppo_relu")
    outer = members(whole)
    data = json.loads(outer["data"])
    for entry in data.values():
        if isinstance(entry, dict) and ":serialized:" in entry:
            entry[":serialized:"] = base64.b64encode(evil).decode()
    for name in ("pytorch_variables.pth", "policy.optimizer.pth"):
        outer[name] = evil
    inner = members(outer["policy.pth"])
    (pickled,) = (name for name in inner if name.endswith("/data.pkl"))
    outer["policy.pth"] = zipped({**inner, pickled: evil})
    assert not read(zipped({**outer, "data": json.dumps(data).encode()}), weights, tmp_path)
    assert not mark.exists()


def test_weights_that_are_missing_or_another_models(saved: Saved, tmp_path: Path) -> None:
    whole, weights = files(saved, "td3")
    (tmp_path / "alone.zip").write_bytes(whole)
    with pytest.raises(TrimtabError, match="save_file.*alone.safetensors") as error:
        policy_from_sb3(tmp_path / "alone.zip", SPEC)
    assert "\n" not in str(error.value)
    changed = bytearray(weights)
    changed[-1] ^= 1  # a last bit
    for other in (bytes(changed), files(saved, "sac")[1]):
        assert "other weights" in read(whole, other, tmp_path)


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
    with pytest.raises(TrimtabError, match=words):
        policy_from_sb3(save(model, tmp_path / "saved"), SPEC)


@pytest.mark.parametrize("missing", ["data", "policy.pth"])
def test_a_zip_without_its_parts_is_refused(saved: Saved, tmp_path: Path, missing: str) -> None:
    whole, weights = files(saved, "sac")
    outer = members(whole)
    del outer[missing]
    assert missing in read(zipped(outer), weights, tmp_path)


def test_no_file_and_no_zip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="No such file"):
        policy_from_sb3(tmp_path / "nothing.zip", SPEC)
    with pytest.raises(TrimtabError):
        policy_from_sb3(tmp_path, SPEC)
    for data in (b"", b"PK", b"\x80\x02.", os.urandom(500)):
        assert read(data, b"", tmp_path)


def test_a_zip_that_says_that_it_is_huge_is_not_read(saved: Saved, tmp_path: Path) -> None:
    whole, weights = files(saved, "sac")
    data = bytearray(whole)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = len(archive.read("policy.pth"))
    at = data.rindex(b"PK\x01\x02", 0, data.rindex(b"policy.pth"))
    assert int.from_bytes(data[at + 24 : at + 28], "little") == size
    data[at + 24 : at + 28] = (2**31).to_bytes(4, "little")
    assert f"{2**31} bytes" in read(bytes(data), weights, tmp_path)


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


@pytest.mark.parametrize("example", KINDS)
def test_mutations_are_errors_or_read(saved: Saved, tmp_path: Path, example: str) -> None:
    """Of the whole file, of its JSON within a whole zip, and of the weights beside it."""
    chance = random.Random(example)
    data, weights = files(saved, example)
    outer = members(data)
    errors = 0
    for number in range(60):
        changed, beside = data, weights
        if number % 3 == 0:
            changed = mutated(data, chance)
        elif number % 3 == 1:
            changed = zipped({**outer, "data": mutated(outer["data"], chance)})
        else:
            beside = mutated(weights, chance)
        errors += bool(read(changed, beside, tmp_path))
    assert 20 < errors < 60
