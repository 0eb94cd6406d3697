"""Mutate bundles and weight files, and open them under an audit hook.

    python tests/policies/fuzz_files.py <seed> <count> [<bundle>]

Every second file is a bundle; half of those have their hashes made right again. Weight files are
mutated as bytes, or in their pickle with a whole zip around it. Each must open, or end in one line
of ours; while it is opened nothing may be imported, compiled, executed, started or written.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import json
import lzma
import os
import pickle
import random
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from loading import load_module  # noqa: E402

from trimtab.errors import TrimtabError  # noqa: E402
from trimtab.policies.bundle.bundle import load_bundle, save_bundle  # noqa: E402
from trimtab.policies.bundle.files import CONFIG, GOLDEN, MODEL, ONNX, sealed  # noqa: E402
from trimtab.policies.imports.actors import Unsaid  # noqa: E402
from trimtab.policies.imports.weights import read_actor  # noqa: E402
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy  # noqa: E402
from trimtab.policies.opening import load_policy  # noqa: E402
from trimtab.policies.registry import policy_kinds  # noqa: E402
from trimtab.settings import check_settings  # noqa: E402
from trimtab.types import PolicySpec  # noqa: E402

weight_files = load_module(Path(__file__).with_name("weight_files.py"))
chunk_files = load_module(Path(__file__).with_name("chunk_files.py"))
hostile = load_module(Path(__file__).parent / "serving" / "hostile.py")
PACKERS = bz2, lzma, zlib
"""Loaded before the hook is there: a zip may say that it is packed by any of them."""
CODECS = (
    "utf-16-be",
    "utf-16-le",
    "utf-32-be",
    "utf-32-le",
    "utf-8-sig",
    "cp437",
    "latin-1",
    "ascii",
)
SPEC = PolicySpec(4, 1, 2, (-3.0, -3.0), (3.0, 3.0))
NAMES = (
    b"cos\nsystem\n", b"cbuiltins\neval\n", b"cbuiltins\n__import__\n", b"csubprocess\nPopen\n",
    b"ctorch\nload\n", b"cpickle\nloads\n", b"cbuiltins\ngetattr\n", b"cantigravity\nx\n",
)  # fmt: skip
CALL = b"X\x05\x00\x00\x00false\x85R"
VALUES = (
    None,
    True,
    -1,
    0,
    1 << 40,
    1e308,
    "",
    "flow",
    "os.system",
    [],
    {},
    [[]],
    {"kind": "flow"},
)


def weights() -> dict[str, bytes]:
    """Weight files of every layout, and one of Stable-Baselines3."""
    found = {}
    for name, case in weight_files.CASES.items():
        stream = io.BytesIO()
        torch.save(case.content, stream)
        found[name] = case.content if case.plain else stream.getvalue()
    layers = weight_files.named(["actor.mu.0", "actor.mu.2", "actor.mu.4"], weight_files.LAYERS)
    torch.save(layers, stream := io.BytesIO())
    found["Stable-Baselines3"] = zipped({"data": b"{}", "policy.pth": stream.getvalue()})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "latest.ckpt"
        chunk_files.diffusion_policy(path, pickled=pickle.dumps(Called()))
        found["Diffusion Policy"] = path.read_bytes()
    return found


class Called:
    """Pickles as a call, which no reader may carry out."""

    def __reduce__(self) -> Any:
        return os.system, ("false",)


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Bytes with some of them changed, cut out, doubled, replaced by a call, or lost at the end."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(6):
            case 0 | 1:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 2:
                del changed[at : at + draw.randrange(1, 20)]
            case 3:
                changed[at:at] = changed[at : at + draw.randrange(1, 20)]
            case 4:
                changed[at:at] = draw.choice(NAMES) + draw.choice((b"", CALL))
            case _:
                del changed[at + draw.randrange(200) :]
    return bytes(changed)


def mutated_weights(data: bytes, draw: random.Random) -> bytes:
    if data[:2] != b"PK" or draw.random() < 0.25:
        return mutated(data, draw)
    files = members(data)
    if "policy.pth" in files:
        return zipped({**files, "policy.pth": mutated_weights(files["policy.pth"], draw)})
    pickled = next(name for name in files if name.endswith("data.pkl"))
    name = pickled if draw.random() < 0.8 else draw.choice(list(files))
    return zipped({**files, name: mutated(files[name], draw)})


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value with one of its keys."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def mutated_bundle(files: dict[str, bytes], draw: random.Random) -> dict[str, bytes]:
    config = json.loads(files[CONFIG])
    changed = dict(files)
    name = draw.choice((CONFIG, CONFIG, MODEL, GOLDEN, ONNX))
    if name != CONFIG:
        changed[name] = mutated(files[name], draw)
    elif draw.random() < 0.3:
        return {**files, CONFIG: mutated(files[CONFIG], draw)}
    else:
        container, key = draw.choice(list(places(config)))
        container[key] = draw.choice(VALUES)
    if draw.random() < 0.5 and isinstance(config.get("files"), dict):
        config = sealed(config, {kept: changed[kept] for kept in (MODEL, GOLDEN, ONNX)})
    return {**changed, CONFIG: json.dumps(config).encode()}


def open_weights(path: Path) -> None:
    chunks = b"ema_model" in path.read_bytes()  # which says itself what others leave to a contract
    some = Unsaid("elu", "none", "file"), Unsaid("elu", "none", "none")
    for said in (Unsaid(),) if chunks else some:
        actor = read_actor(path, said)[0]
        obs = SPEC.obs_dim if actor.history == 1 else actor.obs_dim * actor.history
        read = {"obs_dim": obs, "horizon": actor.horizon, "history": actor.history}
        actor.policy(replace(SPEC, **read))


def open_bundle(folder: Path) -> None:
    try:
        load_bundle(folder)
    finally:  # one without torch reads other parts of it
        load_policy(folder)


def main(seed: int, count: int, bundle: str = "") -> None:
    """Fuzz both, and print what came of it."""
    warnings.simplefilter("ignore")  # of pickletools, on broken escapes
    torch.manual_seed(seed)
    draw, events, watching = random.Random(seed), list[str](), False
    outcomes: Counter[str] = Counter()

    def watch(event: str, arguments: Any) -> None:
        if watching and (
            event in hostile.FORBIDDEN
            or (event == "open" and arguments[1] not in ("r", "rb", None))
        ):
            events.append(f"{event} {arguments!r:.100}")

    def opened(kind: str, path: Path, look: Any) -> None:
        nonlocal watching
        watching = True
        try:
            look(path)
            outcome = "opened"
        except TrimtabError as error:
            outcome = "refused" if "\n" not in str(error) else f"two lines: {error!r:.200}"
        except Exception as error:
            outcome = f"escaped: {error!r:.200}"
        finally:
            watching = False
        outcomes[f"{kind} {outcome}"] += 1

    with tempfile.TemporaryDirectory() as scratch:
        folder, path = Path(scratch) / "bundle", Path(scratch) / "weights"
        if not bundle:
            save_bundle(
                TanhGaussianPolicy(SPEC, hidden=(8,)), Path(scratch) / "made",
                contract={"env": "x/y", "control_rate": 20.0, "act_steps": 1},
            )  # fmt: skip
        source = Path(bundle or Path(scratch) / "made")
        whole = {name: (source / name).read_bytes() for name in (CONFIG, MODEL, GOLDEN, ONNX)}
        files = weights()
        for codec in CODECS:
            "".encode(codec)
        open_bundle(source)  # what is imported at first use is there then
        for kind in policy_kinds().values():
            with contextlib.suppress(TrimtabError):  # it reads annotations, which are texts
                check_settings(kind, {}, "")
        for data in files.values():
            path.write_bytes(data)
            try:
                open_weights(path)
            except TrimtabError:
                continue
        sys.addaudithook(watch)
        for name, data in files.items():  # as they are, now under the hook
            path.write_bytes(data)
            opened(name, path, open_weights)
        whole_files = dict(sorted(outcomes.items()))
        outcomes.clear()
        folder.mkdir()
        for number in range(count):
            if number % 2:
                path.write_bytes(mutated_weights(draw.choice(list(files.values())), draw))
                opened("weight file", path, open_weights)
            else:
                for name, data in mutated_bundle(whole, draw).items():
                    (folder / name).write_bytes(data)
                opened("bundle", folder, open_bundle)
    found = {
        "outcomes": dict(sorted(outcomes.items())),
        "whole files": whole_files,
        "events": list(events),
    }
    opened("control", path, lambda _: pickle.loads(b"cbuiltins\nlen\n."))
    print(json.dumps({**found, "events of a control": events[len(found["events"]) :]}, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
