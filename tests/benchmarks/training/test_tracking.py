"""Trackers are told what a run logs and finds, live, once, and change none of its numbers."""

from __future__ import annotations

import json
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train

Curves = dict[str, dict[int, float]]
STEPS = 280


def words_of(tiny: Any, out: Path) -> list[str]:
    words = [*tiny.online(out, "sac"), f"online_steps={STEPS}", "eval_every=70"]
    words += ["checkpoint_every=100", "eval_episodes=2"]
    return list({word.partition("=")[0]: word for word in words}.values())


def of_tensorboard(folder: Path) -> Curves:
    """Read event files: records with a length, its checksum, a protobuf and its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    curves: Curves = {}
    for file in sorted(folder.glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        data, place = file.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + length])
            place += length + 16
            if event.session_log.status == event.session_log.START and event.HasField(
                "session_log"
            ):
                for curve in curves.values():  # what TensorBoard does with a restart
                    for step in [step for step in curve if step >= event.step]:
                        del curve[step]
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    curve = curves.setdefault(value.tag, {})
                    found = value.simple_value  # the run's last line repeats how far it is
                    assert curve.get(event.step, found) == found or "seconds" in value.tag
                    curve[event.step] = found
    return curves


def records(data: bytes) -> Iterator[bytes]:
    """Read a log of LevelDB behind its 7 bytes of header: blocks of 32 kB, records in parts."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def of_wandb(folder: Path) -> Curves:
    from wandb.proto.wandb_internal_pb2 import Record

    curves: Curves = {}
    for file in sorted(folder.rglob("*.wandb")):
        for record in map(Record.FromString, records(file.read_bytes())):
            step = record.history.step.num
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                if not name.startswith("_"):
                    curves.setdefault(name, {})[step] = json.loads(item.value_json)
    return curves


def of_trackio(folder: Path) -> Curves:
    curves: Curves = {}
    (file,) = folder.glob("*.db")
    with sqlite3.connect(file) as database:
        for step, text in database.execute("select step, metrics from metrics order by id"):
            for name, value in json.loads(text).items():
                curves.setdefault(name, {})[step] = value
    return curves


def of_the_run(folder: Path) -> Curves:
    """Return the curves that the run's own files are to give; this run has no offline phase."""
    curves: Curves = {}
    progress = {"env_steps", "updates", "seconds", "episodes"}
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        for name, value in line.items():
            group = "progress" if name in progress else "train"
            curve = curves.setdefault(f"{group}/{name.removeprefix('train_')}", {})
            curve[line["env_steps"]] = value
    rows = read_episodes(folder / "episodes.parquet").to_pylist()
    for step in sorted({row["env_steps"] for row in rows}):
        here = [row for row in rows if row["env_steps"] == step]
        for name in ("return", "success"):
            mean = sum(float(row[name]) for row in here) / len(here)
            curves.setdefault(f"evaluation/{name}", {})[step] = mean
    return curves


def rounded(curves: Mapping[str, Mapping[int, float]]) -> Curves:
    """Round as an event file does, and leave out what a clock decides."""
    return {
        name: {step: struct.unpack("<f", struct.pack("<f", x))[0] for step, x in curve.items()}
        for name, curve in curves.items()
        if name != "progress/seconds"
    }


def outcome(folder: Path) -> tuple[Any, ...]:
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return (
        [{k: v for k, v in line.items() if k != "seconds"} for line in log],
        (folder / "policy" / "model.safetensors").read_bytes(),
    )


def test_every_tracker_has_the_run_s_own_numbers(
    tiny: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped_at: Callable[[int], Any],
) -> None:
    assert "trackio" not in sys.modules, "it reads TRACKIO_DIR when it is imported"
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", "/proc/nope")  # has no effect: it is the run's folder
    monkeypatch.setattr(loop, "LOG_EVERY", 5)
    words = [*words_of(tiny, tmp_path / "o"), "tracker=[tensorboard,wandb,trackio]"]
    with stopped_at(160):
        train(compose_run(words))
    (begun,) = (tmp_path / "o").rglob("provenance.json")
    assert max(of_tensorboard(begun.parent / "trackers" / "tensorboard")["train/return"]) > 100
    folder = train(compose_run(words)).folder  # goes on from the checkpoint at 100
    alone = train(compose_run(words_of(tiny, tmp_path / "alone"))).folder
    assert folder.parts[-3:] == alone.parts[-3:]  # the hash does not know of trackers
    assert outcome(folder) == outcome(alone)
    expected = rounded(of_the_run(folder))
    assert len(expected["evaluation/success"]) == 4 and len(expected["train/critic_loss"]) > 5
    trackers = folder / "trackers"
    assert rounded(of_tensorboard(trackers / "tensorboard")) == expected
    assert rounded(of_wandb(trackers / "wandb")) == expected
    assert rounded(of_trackio(tmp_path / "trackio")) == expected


def test_a_task_without_success_has_no_curve_of_it(tmp_path: Path) -> None:
    words = [
        "env=gym/InvertedPendulum-v5",
        "algorithm=sac",
        "online_steps=450",
        "tracker=tensorboard",
    ]
    words += ["algorithm.warmup_steps=440", "eval_episodes=1", "algorithm.hidden=[8]"]
    folder = train(compose_run([*words, f"out={tmp_path}"])).folder
    curves = of_tensorboard(folder / "trackers" / "tensorboard")
    assert "train/return" in curves and "evaluation/return" in curves
    assert not [name for name in curves if "success" in name]
    assert "success" not in (folder / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("tracker=tensorbord", "there is no such tracker; did you mean tensorboard?"),
        ("tracker=[wandb,wandb]", "wandb is named twice"),
        ("tracker=3", "must be text or a list, each text or null"),
        ("tracker=[]x", "tracker"),
        ("tracker=wandb,trackio", "one value with a comma"),
    ],
)
def test_a_wrong_tracker_is_one_line(
    word: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "env=gym/InvertedPendulum-v5",
        "algorithm=sac",
        "online_steps=6000",
        f"out={tmp_path}/o",
    ]
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, word])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and said in error and len(error.splitlines()) <= 3
    assert not (tmp_path / "o").exists()


def test_a_tracker_that_is_not_installed_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    words = [
        "env=gym/InvertedPendulum-v5",
        "algorithm=sac",
        "online_steps=6000",
        f"out={tmp_path}/o",
    ]
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "tracker=wandb"])
    assert ended.value.code == 2
    assert "pip install 'trimtab[wandb]'" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("variable", ["TRACKIO_DIR", "HF_HOME"])
def test_a_database_that_cannot_be_written_is_told_before_the_run(
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    monkeypatch.setenv(variable, "/proc/nope")
    words = [
        "env=gym/InvertedPendulum-v5",
        "algorithm=sac",
        "online_steps=6000",
        f"out={tmp_path}/o",
    ]
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "tracker=trackio"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and len(error.splitlines()) == 1
    assert "tracker=trackio: TRACKIO_DIR: /proc/nope" in error and "set TRACKIO_DIR to a" in error
    assert not (tmp_path / "o").exists()


def test_a_wrong_mode_of_wandb_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "nonsense")
    words = [
        "env=gym/InvertedPendulum-v5",
        "algorithm=sac",
        "online_steps=6000",
        f"out={tmp_path}/o",
    ]
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "tracker=wandb"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and len(error.splitlines()) == 1
    assert "tracker=wandb: WANDB_MODE=nonsense: there are: online, offline" in error
    assert not (tmp_path / "o").exists()
