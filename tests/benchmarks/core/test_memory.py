"""What asks for more memory than there is: one line, before any of it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.core.memory import want_of_memory, within_memory
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import check
from trimtab.types import TrimtabError

HOPPER = ["env=gym/Hopper-v5", "algorithm=sac", "online_steps=10000"]


def test_other_failures_stay_as_they_are() -> None:
    for error in (RuntimeError("mat1 and mat2 shapes"), ValueError("can't allocate memory")):
        assert want_of_memory(error) is None
        with pytest.raises(type(error)), within_memory():
            raise error
    assert want_of_memory(MemoryError()) == "a request was refused"
    assert want_of_memory(RuntimeError("CUDA out of memory.\nTried 2 GiB")) == (
        "CUDA out of memory. Tried 2 GiB"
    )


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
