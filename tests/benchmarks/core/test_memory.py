"""What asks for more memory than there is: one line, before any of it is used."""

from __future__ import annotations

import gc
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.benchmarks.core import memory
from trimtab.benchmarks.core.memory import memory_of_the_machine, want_of_memory, within_memory
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import check, train
from trimtab.types import TrimtabError

HOPPER = ["env=gym/Hopper-v5", "algorithm=sac", "online_steps=10000"]


def test_no_more_can_be_asked_for_than_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "memory_of_the_machine", lambda: 1 << 28)
    gc.collect()  # what earlier tests left may be freed in the middle, and would serve
    before = resource.getrlimit(resource.RLIMIT_DATA)
    line = "^not enough memory: {}.*and this machine has 0.2 GiB; lower what is largest among"
    words = [*HOPPER, f"out={tmp_path / 'out'}"]
    # How many depends on what the process holds already: a gibibyte freed earlier may serve the
    # first network.
    with pytest.raises(TrimtabError, match=line.format(r"\d+ GiB were asked for at once")):
        check(compose_run([*words, "algorithm.hidden=[16384,16384]"]))
    # Never used, so that Linux would promise it; and more than this process can have freed.
    many = ["online_steps=1000000000", "buffer_size=1000000000"]
    with pytest.raises(TrimtabError, match=line.format("Unable to allocate .* .iB for an array")):
        train(compose_run([*words, *many]))
    assert not (tmp_path / "out").exists()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    np.empty(1 << 30, np.uint8)
    with within_memory("cuda"):  # a driver maps more than it uses
        np.empty(1 << 30, np.uint8)


def test_other_failures_stay_as_they_are() -> None:
    for error in (RuntimeError("mat1 and mat2 shapes"), ValueError("can't allocate memory")):
        assert want_of_memory(error) is None
        with pytest.raises(type(error)), within_memory():
            raise error
    assert want_of_memory(MemoryError()) == "a request was refused"
    assert want_of_memory(RuntimeError("CUDA out of memory.\nTried 2 GiB")) == (
        "CUDA out of memory. Tried 2 GiB"
    )


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory_of_the_machine()
    for text, expected in (("1048576\n", 1 << 20), ("max\n", whole), (f"{1 << 62}\n", whole)):
        (tmp_path / "max").write_text(text)
        monkeypatch.setattr(memory, "_GROUPS", (str(tmp_path / "max"), str(tmp_path / "absent")))
        assert memory_of_the_machine() in (expected, min(whole, expected))


@pytest.mark.parametrize(
    "words",
    [["algorithm.hidden=[1000000,1000000]"]],
)
def test_networks_that_no_machine_holds(words: list[str], tmp_path: Path) -> None:
    config: Any = compose_run([*HOPPER, *words, f"out={tmp_path / 'out'}"])
    with pytest.raises(TrimtabError, match="^not enough memory: .*lower what is largest") as error:
        check(config)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_a_layer_that_would_fill_the_machine_is_refused_by_its_width(tmp_path: Path) -> None:
    words = ["algorithm.hidden=[1000000000]", f"out={tmp_path / 'out'}"]
    with pytest.raises(TrimtabError, match=r"hidden.*1000000000.*1048576$"):
        check(compose_run([*HOPPER, *words]))
