from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from loading import load_module

from trimtab.policies.serving.codec import DTYPES, FrameError, pack, unpack

HOSTILE = Path(__file__).with_name("hostile.py")
hostile = load_module(HOSTILE)

shapes = arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
some_array = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda text: arrays.arrays(np.dtype(text), shapes)
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.binary()
    | st.floats()
    | some_array
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@given(values)
def test_what_is_packed_is_unpacked(value: Any) -> None:
    try:
        found = unpack(pack(value))
    except FrameError as error:
        assert "nested" in str(error)  # hypothesis may nest them deeper than a frame may be
    else:
        assert same(value, found)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_one_error(data: bytes) -> None:
    try:
        value = unpack(data)
    except FrameError as error:
        assert "\n" not in str(error)
    else:
        assert same(value, unpack(pack(value)))


def test_rubbish_is_refused_in_plain_words() -> None:
    whole = pack({"a": np.zeros(3)})
    for frame, said in ((b"hello", "bytes are left after"), (whole[:-1], "it ends within a value")):
        with pytest.raises(FrameError, match=f"^frame: is no msgpack, .*: {said}") as told:
            unpack(frame)
        assert "unpack" not in str(told.value).lower()


@given(some_array)
def test_an_array_is_a_copy_and_may_be_written_to(array: Any) -> None:
    found = unpack(pack(array))
    assert found.flags.writeable and found.flags.owndata


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalars_keep_their_type(dtype: str) -> None:
    value = np.dtype(dtype).type(1)
    found = unpack(pack({"x": value}))["x"]
    # NumPy's float64 is a float, so that msgpack, and openpi, write it as one.
    assert type(found) is (float if dtype == "<f8" else type(value)) and found == value


def test_bytes_are_those_of_openpi() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    # Written out by hand from openpi's msgpack_numpy.pack_array.
    theirs = msgpack.packb(
        {"a": {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": "<f4", b"shape": (2, 3)}}
    )
    assert pack({"a": array}) == theirs
    assert np.array_equal(unpack(theirs)["a"], array)
    ours = {"__ndarray__": True, "data": array.tobytes(), "dtype": "<f4", "shape": [2, 3]}
    assert np.array_equal(unpack(msgpack.packb({"a": ours}))["a"], array)  # as vla-eval writes it


@pytest.mark.parametrize("array", [np.array([object()]), np.array(["a"]), np.array([1j]), {1, 2}])
def test_nothing_else_is_sent(array: Any) -> None:
    with pytest.raises(FrameError, match="sent"):
        pack({"a": array})


def test_big_endian_arrays_are_sent_as_little_endian_ones() -> None:
    found = unpack(pack(np.array([1.5, 2], ">f4")))
    assert found.dtype.str == "<f4" and found.tolist() == [1.5, 2.0]


@pytest.mark.parametrize("what", hostile.STRUCTURED)
def test_hostile_frames_are_refused(what: str) -> None:
    with pytest.raises(FrameError):
        unpack(hostile.STRUCTURED[what])


def test_ten_thousand_hostile_frames_cause_nothing_but_errors() -> None:
    command = [sys.executable, str(HOSTILE), "7", "10000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = ast.literal_eval(done.stdout)
    assert found["events"] == []
    assert found["accepted"] < 3000  # most are no frames; some that were changed still are
