"""A generator of wrong words, files and plug-ins: what a stranger may give to each command.

A case follows from its number alone. It writes what it needs into a folder of its own, and gives
the words of a command that is carried out there. Many cases are wrong; some turn out to be right,
and are so small that they end in seconds.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from trimtab.benchmarks.cli.table import COMMANDS
from trimtab.benchmarks.training.settings.run_settings import RunSettings

__all__ = ["Material", "words_of"]

RUN = ["env=gym/InvertedPendulum-v5", "algorithm=sac", "algorithm.hidden=[8]", "eval_episodes=1"]
RUN += ["algorithm.warmup_steps=8", "algorithm.batch_size=8", "online_steps=12"]
CLONE = ["env=robotics/PointMaze-TwoRoutes-v0", "env_options.horizon=28", "algorithm=bc"]
CLONE += ["policy=flow", "policy.hidden=[8]", "offline_steps=2", "eval_episodes=1"]
CLONE += ["other_task=true", "algorithm.batch_size=8"]
VALUES = [
    *("", "abc", "null", "nan", "inf", "-inf", "-1", "0", "1.5", "1e30", "-1e30", "true", "[]"),
    *("[1,2]", "{a: 1}", "'", '"', "[", "}", "$", "${seed}", "${nope}", "~", "é", "٣", "0x1"),
    *("1_0", "a" * 5000, "..", "nowhere/else", "/dev/null", "/proc/1/nowhere", "=x", ",", "a,b"),
    *("a b", "(x)", "?", "???", "!x", "%s", "\\", "\t", "-", "--help", "@", "*", "&a", "|", "#"),
    *("[[1]]", "[null]", "[a", "'a", "a'b", "2147483648", "9" * 400, "1e-400", "None", "False"),
]
SPOILT_JSON = ("", "{", "[]", "null", "3", '"x"', "NaN", "{}", "[" * 3000, '{"a": 1e999}', "\0")
SPOILT_YAML = ("", "a: [", "- 1", "3", "a: 1", "&a [*a]", "a: &a {b: *a}", "? [a]: b", "\t- x")
SPOILT_YAML += (
    "!!python/object:os.x {}",
    "%YAML 9",
    "a: b: c",
    "{a: 1, a: 2}",
    "1: 2",
    "null",
    "\0",
)
SPOILT_SUITE = ("runs: 3", "runs: {a: {}}", "seeds: x\nruns: {a: {overrides: [algorithm=sca]}}")
SPOILT_SUITE += ("title: X\nseeds: [0]\nruns: {a: {overrides: [env=gym/Nope-v1]}}", "grid: []")
SPOILT_METHOD = ("algorithm: {_target_: os.getcwd}", "algorithm: {_target_: 3}", "algorithm: []")
SPOILT_METHOD += ("# @package _global_\nalgorithm: {_target_: pathlib.Path}", "algorithm: null")
SPOILT_METHOD += ("# @package _global_\nalgorithm: {_target_: no.Such, x: 1}", "online_steps: x")
LONG = frozenset(
    {"online_steps", "offline_steps", "eval_episodes", "episodes", "video_episodes", "pairs"}
)
"""Settings that make a right command long."""
SLOW = frozenset({"speed", "doctor", "bench", "check"})
"""Commands that take long where every word is right."""


@dataclass(frozen=True)
class Material:
    """Right input that cases spoil.

    Attributes:
        run: folder of a finished run.
        bundle: folder of an exported policy, with its graph.
        data: a dataset in each format that can be written, by the format's name.
    """

    run: Path
    bundle: Path
    data: Mapping[str, Path]


def words_of(number: int, place: Path, material: Material) -> list[str]:
    """Return the words of a case, and write what they name below ``place``."""
    draw = random.Random(number)
    kinds = list(_KINDS)
    kind = draw.choices(kinds, [_KINDS[one] for one in kinds])[0]
    return kind(draw, place, material)


def _value(draw: random.Random, name: str) -> str:
    plain = [value for value in VALUES if name not in LONG or not value.isdigit() or len(value) > 9]
    return draw.choice(plain)


def _misspelt(draw: random.Random, word: str) -> str:
    at = draw.randrange(len(word) or 1)
    return draw.choice((word[:at] + word[at + 1 :], word[:at] + "x" + word[at:], word.upper()))


def _of_a_command(draw: random.Random, place: Path, material: Material) -> list[str]:
    """Words of any command but train, with one or two of its settings wrong."""
    name = draw.choice([name for name, command in COMMANDS.items() if command.settings is not None])
    settings = COMMANDS[name].settings or {}
    right = {"policy": str(material.bundle), "run": str(material.run), "episodes": "1", "out": "o"}
    right |= {"runs": str(material.run), "from": str(material.data["minari"]), "to": "o/c.hdf5"}
    right |= {
        "what": "policy",
        "env": "gym/InvertedPendulum-v5",
        "path": str(material.data["d4rl"]),
    }
    right |= {"where": str(material.run)}
    words = {key: right[key] for key in settings if key in right and draw.random() < 0.6}
    for key in draw.sample(list(settings), min(draw.randint(1, 2), len(settings))):
        words[key] = _value(draw, key)
    listed = [f"{key}={value}" for key, value in words.items()]
    if name in SLOW:  # never all right
        listed.append(f"{_misspelt(draw, draw.choice(list(settings)))}=1")
    if draw.random() < 0.15:
        listed.append(draw.choice((draw.choice(listed), _value(draw, ""), "--nope", "-m")))
    return [name if draw.random() < 0.97 else _misspelt(draw, name), *listed]


def _of_a_run(draw: random.Random, place: Path, material: Material) -> list[str]:
    """Words of train, with one or two settings wrong, or a name that there is not."""
    words = [*(RUN if draw.random() < 0.5 else [*CLONE, f"dataset={material.data['minari']}"])]
    keys = [
        *vars(RunSettings()),
        "algorithm",
        "policy",
        "dataset",
        "env_options",
        "env_options.horizon",
    ]
    keys += ["algorithm.learning_rate", "algorithm.tau", "algorithm.hidden", "algorithm.batch_size"]
    keys += ["policy.hidden", "policy.sampling_steps", "algorithm._target_", "policy._target_"]
    keys += ["dataset.path", "env_options.reward", "hydra.run.dir", "nope", "algorithm.nope"]
    for key in draw.sample(keys, draw.randint(1, 2)):
        if draw.random() < 0.1:
            key = _misspelt(draw, key)
        words = [word for word in words if word.partition("=")[0] != key]
        words.append(draw.choice(("", "", "", "+", "++", "~")) + f"{key}={_value(draw, key)}")
    if draw.random() < 0.1:
        words.append(draw.choice(words))
    out = [] if any(word.lstrip("+~").startswith("out=") for word in words) else ["out=o"]
    return ["train", *words, *out]


def _spoil(draw: random.Random, path: Path) -> None:
    """Damage one file."""
    data = path.read_bytes()
    texts = SPOILT_YAML if path.suffix == ".yaml" else SPOILT_JSON
    way = draw.choice(
        ("cut", "flip", "flip", "text", "text", "gone", "folder", "loop", "pipe", "more")
    )
    path.unlink()
    match way:
        case "cut":
            path.write_bytes(data[: draw.randrange(len(data) or 1)])
        case "flip":
            changed = bytearray(data or b"x")
            for _ in range(draw.choice((1, 1, 8))):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            path.write_bytes(bytes(changed))
        case "text":
            path.write_text(draw.choice(texts))
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)
        case "pipe":
            os.mkfifo(path)
        case "more":
            path.write_bytes(data + data[:100] + b"\0junk")


def _spoilt(draw: random.Random, source: Path, target: Path) -> Path:
    """Return a copy of a file or a folder with one or two damaged files."""
    if source.is_file():
        target = target.with_suffix(source.suffix)
        shutil.copyfile(source, target)
        _spoil(draw, target)
        return target
    shutil.copytree(source, target)
    files = sorted(path for path in target.rglob("*") if path.is_file() and path.name != "run.lock")
    for path in draw.sample(files, min(draw.choice((1, 1, 2)), len(files))):
        _spoil(draw, path)
    return target


def _of_a_bundle(draw: random.Random, place: Path, material: Material) -> list[str]:
    bundle = _spoilt(draw, material.bundle, place / "bundle")
    backend = draw.choice(("torch", "onnx"))
    return draw.choice(
        (
            ["evaluate", f"policy={bundle}", "episodes=1", f"backend={backend}"],
            ["export", f"run={bundle}", "out=o"],
            ["train", *RUN[:1], "algorithm=frozen", f"base={bundle}", "eval_episodes=1", "out=o"],
        )
    )


def _of_a_run_folder(draw: random.Random, place: Path, material: Material) -> list[str]:
    run = _spoilt(draw, material.run, place / "runs/env/sac/0/seed0")
    return draw.choice(
        (
            ["evaluate", f"policy={run}", "episodes=1"],
            ["export", f"run={run}", "out=o"],
            ["leaderboard", "runs=runs", "out=o"],
            ["leaderboard", f"runs={run / 'episodes.parquet'}"],
            ["runs", "runs"],
            ["runs", "diff", str(run), str(material.run)],
            ["train", *RUN[:1], "algorithm=frozen", f"base={run}", "eval_episodes=1", "out=o"],
        )
    )


def _of_a_dataset(draw: random.Random, place: Path, material: Material) -> list[str]:
    data = _spoilt(draw, material.data[draw.choice(list(material.data))], place / "data")
    return draw.choice(
        (
            ["dataset", "info", f"path={data}"],
            ["dataset", "check", f"path={data}"],
            ["dataset", "convert", f"from={data}", "to=o/c.hdf5", "as=d4rl"],
            ["train", *CLONE, f"dataset={data}", "out=o"],
        )
    )


def _of_a_yaml(draw: random.Random, place: Path, material: Material) -> list[str]:
    file = place / draw.choice(("mine.yaml", "sac.yaml", "a b.yaml", "é.yaml"))
    if draw.random() < 0.5:
        file.write_text(draw.choice((*SPOILT_YAML, *SPOILT_SUITE)))
        return ["bench", f"suite=./{file.name}", "runs=o"]
    file.write_text(draw.choice((*SPOILT_YAML, *SPOILT_METHOD)))
    return ["train", *RUN[:1], f"algorithm=./{file.name}", "online_steps=12", "out=o"]


Kind = Callable[[random.Random, Path, Material], list[str]]
_KINDS: Mapping[Kind, float] = MappingProxyType(
    {
        _of_a_command: 3,
        _of_a_run: 4,
        _of_a_bundle: 2,
        _of_a_run_folder: 2,
        _of_a_dataset: 3,
        _of_a_yaml: 1.5,
    }
)
"""Kinds of cases, and how often there is one of each."""
