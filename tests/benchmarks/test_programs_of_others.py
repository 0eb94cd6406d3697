"""The package inside of other people's programs, with tasks and callbacks of theirs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import hydra
import numpy as np
import pytest
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.version import VersionBase

import trimtab
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.benchmarks.cli.main import main
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy

WEIGHTS = Path("policy", "model.safetensors")
DOES: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "seeds": lambda: torch.manual_seed(0),
    "draws": lambda: torch.randn(7),
    "sets the state": lambda: torch.set_rng_state(torch.Generator().get_state()),
    "double": lambda: torch.set_default_dtype(torch.float64),
    "threads": lambda: torch.set_num_threads(3),
    "determinism": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "gradients": lambda: torch.set_grad_enabled(False),
    "device": lambda: torch.set_default_device("meta"),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
}


class Meddler(gymnasium.Env[Any, Any]):
    """Does something to torch in one of its methods."""

    action_space = gymnasium.spaces.Box(-1, 1, (2,))
    observation_space = gymnasium.spaces.Box(-9, 9, (1,))

    def __init__(self, does: str = "nothing", where: str = "reset", after: int = 0) -> None:
        self.does, self.where, self.left = DOES[does], where, after
        self.meddle("init")

    def meddle(self, where: str) -> None:
        self.left -= where == self.where
        if where == self.where and self.left < 0:
            self.does()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.meddle("reset")
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.meddle("step")
        return np.float32(action[:1]), float(action[1]), False, False, {}


@pytest.fixture(autouse=True)
def meddler() -> Iterator[None]:
    gymnasium.register("Meddler-v0", entry_point=Meddler, max_episode_steps=20)
    try:
        yield
    finally:
        del gymnasium.registry["Meddler-v0"]
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")


def settings(out: Path, **more: Any) -> dict[str, Any]:
    return {
        "env": "gymnasium:Meddler-v0",
        "algorithm": "sac",
        "algorithm.hidden": [8],
        "algorithm.warmup_steps": 30,
        "algorithm.batch_size": 8,
        "online_steps": 60,
        "checkpoint_every": 25,
        "eval_every": 25,
        "eval_episodes": 1,
        "out": out,
        **more,
    }


def trained(out: Path, **more: Any) -> bytes:
    """Return a run's weights; they are judged as they were in the run."""
    run = trimtab.train(settings(out, **more))
    assert trimtab.evaluate(run, episodes=1, seed=1_000_000).mean_return == run.mean_return
    return (run.folder / WEIGHTS).read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Weights of the run in a program that does nothing else."""
    gymnasium.register("Meddler-v0", entry_point=Meddler, max_episode_steps=20)
    return trained(tmp_path_factory.mktemp("alone"))


# ---- other people's programs ---------------------------------------------------------------------


def test_the_precision_of_products_is_the_run_s_in_updates_and_the_highest_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, set[str]] = {"update": set(), "forward": set()}

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(*given: Any) -> Any:
            found[name].add(torch.get_float32_matmul_precision())
            return function(*given)

        return note

    monkeypatch.setattr(SAC, "update", noted("update", SAC.update))
    forward = noted("forward", TanhGaussianPolicy.forward)
    monkeypatch.setattr(TanhGaussianPolicy, "forward", forward)
    torch.set_float32_matmul_precision("high")  # the caller's own
    trimtab.train(settings(tmp_path, matmul_precision="medium"))
    assert found == {"update": {"medium"}, "forward": {"highest"}}
    assert torch.get_float32_matmul_precision() == "high"
    found["update"].clear()
    trimtab.train(settings(tmp_path))
    assert found["update"] == {"highest"}


@contextmanager
def own_hydra(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text("x: 1\n")
    store = ConfigStore.instance()
    before = dict(store.repo)
    store.store(name="config", node={"x": int, "defaults": []})
    store.store(group="algorithm", name="sac", node={"only": 1})
    try:
        with hydra.initialize_config_dir(
            str(tmp_path / "conf"), job_name="mine", version_base="1.2"
        ):
            callers = GlobalHydra.instance()
            yield
            assert GlobalHydra.instance() is callers
            assert hydra.compose("mine") == {"x": 1}
            assert "config.yaml" in store.repo and "sac.yaml" in store.repo["algorithm"]
            assert str(VersionBase.instance().getbase()) == "1.2"
            assert JobRuntime.instance().get("name") == "mine"
    finally:
        store.repo = before


@contextmanager
def own_torch(tmp_path: Path) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    torch.manual_seed(5)
    try:
        with torch.inference_mode():
            yield
        assert torch.get_default_dtype() == torch.float64 and torch.get_num_threads() == 2
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.manual_seed(5)))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("program", [own_hydra, own_torch])
def test_a_run_has_its_bits_in_somebodys_program(
    program: Callable[[Path], Any], alone: bytes, tmp_path: Path
) -> None:
    with program(tmp_path):
        assert trained(tmp_path / "runs") == alone


def test_a_run_has_its_bits_in_threads_and_in_a_loop(alone: bytes, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(trained, tmp_path / str(index)) for index in range(3)]
        assert [run.result() for run in runs] == [alone] * 3

    async def within() -> tuple[bytes, bytes]:
        beside = asyncio.to_thread(trained, tmp_path / "beside")
        return trained(tmp_path / "within"), await beside

    assert asyncio.run(within()) == (alone, alone)


def test_what_another_thread_loads_moves_no_number(alone: bytes, tmp_path: Path) -> None:
    run = trimtab.train(settings(tmp_path / "first"))
    ended, loaded = threading.Event(), 0

    def load() -> None:
        nonlocal loaded
        while not ended.is_set():
            load_bundle(run.folder / "policy")
            trimtab.evaluate(run, episodes=1)
            loaded += 1

    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(load)
        try:
            assert trained(tmp_path / "second") == alone
        finally:
            ended.set()
        beside.result()
    assert loaded


APP = """
import hydra, trimtab, warnings
from trimtab.envs.vector import make_vec

