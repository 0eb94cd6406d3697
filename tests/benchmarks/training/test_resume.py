"""A run that is killed, whenever and however often, ends in the same bits as one left alone."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.steering.frozen import Frozen
from trimtab.benchmarks.artefacts.export import export_bundle
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training import segments
from trimtab.benchmarks.training.checkpoint import Checkpoints, load_checkpoint
from trimtab.benchmarks.training.evaluate import Evaluator
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.catalog import family_of
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.constructors import class_of
from trimtab.benchmarks.training.settings.groups import group_options, registered_target
from trimtab.benchmarks.training.train import train
from trimtab.errors import Stopped
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.types import TrimtabError

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
resumed = load_module(HERE / "resumed.py")
run_folder, outcome, words_of = resumed.run_folder, resumed.outcome, resumed.words_of
CONTEXT = multiprocessing.get_context("forkserver")
NEVER = 9.0
IMPROVING = {"steering", "selection", "editing", "finetuning", "offline_to_online"}
BESIDE = ("ppo", "td3", "simba_v2", "fast_td3", "sb3_sac", "sb3_td3", "sb3_ppo")
# Those that learn nothing have nothing to resume.
STARTING = [
    name
    for name in group_options("algorithm")
    if family_of(target := str(registered_target("algorithm", name))) in IMPROVING
    and not issubclass(class_of(target, "algorithm"), Frozen)
    and name not in ("dppo", "dsrl_sac")
]
"""Methods that improve a policy, but for those that are killed."""
ROUND = "sac buffer_size=36"
"""A run whose ring goes round more than twice."""
ALSO = {
    "cfgrl": "algorithm.sampling_steps=2",  # its policy is exported, and this a short graph
    "dwsl": "act_steps=1",  # it relabels goals at every step
    "decision_transformer": "algorithm.embedding=16 algorithm.context=4 algorithm.layers=1",
}
OF_DATA = [
    f"{name} {ALSO[name]}" if name in ALSO else name
    for name in group_options("algorithm")
    if family_of(str(registered_target("algorithm", name))) == "offline"
    and name not in ("bc", "oppo")
]
"""Methods that learn from data alone; cloning and sequences are below."""
SEQUENCES = "oppo algorithm.embedding=16 algorithm.context=4 algorithm.layers=1 algorithm.foresee=3"
"""A run that draws sequences, and leaves entries out by chance."""


@pytest.fixture(scope="module", autouse=True)
def worker() -> Iterator[None]:
    """Where the processes of this module come from: one that has imported everything."""
    CONTEXT.set_forkserver_preload(["resume_worker"])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        with patch.context() as environment:
            # Python 3.11 gives the server no path to look in, and says nothing if it misses one.
            environment.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
            forkserver.ensure_running()
        yield


def start(
    words: list[str], where: str, ready: float, hold: float
) -> tuple[Any, multiprocessing.connection.Connection]:
    """Start a run in a process of its own; return it, and what it says."""
    import resume_worker  # type: ignore[import-not-found]

    heard, said = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(target=resume_worker.work, args=(words, where, ready, hold, said))
    child.start()
    said.close()
    return child, heard


def kill(
    words: list[str], where: str, ready: float = NEVER, hold: float = NEVER, wait: float = 0.0
) -> None:
    """Start a run and kill it ``wait`` seconds after it says that it is ready."""
    child, heard = start(words, where, ready, hold)
    with heard:
        assert heard.recv() == "ready"
        time.sleep(wait)
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL


def finish(words: list[str]) -> None:
    """Start a run again and let it come to its end."""
    child, heard = start(words, "nowhere", NEVER, NEVER)
    with heard:
        assert heard.recv() == "already done: False"  # it had something left to do
    child.join()
    assert child.exitcode == 0


@pytest.fixture(scope="module")
def left_alone(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return a method's outcome without interruption, in this process; made once."""
    known: dict[str, Any] = {}

    def outcome_of(method: str) -> Any:
        if method not in known:
            out = tmp_path_factory.mktemp(f"left-alone-{method.split()[0]}")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(loop, "LOG_EVERY", 20)
                patch.setattr(segments, "SMALLEST", 512)  # as the other processes have it
                patch.setattr(segments, "FACTOR", 2)
                known[method] = outcome(train(compose_run(words_of(tiny, method, out))).folder)
        return known[method]

    return outcome_of


@pytest.mark.bits
@pytest.mark.parametrize("method", ["bc", "dppo", "dsrl_sac", ROUND])
def test_killed_at_three_random_moments(
    method: str, tiny: Any, tmp_path: Path, left_alone: Callable[[str], Any]
) -> None:
    dice = random.Random(f"moments of {method}")
    words = words_of(tiny, method, tmp_path)
    resumed_from = []
    for moment in sorted(dice.uniform(0.05, 0.85) for _ in range(3)):
        kill(words, "nowhere", moment, moment + 0.1, wait=dice.uniform(0.0, 0.05))
        folder = run_folder(tmp_path)
        assert not (folder / "result.json").exists()
        assert not (folder / "policy").exists()
        state = load_checkpoint(folder / "checkpoint")
        resumed_from.append(state)
    assert resumed_from[-1] is not None
    if method != "bc":  # the last was in the middle of an episode
        assert resumed_from[-1]["collector"]["envs"]["chunks"].max() > 0
    finish(words)
    assert outcome(folder) == left_alone(method)


