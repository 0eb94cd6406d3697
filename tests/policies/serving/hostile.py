"""Frames of a careless or hostile client: structured ones, mutated valid ones, and noise."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator
from typing import Any

import msgpack

FORBIDDEN = (
    "pickle.find_class", "marshal.loads", "exec", "compile", "import", "os.system", "os.exec",
    "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "ctypes.dlopen",
)  # fmt: skip
"""Audit events that no frame may cause."""


def array(dtype: Any = "<f4", shape: Any = (3,), data: Any = b"\0" * 12, **more: Any) -> Any:
    """A map that says that it is an array."""
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape, **more}


def nested(depth: int) -> bytes:
    """A list in a list in a list."""
    return b"\x91" * depth + b"\xc0"


STRUCTURED: dict[str, bytes] = {
    "objects": msgpack.packb({"obs": array("|O", (3,), b"A" * 24)}),
    "void": msgpack.packb({"obs": array("|V8", (3,), b"A" * 24)}),
    "huge void": msgpack.packb({"obs": array("V1000000000", (0,), b"")}),
    "record": msgpack.packb({"obs": array("f4,O", (1,), b"A" * 12)}),
    "complex": msgpack.packb({"obs": array("<c8", (1,), b"A" * 8)}),
    "text": msgpack.packb({"obs": array("<U4", (1,), b"A" * 16)}),
    "big endian": msgpack.packb({"obs": array(">f4", (3,))}),
    "type is bytes": msgpack.packb({"obs": array(b"<f4", (3,))}),
    "type is a list": msgpack.packb({"obs": array(["<f4"], (3,))}),
    "minus one": msgpack.packb({"obs": array(shape=(-1,))}),
    "overflow": msgpack.packb({"obs": array(shape=(2**32, 2**32, 2**32))}),
    "overflow to equal": msgpack.packb({"obs": array(shape=(2**62 + 3,))}),
    "empty and vast": msgpack.packb({"obs": array(shape=(0, 2**62, 2**62), data=b"")}),
    "longer": msgpack.packb({"obs": array(data=b"\0" * 13)}),
    "shorter": msgpack.packb({"obs": array(data=b"\0" * 8)}),
    "six axes": msgpack.packb({"obs": array(shape=(1,) * 5 + (3,))}),
    "shape of truth": msgpack.packb({"obs": array(shape=(True, 3))}),
    "shape of floats": msgpack.packb({"obs": array(shape=(3.0,))}),
    "shape is a number": msgpack.packb({"obs": array(shape=3)}),
    "data is text": msgpack.packb({"obs": array(data="\0" * 12)}),
    "truth of twos": msgpack.packb({"obs": array("|b1", (2,), b"\0\2")}),
    "not true": msgpack.packb({"obs": {**array(), b"__ndarray__": 1}}),
    "more entries": msgpack.packb({"obs": array(more=1)}),
    "fewer entries": msgpack.packb({"obs": {b"__ndarray__": True, b"data": b""}}),
    "scalar of objects": msgpack.packb({b"__npgeneric__": True, b"data": 1, b"dtype": "|O"}),
    "scalar too large": msgpack.packb({b"__npgeneric__": True, b"data": 256, b"dtype": "|u1"}),
    "scalar rounded": msgpack.packb({b"__npgeneric__": True, b"data": 0.1, b"dtype": "<f4"}),
    "depth 7": nested(7),
    "depth 1024": nested(1024),
    "depth 1025": nested(1025),
    "depth 100000": nested(100_000),
    "key twice": b"\x82\xa1a\x01\xa1a\x02",
    "key twice, as bytes": b"\x82\xa1a\x01\xc4\x01a\x02",
    "NaN is a key": b"\x81\xcb" + struct.pack(">d", float("nan")) + b"\x01",
    "number is a key": b"\x81\x01\x01",
    "key beyond ASCII": b"\x81\xc4\x01\xff\x01",
    "extension": msgpack.packb({"obs": msgpack.ExtType(5, b"abc")}),
    "time stamp": msgpack.packb({"obs": msgpack.Timestamp(1, 2)}),
    "time stamp alone": msgpack.packb(msgpack.Timestamp(1, 2)),
    "four billion entries": b"\xdd\xff\xff\xff\xff",
    "four billion keys": b"\xdf\xff\xff\xff\xff",
    "four billion bytes": b"\xc6\xff\xff\xff\xff",
    "257 entries": msgpack.packb([0] * 257),
    "600 lists": msgpack.packb([[[]] * 200] * 3),
    "bad UTF-8": b"\xa2\xc3\x28",
    "bytes left over": b"\xc0\xc0",
    "reserved byte": b"\xc1",
    "nothing": b"",
}
"""Frames that a decoder must refuse, by what is wrong with them."""

_INTERESTING = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xC1, 0xC4, 0xC6, 0xC7, 0xC9, 0xD4, 0xDC, 0xDD,
                0xDE, 0xDF, 0xFF)  # fmt: skip
_DTYPES = ("|O", "<f4", "<f8", "|V9", "O", "f4,O", "<U1", "<M8[s]", "object", "", ">i4", "|b1")


def frames(seed: int, count: int) -> Iterator[bytes]:
    """Yield hostile frames, the same ones for the same seed; a few may be valid by chance."""
    draw = random.Random(seed)
    known = list(STRUCTURED.values())
    valid = msgpack.packb(
        {"obs": array(shape=(1, 3)), "noise": array(shape=(3, 1)), "tick": 3, "deadline_ms": 4.0}
    )
    for _ in range(count):
        choice = draw.random()
        if choice < 0.15:
            yield draw.choice(known)
        elif choice < 0.3:
            yield draw.randbytes(draw.randrange(64))
        elif choice < 0.5:
            yield msgpack.packb(_drawn(draw, 4))
        else:
            yield _mutated(draw, valid if choice < 0.85 else draw.choice(known)[:4000])


def _mutated(draw: random.Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed) + 1)
        match draw.randrange(4):
            case 0:
                del changed[place : place + draw.randint(1, 8)]
            case 1:
                changed[place:place] = draw.randbytes(draw.randint(1, 8))
            case 2:
                changed[place:place] = bytes([draw.choice(_INTERESTING)])
            case _:
                changed[place : place + 1] = bytes([draw.choice(_INTERESTING)])
    return bytes(changed)


def _drawn(draw: random.Random, depth: int) -> Any:
    """A value of any form, often one that says that it is an array."""
    if draw.random() < 0.4:
        shape = [draw.choice((0, 1, 3, -1, 2**31, 2**63)) for _ in range(draw.randrange(7))]
        return array(draw.choice(_DTYPES), shape, draw.randbytes(draw.choice((0, 3, 4, 12))))
    if depth == 0 or draw.random() < 0.3:
        return draw.choice((None, True, -1, 2**63, 1e308, float("nan"), "text", b"bytes", ""))
    if draw.random() < 0.4:
        return [_drawn(draw, depth - 1) for _ in range(draw.randrange(5))]
    keys = ("obs", "noise", "tick", "deadline_ms", "endpoint", "contract_sha", "type", "seq")
    return {
        draw.choice((draw.choice(keys), draw.randbytes(2))): _drawn(draw, depth - 1)
        for _ in range(draw.randrange(6))
    }


def main() -> None:
    """Decode hostile frames in this process, and print what happened meanwhile.

    Words: seed and count.
    """
    from trimtab.policies.serving.codec import FrameError, pack, unpack

    def decoded(frame: bytes) -> bool:
        try:
            unpack(frame)
        except FrameError:
            return False
        return True

    seed, count = map(int, sys.argv[1:])
    batch = list(frames(seed, count))
    good = pack({"obs": 1.0})
    for frame in STRUCTURED.values():  # so that what is imported at first use is there
        decoded(frame)
    events: list[str] = []
    watching = True

    def watch(event: str, arguments: Any) -> None:
        if watching and (event in FORBIDDEN or (event == "open" and arguments[1] != "r")):
            events.append(event)

    sys.addaudithook(watch)
    accepted = sum(map(decoded, batch))
    assert decoded(good)
    watching = False
    print({"accepted": accepted, "events": events})


if __name__ == "__main__":
    main()
