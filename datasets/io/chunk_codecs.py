"""What a Zarr chunk is decompressed by: the standard library, or the numcodecs package.

A damaged chunk is not let to say how much memory it needs: every decoder is told how many bytes
there should be. numcodecs' decoders are C, which checks less than it should: what they are handed
is checked here, and they are called in a separate process (``sandbox.py``).
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable

import numpy as np

from trimtab.errors import TrimtabError

__all__ = ["IN_NUMCODECS", "STANDARD", "Decoder", "numcodecs_decoder"]

Decoder = Callable[[bytes, int], bytes]
"""Takes compressed bytes and the size wanted; returns that many, or others where damaged."""

_LZMA_BYTES = 1 << 30  # of memory that a damaged header may ask for
_MOST_BYTES = (1 << 31) - 1  # of a chunk: what Blosc and LZ4 can state


def _inflate(bits: int) -> Decoder:
    return lambda data, size: zlib.decompressobj(wbits=bits).decompress(data, size + 1)


STANDARD: dict[str, Decoder] = {
    "zlib": _inflate(zlib.MAX_WBITS),
    "gzip": _inflate(16 + zlib.MAX_WBITS),
    "bz2": lambda data, size: bz2.BZ2Decompressor().decompress(data, size + 1),
    "lzma": lambda data, size: lzma.LZMADecompressor(memlimit=_LZMA_BYTES).decompress(
        data, size + 1
    ),
}
"""By the name of the compressor; what is longer than wanted comes back one byte too long."""


def _check_blosc(data: bytes, size: int) -> None:
    """The header: four bytes, then the sizes of the raw bytes, of a block, and of the whole."""
    if len(data) < 16:
        raise ValueError("a Blosc chunk without its header of 16 bytes")
    raw, _, whole = struct.unpack_from("<III", data, 4)
    if raw != size:
        raise ValueError(f"its Blosc header states {raw} bytes, expected {size}")
    if whole != len(data):
        raise ValueError(f"its Blosc header states {whole} stored bytes, there are {len(data)}")


def _check_lz4(data: bytes, size: int) -> None:
    """The size stands before the block; numcodecs puts it there."""
    stated = int.from_bytes(data[:4], "little")
    if len(data) < 4 or stated != size:
        raise ValueError(f"its LZ4 header states {stated} bytes, expected {size}")


def _check_nothing(data: bytes, size: int) -> None:
    """Zstandard's own decoder compares what a frame states with the memory that it is given."""


IN_NUMCODECS: dict[str, Callable[[bytes, int], None]] = {
    "blosc": _check_blosc,
    "lz4": _check_lz4,
    "zstd": _check_nothing,
}
"""By the name of the compressor: what raises ValueError before a damaged chunk is decoded."""


def numcodecs_decoder(codec: str, where: str) -> Decoder:
    """Return the decoder for one of ``IN_NUMCODECS``; ``where`` opens the message.

    Raises:
        TrimtabError: if numcodecs cannot be imported.
    """
    try:
        from numcodecs import blosc, lz4, zstd
    except ImportError as error:
        raise TrimtabError(
            f"{where}: compressed with {codec}, which needs numcodecs: pip install 'trimtab[zarr]'"
        ) from error
    decompress = {"blosc": blosc, "lz4": lz4, "zstd": zstd}[codec].decompress
    check = IN_NUMCODECS[codec]

    def decode(data: bytes, size: int) -> bytes:
        if not 0 < size <= _MOST_BYTES:
            raise ValueError(f"a chunk of {size} bytes cannot be compressed with {codec}")
        check(data, size)
        blosc.use_threads = False  # a forked process has none of its parent's
        target = np.empty(size, np.uint8)
        decompress(data, target)
        return target.tobytes()

    return decode