@pytest.fixture(scope="module")
def exported(root: Path) -> set[str]:
    """What is exported in ``tests/policies``, and was here, by the kinds that it is composed of."""
    module = load_module(root / "tests" / "policies" / "cases.py")
    cases = {*module.CASES} - {"black_box"}  # no method has it, and to make one is to export one
    return {str([*kinds_in(module.policy_of(case).config())]) for case in cases}


def kinds_in(described: Any) -> Iterator[str]:
    """Yield the kinds of a policy and of those inside it."""
    if isinstance(described, dict):
        if "kind" in described:
            yield str(described["kind"])
        for part in described.values():
            yield from kinds_in(part)


def acts(method: str) -> bool:
    """Return whether a method learns by acting."""
    kind: Any = class_of(str(registered_target("algorithm", method.split()[0])), "algorithm")
    return kind.explore is not Algorithm.explore


@pytest.mark.parametrize("method", [*STARTING, *BESIDE, *OF_DATA, SEQUENCES])
def test_every_other_method_goes_on_from_a_crash_and_can_be_exported(
    method: str, tiny: Any, exported: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a run goes on from a copy of its folder, for time; processes are killed above.

    A policy is exported unless one that is composed of the same kinds was, here or in the tests of
    policies, which read every one of theirs back.
    """
    monkeypatch.setattr(loop, "LOG_EVERY", 20)
    monkeypatch.setattr(segments, "SMALLEST", 512)
    monkeypatch.setattr(segments, "FACTOR", 2)
    # Fewer steps or checkpoints than in the runs that are killed, to save time. At the crash there
    # was one evaluation, and another one is to come.
    method += " online_steps=200 eval_every=100" if acts(method) else " checkpoint_every=30"
    out, at_the_crash = tmp_path / "out", tmp_path / "at the crash"

    def copy(share: float, text: str) -> None:
        if share >= 0.65 and text != "the dataset" and not at_the_crash.exists():
            shutil.copytree(out, at_the_crash)

    config = compose_run(words_of(tiny, method, out))
    left_alone = outcome(train(config, copy).folder)
    out.rename(tmp_path / "left alone")
    at_the_crash.rename(out)
    folder = run_folder(out)
    state = load_checkpoint(folder / "checkpoint")
    assert state is not None and sum(state["phases"]) > 0
    assert not (folder / "result.json").exists()
    train(config)
    assert outcome(folder) == left_alone
    kinds = str([*kinds_in(load_bundle(folder / "policy").policy.config())])
    if kinds not in exported:
        exported.add(kinds)
        errors = export_bundle(folder, tmp_path / "bundle")
        assert max(errors.values()) < 1e-4
        assert (tmp_path / "bundle" / "policy.onnx").is_file()


@pytest.mark.parametrize("method", ["ppo", "sac"])
def test_told_to_end_saves_its_state_and_says_so(
    method: str, tiny: Any, tmp_path: Path, left_alone: Callable[[str], Any]
) -> None:
    words = [*words_of(tiny, method, tmp_path), "checkpoint_every=100000"]
    child, heard = start(words, "nowhere", 0.4, NEVER)
    with heard:
        assert heard.recv() == "ready"
        child.terminate()
        assert heard.poll(10)
        told = heard.recv()
    child.join(10)
    assert child.exitcode == 143
    assert told.startswith("Stopped: ") and "its state is saved" in told
    folder = run_folder(tmp_path)
    state = load_checkpoint(folder / "checkpoint")
    assert state is not None and 0 < state["env_steps"] < 320
    finish(words)
    assert outcome(folder) == left_alone(method)


@pytest.mark.bits
def test_told_to_end_during_an_evaluation_repeats_it(
    tiny: Any, tmp_path: Path, left_alone: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = words_of(tiny, "ppo", tmp_path)
    monkeypatch.setattr(loop, "LOG_EVERY", 20)
    judge, calls = Evaluator.judge, []

    def interrupted(evaluator: Any, *args: Any, **keywords: Any) -> Any:
        calls.append(evaluator)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return judge(evaluator, *args, **keywords)

    monkeypatch.setattr(Evaluator, "judge", interrupted)
    with pytest.raises(Stopped, match="its state is saved, run the same command to resume"):
        train(compose_run(words))
    folder = run_folder(tmp_path)
    assert load_checkpoint(folder / "checkpoint")["evaluation_due"]  # type: ignore[index]
    assert not (folder / "episodes.parquet").exists()
    train(compose_run(words))
    assert outcome(folder) == left_alone("ppo")


def test_killed_before_the_first_checkpoint(
    tiny: Any, tmp_path: Path, left_alone: Callable[[str], Any]
) -> None:
    words = [*words_of(tiny, "bc", tmp_path), "checkpoint_every=1000"]
    kill(words, "nowhere", 0.6, 0.6)
    folder = run_folder(tmp_path)
    assert load_checkpoint(folder / "checkpoint") is None
    assert (folder / "metrics.jsonl").stat().st_size > 0  # lines that must not stay
    finish(words)
    assert outcome(folder) == left_alone("bc")


def test_killed_in_the_middle_of_writing_a_checkpoint(
    tiny: Any, tmp_path: Path, left_alone: Callable[[str], Any]
) -> None:
    words = words_of(tiny, "dsrl_sac", tmp_path)
    kill(words, "writing a checkpoint")
    folder = run_folder(tmp_path)
    whole, cut = sorted((folder / "checkpoint").glob("*step-*"), key=lambda path: path.suffix)
    assert (whole.name, cut.suffix) == ("step-000000000120", ".tmp")
    assert (cut / "arrays.safetensors").exists() and not (cut / "state.json").exists()
    finish(words)
    assert not list(folder.rglob("*.tmp"))
    assert outcome(folder) == left_alone("dsrl_sac")


@pytest.mark.parametrize("method", ["sac", ROUND])
def test_killed_between_a_segment_and_its_checkpoint(
    method: str, tiny: Any, tmp_path: Path, left_alone: Callable[[str], Any]
) -> None:
    words = words_of(tiny, method, tmp_path)
    kill(words, "behind a segment")
    folder = run_folder(tmp_path) / "checkpoint"
    (state,) = folder.glob("step-*/state.json")
    logs = json.loads(state.read_text())["logs"].values()
    named = {segment["file"] for log in logs for segment in log["segments"]}
    assert named < {path.name for path in folder.glob("rows/*.safetensors")}
    finish(words)
    ended = outcome(folder.parent)
    assert ended["segments"] and ended == left_alone(method)


@pytest.mark.parametrize("where", ["writing the bundle", "writing the result"])
def test_killed_at_the_very_end(
    where: str, tiny: Any, tmp_path: Path, left_alone: Callable[[str], Any]
) -> None:
    words = words_of(tiny, "bc", tmp_path)
    kill(words, where)
    folder = run_folder(tmp_path)
    before = read_episodes(folder / "episodes.parquet").to_pylist()
    assert before[-1]["updates"] == 120  # the last evaluation was made, and is made again
    finish(words)
    assert outcome(folder) == left_alone("bc")


def test_a_changed_checkpoint_is_not_gone_on_from(tiny: Any, tmp_path: Path) -> None:
    words = words_of(tiny, "dsrl_na", tmp_path)
    kill(words, "nowhere", 0.5, 0.5)
    folder = run_folder(tmp_path)
    (arrays,) = folder.rglob("step-*/arrays.safetensors")
    data = bytearray(arrays.read_bytes())
    data[len(data) // 2] ^= 4
    arrays.write_bytes(data)
    with pytest.raises(
        TrimtabError, match="was changed since it was written; move .* away and run it again"
    ) as error:
        train(compose_run(words))
    assert "\n" not in str(error.value)
    assert not (folder / "result.json").exists()


def test_a_checkpoint_of_another_version_is_named(tiny: Any, tmp_path: Path) -> None:
    words = words_of(tiny, "bc", tmp_path)
    kill(words, "nowhere", 0.5, 0.5)
    folder = run_folder(tmp_path) / "checkpoint"
    state = load_checkpoint(folder)
    assert state is not None
    del state["evaluation_due"]
    Checkpoints(folder).save(999, state)
    with pytest.raises(TrimtabError, match=r"lacks 'evaluation_due': another version") as error:
        train(compose_run(words))
    assert "\n" not in str(error.value)


def test_a_log_that_was_cut_is_noticed(tiny: Any, tmp_path: Path) -> None:
    words = words_of(tiny, "bc", tmp_path)
    kill(words, "nowhere", 0.9, 0.9)
    (run_folder(tmp_path) / "metrics.jsonl").write_text("")
    with pytest.raises(TrimtabError, match=r"metrics.jsonl is shorter than .* says; move"):
        train(compose_run(words))


@pytest.mark.bits
def test_the_global_generator_of_numpy_goes_on_too(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some simulators draw from it."""
    words = compose_run([*tiny.cloning(tmp_path), "eval_every=1000"])
    save, drawn = Checkpoints.save, []

    def stop_after_saving(*args: Any) -> None:
        save(*args)
        drawn.append(np.random.random(3))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoints, "save", stop_after_saving)
        train(words)
    np.random.seed(99)
    resumed = loop.Run._load

    def draw_after_loading(run: Any, state: Any) -> None:
        resumed(run, state)
        drawn.append(np.random.random(3))

    monkeypatch.setattr(loop.Run, "_load", draw_after_loading)
    train(words)
    np.testing.assert_array_equal(drawn[0], drawn[1])
