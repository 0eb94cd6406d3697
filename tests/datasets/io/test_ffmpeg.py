"""The pipes to ffmpeg: nothing waits for ever."""

from __future__ import annotations

import time

import pytest

from trimtab.datasets.io.ffmpeg import Pipe
from trimtab.types import TrimtabError


def test_a_command_that_hangs_is_stopped() -> None:
    started = time.monotonic()
    with (
        pytest.raises(TrimtabError, match="^x: ffmpeg did nothing for 0.2 s and was stopped"),
        Pipe(["sleep", "60"], "x", patience=0.2) as pipe,
    ):
        pipe.fill(memoryview(bytearray(9)))
    with (
        pytest.raises(TrimtabError, match="did nothing"),
        Pipe(["sleep", "60"], "x", writes=True, patience=0.2) as pipe,
    ):
        pipe.write(memoryview(bytes(1 << 20)))
    assert time.monotonic() - started < 20