@hydra.main(version_base=None, config_path=".", config_name="mine")
def main(mine):
    run = trimtab.train(env="gymnasium:Pendulum-v1", algorithm="sac", online_steps=mine.steps,
                        eval_episodes=1, **{"algorithm.hidden": [8], "algorithm.warmup_steps": 20})
    scores = trimtab.evaluate(run, episodes=1, seed=1000000)
    board = trimtab.leaderboard("runs")
    envs = trimtab.make_vec("gymnasium:Pendulum-v1", 2, seed=0)
    print(scores.mean_return == run.mean_return, bool(board.to_json()), envs.reset()[0].shape)
    envs.close()
    print(mine, hydra.core.hydra_config.HydraConfig.get().job.name)

main()
"""


def test_all_of_it_works_in_an_application_of_hydras(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("steps: 60\n")
    (tmp_path / "app.py").write_text(APP)
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["True True (2, 3)", "{'steps': 60} app"]


# ---- other people's tasks and callbacks ----------------------------------------------------------


@pytest.mark.parametrize(
    ("does", "where"),
    [("seeds", "reset"), ("draws", "step"), ("sets the state", "step"), ("seeds", "init")],
)
def test_a_task_that_meddles_with_torchs_generator_moves_no_number(
    does: str, where: str, alone: bytes, tmp_path: Path
) -> None:
    options = {"env_options.does": does, "env_options.where": where}
    assert trained(tmp_path, **options) == alone


class Meddling(trimtab.Callback):
    """Seeds torch all the time, and stops the run once."""

    def on_step(self, now: trimtab.RunProgress) -> None:
        torch.manual_seed(now.position)
        if now.position == 40:
            now.stop()


def test_a_callback_that_seeds_torch_moves_no_number(alone: bytes, tmp_path: Path) -> None:
    options = settings(tmp_path, **{"env_options.does": "draws", "env_options.where": "reset"})
    assert trimtab.train(options, callbacks=[Meddling()]).stopped_early
    run = trimtab.train(options)  # which goes on to its end
    assert (run.folder / WEIGHTS).read_bytes() == alone


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("double", "default type from torch.float32 to torch.float64"),
        ("threads", "number of threads from 1 to 3"),
        ("determinism", "determinism (debug mode) from 0 to 1"),
        ("gradients", "recording of gradients from True to False"),
        ("device", "default device from cpu to meta"),
        ("precision", "precision of matrix products from highest to medium"),
    ],
)
def test_a_task_that_changes_what_torch_is_set_to_is_told_at_once(
    does: str, said: str, tmp_path: Path
) -> None:
    options = {"env_options.does": does, "env_options.where": "step", "env_options.after": 34}
    with pytest.raises(TrimtabError) as error:
        trained(tmp_path, eval_every=None, **options)
    assert f"has changed torch's {said}, which would" in str(error.value)
    assert "at update 6, after 34 environment steps" in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("result.json"))


# ---- other people's words ------------------------------------------------------------------------

LOUD = """
import atexit, ctypes, os, subprocess, sys
import gymnasium as gym, numpy as np
C = ctypes.CDLL(None)
def say(word, now=sys.__stdout__):
    print("print", word); now.write("kept " + word); os.write(1, b"number"); C.puts(b"C's buffer")
    subprocess.run(["echo", "a child"])
say("import"); atexit.register(say, "exit")
class E(gym.Env):
    action_space = gym.spaces.Box(-1, 1, (1,)); observation_space = gym.spaces.Box(-9, 9, (1,))
    def __init__(self): say("init")
    def reset(self, *, seed=None, options=None): say("reset"); return np.zeros(1), {}
    def step(self, a): say("step"); return np.zeros(1), 1.0, False, False, {}
    def close(self): say("close")
gym.register("Loud-v0", entry_point="loud:E", max_episode_steps=3)
"""


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loud")
    (folder / "loud.py").write_text(LOUD)
    return folder


def carried_out(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trimtab.benchmarks.cli.main", *words], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_nothing_but_json_reaches_standard_output(
    loud: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(loud)
    id = "gymnasium:loud:Loud-v0"
    run = trimtab.train(settings(loud, env=id, online_steps=40, eval_every=None))
    judged = ["evaluate", f"policy={run.folder}", "episodes=2", "--format=json"]
    for words in (["check", f"env={id}", "format=json"], judged):
        done = carried_out(loud, *words)
        assert done.returncode == 0 and json.loads(done.stdout), done.stderr
        for way in ("print", "kept", "number", "C's buffer", "a child"):
            assert done.stderr.count(way) > 1
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "policy=nowhere", "format=json"])
    shown = capfd.readouterr()
    assert ended.value.code == 2 and shown.out == "" and shown.err.startswith("trimtab: ")
