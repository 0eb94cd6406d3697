"""What a run can learn from: streamed and weighted datasets, other runs' replay buffers."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.checkpoint import load_checkpoint
from trimtab.benchmarks.training.data.offline_data import dataset_of_runs, memory_bytes
from trimtab.benchmarks.training.experience import make_dataset_source
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.streamed_buffer import StreamedBuffer
from trimtab.datasets.sources.streaming import stored_files
from trimtab.datasets.sources.weighting import episode_weights
from trimtab.envs.registry import get_spec
from trimtab.types import TrimtabError


def outcome(folder: Path) -> list[bytes]:
    """Return a finished run's weights and its last state."""
    (last,) = folder.glob("checkpoint/*/arrays.safetensors")
    return [(folder / "policy" / "model.safetensors").read_bytes(), last.read_bytes()]


def interrupted(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a run and stop it dead after its first checkpoint and some more steps."""
    after = loop.Run._finish_step

    def stop(run: Any, index: int, steps: int) -> None:
        after(run, index, steps)
        if (run.folder / "checkpoint").is_dir() and run.position % run.config["checkpoint_every"]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Run, "_finish_step", stop)
        train(compose_run(words))


@pytest.fixture(scope="module")
def runs(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Finished runs of single steps, by seed."""
    out, known = tmp_path_factory.mktemp("runs"), dict[int, Path]()

    def run(seed: int) -> Path:
        if seed not in known:
            words = [*single_steps(tiny, out), f"seed={seed}", "checkpoint_every=1000"]
            known[seed] = train(compose_run([*words, "eval_every=null"])).folder
        return known[seed]

    return run


def single_steps(tiny: Any, out: Path) -> list[str]:
    return [*tiny.online(out, "sac"), "act_steps=1", "online_steps=160", "eval_episodes=1"]


def listed(*folders: Path) -> str:
    return f"dataset=[{','.join(map(str, folders))}]"


# ---- runs go on to the same bits -----------------------------------------------------------------


def streamed(tiny: Any, runs: Any) -> list[str]:
    return [f"dataset={tiny.dataset}", "stream_above=0"]


def weighted(tiny: Any, runs: Any) -> list[str]:
    return [f"dataset={tiny.dataset}", "dataset_weighting=return", "weighting_temperature=0.3"]


def across(tiny: Any, runs: Any) -> list[str]:
    return [listed(runs(0), runs(1))]


@pytest.mark.bits
@pytest.mark.parametrize("source", [streamed, weighted, across])
def test_a_run_that_is_killed_goes_on_to_the_same_bits(
    source: Any, tiny: Any, runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["offline_steps=40", "offline_share=0.5", "checkpoint_every=56", *source(tiny, runs)]
    left_alone, killed = ([*single_steps(tiny, tmp_path / o), *given] for o in ("a", "b"))
    interrupted(killed, monkeypatch)
    (state,) = (tmp_path / "b").rglob("checkpoint")
    assert 40 + 160 > load_checkpoint(state)["env_steps"] + 40 > 40  # type: ignore[index]
    expected = train(compose_run(left_alone)).folder
    assert outcome(train(compose_run(killed)).folder) == outcome(expected)


# ---- streaming -----------------------------------------------------------------------------------


@pytest.mark.bits
def test_a_streamed_run_is_the_run_in_memory(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*tiny.cloning(tmp_path), "offline_steps=30", "checkpoint_every=10"]
    in_memory = train(compose_run(words)).folder
    expected = outcome(in_memory)
    shutil.rmtree(in_memory)
    assert not (tmp_path / "streams").exists()
    kinds = []
    sample = ReplayBuffer.sample

    def noted(buffer: ReplayBuffer, batch_size: int) -> Any:
        kinds.append(type(buffer))
        return sample(buffer, batch_size)

    monkeypatch.setattr(ReplayBuffer, "sample", noted)
    interrupted([*words, "stream_above=0"], monkeypatch)  # begun on disk, ended in memory
    folder = train(compose_run(words)).folder
    assert set(kinds) == {StreamedBuffer, ReplayBuffer}
    assert folder == in_memory and outcome(folder) == expected


def test_reading_a_streamed_dataset_shows_progress(tiny: Any, tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    words = [*tiny.cloning(tmp_path), "offline_steps=2", "stream_above=0"]
    train(compose_run(words), lambda share, text: told.append((share, text)))
    shares = [share for share, text in told if text == "the dataset"]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert any(text == "returns of the dataset" for _, text in told)


@pytest.mark.parametrize(("bytes_above", "is_streamed"), [(-1, True), (0, False)])
def test_the_size_of_the_file_decides(
    bytes_above: int, is_streamed: bool, tiny: Any, tmp_path: Path
) -> None:
    size = sum(file.stat().st_size for file in stored_files(tiny.dataset))
    words = [*tiny.cloning(tmp_path), f"stream_above={size + bytes_above}"]
    plan = checked_plan(compose_run(words))
    assert (tmp_path / "streams").is_dir() is is_streamed
    assert plan.config_hash == checked_plan(compose_run(words[:-1])).config_hash


def test_a_quarter_of_the_memory_is_the_default(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory_bytes() > 1 << 28
    size = (tiny.dataset / "data" / "main_data.hdf5").stat().st_size
    monkeypatch.setattr(
        "trimtab.benchmarks.training.data.offline_data.memory_bytes", lambda: 4 * (size - 1)
    )
    checked_plan(compose_run(tiny.cloning(tmp_path)))
    assert (tmp_path / "streams").is_dir()


# ---- last observations that were not recorded ----------------------------------------------------


def test_only_cloning_has_steps_without_a_next_observation(tiny: Any, tmp_path: Path) -> None:
    whole = load_minari(tiny.dataset)
    cut = [dataclasses.replace(e, last_observed=False, infos={}) for e in whole.episodes]
    save_minari(dataclasses.replace(whole, episodes=cut), tmp_path / "cut")
    words = [*tiny.task(tmp_path), "act_steps=1", f"dataset={tmp_path / 'cut'}"]
    starts = []
    for further in (
        ["algorithm=bc", "policy=gaussian", "policy.hidden=[8]"],
        ["algorithm=td3_bc", "algorithm.hidden=[8]"],
    ):
        config = compose_run([*words, *further, "offline_steps=1"])
        plan = checked_plan(config)
        source = make_dataset_source(plan)
        assert source is not None
        starts.append({tuple(row) for row in source.sample(20 * whole.num_steps).obs.tolist()})
    last = {tuple(e.observations[-2].tolist()) for e in whole.episodes}
    assert last <= starts[0] and starts[0] - last == starts[1]


# ---- what observations are normalised by ---------------------------------------------------------


def test_td3_bc_normalises_by_the_observations_of_transitions(tiny: Any, tmp_path: Path) -> None:
    """As its authors do; cloning counts the last observation of each episode, too."""
    episodes = load_minari(tiny.dataset).episodes
    starts = np.concatenate([e.observations[:-1] for e in episodes]).astype(np.float64)
    words = [*tiny.task(tmp_path), f"dataset={tiny.dataset}", "offline_steps=1"]
    plan = checked_plan(compose_run([*words, "algorithm=td3_bc", "algorithm.hidden=[8]"]))
    normalizer = plan.algorithm.policy.normalizer
    np.testing.assert_allclose(normalizer.obs_shift, starts.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.obs_scale, starts.std(0) + 1e-3, rtol=1e-5)
    policy = ["policy=gaussian", "policy.hidden=[8]"]
    plan = checked_plan(compose_run([*words, "algorithm=bc", *policy]))
    every = np.concatenate([e.observations for e in episodes])
    middle = (every.max(0) + every.min(0)) / 2
    np.testing.assert_allclose(plan.algorithm.policy.normalizer.obs_shift, middle)


# ---- weighting -----------------------------------------------------------------------------------


def test_a_run_draws_by_its_weights(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    make = ReplayBuffer.from_dataset.__func__  # type: ignore[attr-defined]

    def noted(kind: Any, dataset: Any, **settings: Any) -> Any:
        given.append((dataset, settings["weights"]))
        return make(kind, dataset, **settings)

    monkeypatch.setattr(ReplayBuffer, "from_dataset", classmethod(noted))
    words = [*tiny.cloning(tmp_path), "offline_steps=2", "eval_every=null", "eval_episodes=1"]
    plain = train(compose_run(words))
    hashes = {plain.folder.parent.name}
    for by, temperature in (("return", 0.1), ("return", 2.0), ("advantage", 0.1)):
        told = [f"dataset_weighting={by}", f"weighting_temperature={temperature}"]
        hashes.add(train(compose_run([*words, *told])).folder.parent.name)
        dataset, weights = given[-1]
        np.testing.assert_array_equal(weights, episode_weights(dataset, by, temperature))
    assert given[0][1] is None
    assert len(hashes) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dataset_weighting=returns"], "dataset_weighting=returns: must be return"),
        (["dataset_weighting=return", "weighting_temperature=0"], "must be above 0"),
        (["weighting_temperature=warm"], "weighting_temperature=warm: must be a number"),
        (["other_task=1"], "other_task=1: must be true or false"),
        (["stream_above=-1"], "stream_above=-1: must be at least 0"),
        (["dataset=[]"], r"dataset.runs=\[\]: must be a list of folders"),
        (["dataset=[1]"], "dataset.runs=\\[1\\]: must be a list"),
    ],
)
def test_wrong_settings(words: list[str], message: str, tiny: Any, tmp_path: Path) -> None:
    given = [] if words[0].startswith("dataset=") else [f"dataset={tiny.dataset}"]
    task = [*tiny.task(tmp_path), "algorithm=sac", "offline_share=0.5", "online_steps=50"]
    with pytest.raises(TrimtabError, match=message) as error:
        train(compose_run([*task, *given, *words]))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_weights_of_episodes_that_do_not_differ_are_told_of(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One trajectory, or rewards that are all equal, are drawn alike; not without a word."""
    words = [word for word in tiny.cloning(tmp_path) if not word.startswith("dataset=")]
    words += ["offline_steps=2", "dataset=two_routes", "dataset.episodes=1"]
    words += ["dataset_weighting=return"]
    told = "dataset_weighting=return has no effect: none of the 1 episodes"
    train(compose_run([*words, "weighting_temperature=inf"]))  # asks for all alike
    assert told not in caplog.text
    train(compose_run(words))
    assert told in caplog.text


def test_weights_need_a_dataset(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=r"dataset_weighting=return: sac needs dataset=…"):
        train(compose_run([*tiny.online(tmp_path, "sac"), "dataset_weighting=return"]))


# ---- replay across experiments -------------------------------------------------------------------


def test_runs_are_one_dataset(runs: Any, tiny: Any, tmp_path: Path) -> None:
    one, other = runs(0), runs(1)
    words = [*single_steps(tiny, tmp_path), "offline_share=0.5"]
    plan = checked_plan(compose_run([*words, listed(one, other)]))
    assert plan.dataset is not None
    states: list[Any] = [load_checkpoint(run / "checkpoint") for run in (one, other)]
    buffers = [state["experience"]["buffer"] for state in states]
    steps = [buffer["size"] * 2 for buffer in buffers]
    assert plan.dataset.num_steps == sum(steps) == 320
    # Column by column, as they were gathered.
    actions = np.concatenate([episode.actions for episode in plan.dataset.episodes])
    expected = [b["arrays"]["action"][:, column, 0] for b in buffers for column in range(2)]
    np.testing.assert_array_equal(actions, np.concatenate(expected))
    told = plan.dataset.recipe["runs"]
    assert [(run["algorithm"], run["seed"]) for run in told] == [("sac", 0), ("sac", 1)]
    assert plan.dataset.env == plan.env.id and plan.dataset.fingerprint == plan.env.fingerprint

    def hashed(*given: Path) -> str:
        return checked_plan(compose_run([*words, listed(*given)])).config_hash

    assert hashed(one, other) == plan.config_hash
    assert len({hashed(one, other), hashed(one), hashed(other)}) == 3
    # A folder of a run is short for a list of one, wherever the run lies.
    moved = shutil.copytree(one, tmp_path / "moved")
    assert checked_plan(compose_run([*words, f"dataset={moved}"])).config_hash == hashed(one)


def test_half_of_a_batch_is_another_runs(
    runs: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dataset_of_runs(
        [str(runs(0))], get_spec("robotics/PointMaze-TwoRoutes-v0", horizon=28)
    )
    known = {row.tobytes() for episode in before.episodes for row in episode.observations[:-1]}
    shares = []
    update = loop.Run._update

    def noted(run: Any, phase: Any, batch: Any) -> None:
        shares.append(sum(row.tobytes() in known for row in batch.obs[:8].numpy()))
        update(run, phase, batch)

    monkeypatch.setattr(loop.Run, "_update", noted)
    words = [*single_steps(tiny, tmp_path), "offline_share=0.5", "seed=3", listed(runs(0))]
    result = train(compose_run(words))
    assert shares and set(shares) == {8}
    assert result.summary["env_steps"] == 160
    document = json.loads((result.folder / "provenance.json").read_text())
    assert document["dataset"]["recipe"] == before.recipe


def unfinished(folder: Path) -> None:
    (folder / "result.json").unlink()


def emptied(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoint")


def not_a_run(folder: Path) -> None:
    (folder / "provenance.json").unlink()


def no_object(folder: Path) -> None:
    (folder / "provenance.json").write_text("[]")


def no_task(folder: Path) -> None:
    (folder / "provenance.json").write_text("{}")


def no_result(folder: Path) -> None:
    (folder / "result.json").write_text("[]")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_object, "provenance.json is not a JSON object"),
        (no_task, "provenance.json lacks config_hash"),
        (no_result, "result.json is not a JSON object"),
        (unfinished, "has not finished; run it again"),
        (emptied, "has lost its checkpoint"),
        (not_a_run, "is not the folder of a run"),
        (shutil.rmtree, "is not the folder of a run"),
    ],
)
def test_a_wrong_run(change: Any, message: str, runs: Any, tiny: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(runs(0), tmp_path / "run")
    change(folder)
    words = [*single_steps(tiny, tmp_path / "out"), "offline_share=0.5"]
    with pytest.raises(TrimtabError, match=message) as error:
        train(compose_run([*words, listed(runs(1), folder)]))
    assert str(folder) in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_runs_that_do_not_fit(runs: Any, tiny: Any, tmp_path: Path) -> None:
    words = [*single_steps(tiny, tmp_path / "out"), "offline_share=0.5"]
    chunks = train(compose_run([*tiny.online(tmp_path, "sac"), "online_steps=64"])).folder
    rollouts = train(compose_run([*tiny.online(tmp_path, "ppo"), "online_steps=72"])).folder
    for given, message in (
        ([listed(runs(0), runs(0))], "is given twice"),
        ([listed(tiny.base)], "kept no replay buffer"),
        ([listed(rollouts)], "kept no replay buffer"),
        ([listed(chunks)], "chunks of 4 actions, no single steps"),
        ([listed(runs(0)), "env_options.horizon=30"], "give runs of the same task, options"),
        ([f"dataset={runs(0)}", "env=gym/Hopper-v5"], "is a run of robotics/PointMaze-TwoRoutes"),
    ):
        with pytest.raises(TrimtabError, match=message) as error:
            train(compose_run([*words, *given]))
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
