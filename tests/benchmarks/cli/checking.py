"""What the tests of one's own tasks share: the module of wrong ones, and what is said of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.cli.main import run as carry_out
from trimtab.envs import registry
from trimtab.errors import TrimtabError

SAC = ["algorithm=sac", "algorithm.warmup_steps=8", "algorithm.hidden=[8]", "eval_episodes=2"]
SAC += ["algorithm.batch_size=8", "online_steps=24"]
SUCCESS = "env_options.success_key=success"


def forget() -> None:
    registry._families.cache_clear()
    registry._spec.cache_clear()


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of wrong tasks, on the path as a user's is, and named as a family's."""
    folder = tmp_path_factory.mktemp("toys")
    shutil.copy(Path(__file__).with_name("toys.py"), folder / "toys.py")
    before = {**gymnasium.registry}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv(registry.OUTSIDE, "toys")
        forget()
        yield __import__("toys")
    gymnasium.registry.clear()
    gymnasium.registry.update(before)
    sys.modules.pop("toys", None)
    forget()


def said(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """Carry words out; return the exit code and the lines on both outputs."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    shown = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, (shown.out + shown.err).splitlines()


def refused(out: Path, *words: str) -> str:
    """Return the one line that a run is refused with, before it has written anything."""
    with pytest.raises(TrimtabError) as error:
        carry_out(["train", *SAC, f"out={out}", *words])
    assert error.value.exit_code == 2 and "\n" not in str(error.value)
    assert len(str(error.value)) < 600 and not out.exists()
    return str(error.value)
