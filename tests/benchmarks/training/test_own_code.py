"""What fails in a user's own code while a run goes on: one line, a traceback, a run to go on with.

The module of the user's raises where a variable of it says so, so that the same run can be carried
out once with its fault and once without it.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.core.own_code import TRACEBACK, fault_of_own_code, in_a_line
from trimtab.benchmarks.suites.launch import Work, carry_out
from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.data.recording import Stage
from trimtab.benchmarks.training.settings.config import compose_run, recipe_with
from trimtab.benchmarks.training.train import train
from trimtab.errors import TrimtabError
from trimtab.files import sha256_file

OWN = """
import gymnasium
import numpy as np

from trimtab.algorithms.off_policy.sac import SAC

FAULT, COUNT = {"place": "", "after": 0}, {"step": 0, "reset": 0, "update": 0}


def met(place):
    COUNT[place] += 1
    if FAULT["place"] == place and COUNT[place] > FAULT["after"]:
        raise KeyError("a fault\\nof mine")  # line 13


class Cart(gymnasium.Env):
    metadata = {"render_fps": 10}
    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        met("reset")
        self.state = self.np_random.uniform(-1, 1, 2)
        return self.state.copy(), {}

    def step(self, action):
        met("step")
        self.state = 0.9 * self.state + 0.1 * float(action[0])
        return self.state.copy(), -float(abs(self.state).sum()), False, False, {}


class Mine(SAC):
    faithful = False

    def update(self, data):
        met("update")
        return super().update(data)


class NoPolicy(SAC):
    def __init__(self, setup, **keywords):
        super().__init__(setup, **keywords)
        self.policy = None


class Stateless(SAC):
    def state(self):
        return super().state() | {"alpha": 3}


class Vague(SAC):
    def update(self, data):
        return super().update(data) | {"loss": "high"}


class Broken(SAC):
    def update(self, data):
        found = super().update(data)
        for weight in self.policy.parameters():
            weight.data.fill_(float("nan"))
        return found


