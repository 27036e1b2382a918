"""td_dequantize against the gguf package's dequantiser, bit for bit, on random and extreme blocks.

All bytes are random, scales included: subnormal, infinite and NaN half floats occur, and are forced
into a part of the blocks. The only freedom left is the payload of a NaN, which IEEE 754 leaves open:
where the package gives a NaN, any NaN will do; every other float must have the same 32 bits (the sign
of a zero included).
"""

import os
import struct
import subprocess

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

BUILD = os.environ.get("TANDEM_BUILD")
pytestmark = pytest.mark.skipif(not BUILD, reason="TANDEM_BUILD names no build folder")

# Where the half floats stand in a block; F16 is one throughout.
SCALES = {
    T.F32: [], T.F16: [0], T.BF16: [],
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ4_NL: [0], T.IQ4_XS: [0],
}
N_BLOCKS = 4096
# zeros, least and greatest subnormal, least normal, one, greatest, infinity, quiet and signalling NaN
HALVES = [0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x7C00, 0x7E00, 0x7C01]
HALVES += [h | 0x8000 for h in HALVES]


def decode(requests):
    """Floats of a list of (type, bytes) through the C decoder."""
    stdin = b""
    for qtype, data in requests:
        block, block_bytes = GGML_QUANT_SIZES[qtype]
        assert len(data) % block_bytes == 0
        stdin += struct.pack("<IQ", qtype, len(data) // block_bytes * block) + data
    tool = os.path.join(BUILD, "tests", "golden", "gguf_tool")
    out = subprocess.run([tool, "decode"], input=stdin, stdout=subprocess.PIPE, check=True)
    return np.frombuffer(out.stdout, dtype=np.float32)


def reference(qtype, data):
    block_bytes = GGML_QUANT_SIZES[qtype][1]
    blocks = np.frombuffer(data, dtype=np.uint8).reshape(-1, block_bytes)
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(dequantize(blocks, qtype)).reshape(-1)


def assert_same_bits(got, want, what):
    assert got.shape == want.shape, what
    bits_got, bits_want = got.view(np.uint32), want.view(np.uint32)
    bad = (bits_got != bits_want) & ~(np.isnan(got) & np.isnan(want))
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        pytest.fail(f"{what}: {int(bad.sum())} of {bad.size} values differ, the first at {i}: "
                    f"{got[i]!r} (0x{bits_got[i]:08x}), want {want[i]!r} (0x{bits_want[i]:08x})")


def test_all_types_are_covered():
    assert len(SCALES) == 15


@pytest.mark.parametrize("qtype", SCALES, ids=lambda t: t.name)
def test_random_blocks(qtype):
    rng = np.random.default_rng(1000 + qtype)
    block_bytes = GGML_QUANT_SIZES[qtype][1]
    data = rng.integers(0, 256, (N_BLOCKS, block_bytes), dtype=np.uint8).tobytes()
    assert_same_bits(decode([(qtype, data)]), reference(qtype, data), qtype.name)


@pytest.mark.parametrize("qtype", [t for t in SCALES if SCALES[t]], ids=lambda t: t.name)
def test_extreme_scales(qtype):
    rng = np.random.default_rng(2000 + qtype)
    block_bytes = GGML_QUANT_SIZES[qtype][1]
    combos = [(a, b) for a in HALVES for b in HALVES]
    blocks = rng.integers(0, 256, (len(combos) * 4, block_bytes), dtype=np.uint8)
    for i, block in enumerate(blocks):
        for offset, half in zip(SCALES[qtype], combos[i % len(combos)]):
            block[offset:offset + 2] = np.array([half], dtype="<u2").view(np.uint8)
    # the extremes of what a scale is multiplied with, too
    flat = blocks.copy()
    for fill, row in zip((0x00, 0xFF, 0x80, 0x7F), range(0, len(flat), len(combos))):
        part = flat[row:row + len(combos)]
        keep = [o + k for o in SCALES[qtype] for k in (0, 1)]
        rest = [k for k in range(block_bytes) if k not in keep]
        part[:, rest] = fill
    for what, b in (("random", blocks), ("flat", flat)):
        data = b.tobytes()
        assert_same_bits(decode([(qtype, data)]), reference(qtype, data), f"{qtype.name}, {what}")


def test_every_half_and_every_bfloat():
    every = np.arange(65536, dtype="<u2").tobytes()
    for qtype in (T.F16, T.BF16):
        assert_same_bits(decode([(qtype, every)]), reference(qtype, every), qtype.name)


def test_a_wrong_bit_is_seen():
    """The comparison itself: one flipped bit of a scale must not pass."""
    rng = np.random.default_rng(3)
    data = bytearray(rng.integers(0, 256, 144 * 8, dtype=np.uint8).tobytes())
    data[0:2] = struct.pack("<H", 0x3C00)
    want = reference(T.Q4_K, bytes(data))
    data[0] ^= 1
    with pytest.raises(pytest.fail.Exception):
        assert_same_bits(decode([(T.Q4_K, bytes(data))]), want, "planted")