gymnasium.register("own_cart/Cart-v0", entry_point=Cart, max_episode_steps=9)
"""
WORDS = ["env=gymnasium:own_cart:own_cart/Cart-v0", "algorithm=sac", "algorithm.hidden=[8]"]
WORDS += ["algorithm._target_=own_cart.Mine", "algorithm.warmup_steps=8", "algorithm.batch_size=8"]
WORDS += ["online_steps=60", "checkpoint_every=20", "eval_episodes=2"]
# How often each is met before a run's own first one, and until after its first checkpoint.
AFTER = {"step": 45, "reset": 5, "update": 40}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A user's module with a task and a method, which can be imported."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_cart.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("own_cart")
    gymnasium.registry.pop("own_cart/Cart-v0", None)
    sys.modules.pop("own_cart")


def fail_in(own: ModuleType, place: str) -> None:
    own.COUNT.update(dict.fromkeys(own.COUNT, 0))
    own.FAULT.update(place=place, after=AFTER.get(place, 0))


def ends_with(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Return the one line with which a command ends."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    shown = capfd.readouterr()
    (line,) = shown.err.splitlines()
    assert ended.value.code == 2 and shown.out == ""
    return line


@pytest.mark.parametrize("place", AFTER)
def test_a_fault_is_one_line_and_the_run_goes_on_when_it_is_mended(
    place: str, own: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fail_in(own, "")
    whole = train(compose_run([*WORDS, f"out={tmp_path}/whole"]))
    fail_in(own, place)
    line = ends_with(["train", *WORDS, f"out={tmp_path}/out"], capfd)
    (folder,) = (path.parent for path in tmp_path.glob("out/**/provenance.json"))
    said = "Mine.update" if place == "update" else f"Cart.{place}"
    assert line.startswith(
        f"trimtab: {said} of your own failed with KeyError: 'a fault\\nof mine' "
        "(own_cart.py line 13); "
    )
    assert f"{folder}: at update " in line and str(folder / TRACEBACK) in line
    text = (folder / TRACEBACK).read_text()
    assert text.startswith("Traceback") and f'met("{place}")' in text
    assert not (folder / "result.json").exists() and not list(folder.rglob("*.tmp"))
    (saved,) = (folder / "checkpoint").glob("step-*")  # the run had come this far
    fail_in(own, "")
    again = train(compose_run([*WORDS, f"out={tmp_path}/out"]))
    assert again.folder == folder and not (folder / TRACEBACK).exists()
    assert own.COUNT["update"] < whole.summary["updates"] and not saved.exists()
    weights = "policy/model.safetensors"
    assert sha256_file(folder / weights) == sha256_file(whole.folder / weights)


@pytest.mark.parametrize(
    ("method", "told", "begun"),
    [
        ("NoPolicy", "sac: its policy is of type NoneType; a method sets self.policy to", False),
        ("Stateless", "sac: state() has alpha of type int; return a dict of modules", False),
        ("Vague", "environment steps: the metric loss of an update is no scalar", True),
        ("Broken", "environment 0 is not finite; look at what chose it: a policy whose", True),
    ],
)
def test_a_method_that_is_not_whole_is_told(
    method: str,
    told: str,
    begun: bool,
    own: ModuleType,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fail_in(own, "")
    words = [word for word in WORDS if "_target_" not in word]
    words += [f"algorithm._target_=own_cart.{method}", f"out={tmp_path}/out"]
    line = ends_with(["train", *words], capfd)
    assert told in line and (": at update " in line) == begun
    assert (tmp_path / "out").exists() == begun


def test_python_gets_the_exception_itself_with_where_it_was(
    own: ModuleType, tmp_path: Path
) -> None:
    fail_in(own, "update")
    with pytest.raises(KeyError) as raised:
        train(compose_run([*WORDS, f"out={tmp_path}/out"]))
    (note,) = raised.value.__notes__
    assert "at update " in note and note.endswith("mend it and run the same command to resume")


def test_a_callers_callback_raises_what_it_likes(own: ModuleType, tmp_path: Path) -> None:
    class Mine(Callback):
        def on_step(self, now: RunProgress) -> None:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        train(compose_run([*WORDS, f"out={tmp_path}/out"]), callbacks=[Mine()])


def test_a_worker_of_a_suite_tells_the_same_line(own: ModuleType, tmp_path: Path) -> None:
    """Its exception would come out of another process without its traceback."""
    fail_in(own, "update")
    with pytest.raises(TrimtabError, match=r"Mine.update of your own failed .*own_cart.py line 13"):
        carry_out(Work("one", (*WORDS, f"out={tmp_path}/out")), lambda *_: None)


def test_an_evaluation_and_a_recording_tell_it_too(
    own: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fail_in(own, "")
    run = train(compose_run([*WORDS, f"out={tmp_path}/out"])).folder
    fail_in(own, "step")
    line = ends_with(["evaluate", f"policy={run}", "episodes=20"], capfd)
    assert "Cart.step of your own failed with KeyError" in line and "TRIMTAB_LOG=debug" in line
    recipe = recipe_with("hopper_random", ["dataset.env=" + WORDS[0].partition("=")[2]])
    recipe["controller"] |= {"low": [-1.0], "high": [1.0]}
    fail_in(own, "step")
    with pytest.raises(TrimtabError, match="Cart.step of your own failed with KeyError"):
        for number in range(9):  # as a recorder's process plays them
            Stage(recipe).play(number)


def test_only_a_users_frames_count(own: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads("{")
    error = raised.value
    assert fault_of_own_code(error) is not None  # this file is a user's, as far as is known
    assert error.__traceback__ is not None
    assert fault_of_own_code(error.with_traceback(error.__traceback__.tb_next)) is None
    own.FAULT.update(place="step", after=-1)
    with caplog.at_level(logging.DEBUG), pytest.raises(TrimtabError), in_a_line():
        own.met("step")
    assert caplog.records[-1].exc_info is not None


def test_code_that_ends_the_process_is_told_as_a_fault() -> None:
    with pytest.raises(TrimtabError, match=r"of your own failed with SystemExit: 5"), in_a_line():
        sys.exit(5)
