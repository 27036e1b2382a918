"""gguf_open against the gguf package's reader: the test models, and a model that is cut into parts here."""

import os
import subprocess
import zlib

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

BUILD = os.environ.get("TANDEM_BUILD")
MODELS = os.environ.get("TANDEM_MODELS")
pytestmark = pytest.mark.skipif(not BUILD, reason="TANDEM_BUILD names no build folder")

FILES = [
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "smollm2-135m-instruct-q4_1.gguf",
    "gemma-3-270m-q4_k_m.gguf",
]
NAMES = {
    "UINT8": "U8", "INT8": "I8", "UINT16": "U16", "INT16": "I16", "UINT32": "U32", "INT32": "I32",
    "UINT64": "U64", "INT64": "I64", "FLOAT32": "F32", "FLOAT64": "F64",
}


def tool(*args, **kw):
    program = os.path.join(BUILD, "tests", "golden", "gguf_tool")
    return subprocess.run([program, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)


def listing(path):
    out = tool("list", path)
    assert out.returncode == 0, out.stderr.decode()
    lines = [line.split("\t") for line in out.stdout.decode().splitlines()]
    return {kind: [line[1:] for line in lines if line[0] == kind] for kind in "FVT"}


def reader_value(field):
    """A field of the reader in the words of `gguf_tool list`."""
    names = [NAMES.get(t.name, t.name) for t in field.types]
    if names[0] == "ARRAY":
        raw, n = b"", 0
        parts = []
        for i in field.data:
            part = field.parts[i]
            if names[1] == "STRING":
                parts.append(np.array([len(part)], dtype="<u8").tobytes())
            parts.append(part.tobytes())
            n += 1
        raw = b"".join(parts)
        return names[0], f"{names[1]} {n} {zlib.crc32(raw):08x}"
    part = field.parts[field.data[0]]
    if names[0] == "STRING":
        return names[0], part.tobytes().hex()
    if names[0] in ("F32", "F64"):
        return names[0], float(part[0])
    return names[0], str(int(part[0]))


def compare(path, reader):
    got = listing(path)
    assert got["F"] == [[str(int(reader.fields["GGUF.version"].parts[0][0])), str(os.path.getsize(path))]]
    fields = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert [v[0] for v in got["V"]] == list(fields)
    for key, kind, value in got["V"]:
        want_kind, want = reader_value(fields[key])
        assert kind == want_kind, key
        assert (float(value) if isinstance(want, float) else value) == want, key
    assert len(got["T"]) == len(reader.tensors)
    start = reader.tensors[0].data_offset
    for (name, kind, dims, size, offset, head, tail), t in zip(got["T"], reader.tensors):
        raw = t.data.reshape(-1).view(np.uint8)
        assert name == t.name
        assert kind == t.tensor_type.name, name
        assert dims == "x".join(str(int(d)) for d in t.shape), name
        assert int(size) == t.n_bytes == raw.size, name
        assert int(offset) == t.data_offset - start, name
        assert head == raw[:16].tobytes().hex(), name
        assert tail == raw[-16:].tobytes().hex(), name


def same_rows(path, t, first, n):
    """Rows of a tensor, decoded by both; equal in every bit."""
    raw = t.data.reshape(-1).view(np.uint8)
    block, block_bytes = GGML_QUANT_SIZES[t.tensor_type]
    row = int(t.shape[0]) // block * block_bytes
    want = dequantize(raw[first * row:(first + n) * row].reshape(n, row), t.tensor_type)
    out = tool("rows", path, t.name, first, n)
    assert out.returncode == 0, out.stderr.decode()
    got = np.frombuffer(out.stdout, dtype=np.uint32)
    assert np.array_equal(got, np.ascontiguousarray(want).reshape(-1).view(np.uint32)), (t.name, first)


@pytest.fixture(scope="module", params=FILES)
def model(request):
    path = os.path.join(MODELS or "", request.param)
    if not MODELS or not os.path.exists(path):
        pytest.skip(f"no {request.param} in TANDEM_MODELS")
    return path, GGUFReader(path)


def test_model_values_and_tensors(model):
    compare(*model)


def test_model_rows(model):
    path, reader = model
    seen = set()
    # one tensor of every type, the embeddings, the last tensor; first, middle and last rows
    for t in reader.tensors:
        if t.tensor_type in seen and t.name != "token_embd.weight" and t is not reader.tensors[-1]:
            continue
        seen.add(t.tensor_type)
        n_rows = int(np.prod([int(d) for d in t.shape[1:]]))
        for first in sorted({0, n_rows // 2, max(n_rows - 2, 0)}):
            same_rows(path, t, first, min(2, n_rows - first))
    assert len(seen) >= 2


def write_parts(folder, n_parts, alignment=None):
    """A small model by the package's own writer, in one file and in parts as ggml's tool names them."""
    rng = np.random.default_rng(7)
    tensors = []
    for i in range(7):
        qtype = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.F32, GGMLQuantizationType.Q6_K)[i % 3]
        block, block_bytes = GGML_QUANT_SIZES[qtype]
        data = rng.integers(0, 120, (3 + i, 512 // block * block_bytes), dtype=np.uint8)
        if qtype == GGMLQuantizationType.F32:
            data = data.view(np.float32)
        tensors.append((f"blk.{i}.weight", data, qtype))

    def write(path, part, no, count):
        w = GGUFWriter(path, "llama")
        if alignment:
            w.add_custom_alignment(alignment)
        if no == 0:
            w.add_name("split test")
            w.add_array("some.words", ["a", "", "\u4e2d\u6587", "nul\0inside"])
            w.add_array("some.numbers", [1, -2, 3])
            w.add_float64("some.double", 1e300)
            w.add_key_value("some.bool", True, GGUFValueType.BOOL)
        if count > 1:
            w.add_uint16("split.no", no)
            w.add_uint16("split.count", count)
            w.add_int32("split.tensors.count", len(tensors))
        for name, data, qtype in part:
            w.add_tensor(name, data, raw_dtype=None if data.dtype == np.float32 else qtype)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    write(folder / "whole.gguf", tensors, 0, 1)
    step = -(-len(tensors) // n_parts)
    for no in range(n_parts):
        path = folder / f"cut-{no + 1:05d}-of-{n_parts:05d}.gguf"
        write(path, tensors[no * step:(no + 1) * step], no, n_parts)
    return [t[0] for t in tensors]


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_file_of_the_packages_writer(tmp_path, alignment):
    write_parts(tmp_path, 1, alignment)
    path = tmp_path / "whole.gguf"
    reader = GGUFReader(path)
    compare(path, reader)
    for t in reader.tensors:
        same_rows(path, t, 0, 3)


def test_parts_equal_the_whole(tmp_path):
    names = write_parts(tmp_path, 3)
    whole = listing(tmp_path / "whole.gguf")
    reader = GGUFReader(tmp_path / "whole.gguf")
    for no in range(3):
        path = tmp_path / f"cut-{no + 1:05d}-of-00003.gguf"
        got = listing(path)
        assert [t[0] for t in got["T"]] == names
        columns = (0, 1, 2, 3, 5, 6)  # all but the offset, which is the mapping's
        assert [[t[c] for c in columns] for t in got["T"]] == [[t[c] for c in columns] for t in whole["T"]]
        assert [v for v in got["V"] if not v[0].startswith("split.")] == whole["V"]
        assert int(got["F"][0][1]) == sum(os.path.getsize(tmp_path / f"cut-{k:05d}-of-00003.gguf")
                                          for k in (1, 2, 3))
        for t in reader.tensors:
            same_rows(path, t, 0, 3)


def test_missing_part_is_named(tmp_path):
    write_parts(tmp_path, 3)
    gone = tmp_path / "cut-00002-of-00003.gguf"
    gone.unlink()
    for no in (1, 3):
        out = tool("list", tmp_path / f"cut-{no:05d}-of-00003.gguf")
        words = out.stderr.decode()
        assert out.returncode == 1 and words.count("\n") == 1
        assert "part 2 of 3" in words and gone.name in words and "No such file" in words


def test_every_truncation_is_one_line(tmp_path):
    """A download that stopped anywhere: refused, and past the table it says how much is missing."""
    write_parts(tmp_path, 1)
    data = (tmp_path / "whole.gguf").read_bytes()
    reader = GGUFReader(tmp_path / "whole.gguf")
    last = reader.tensors[-1]
    end = last.data_offset + last.n_bytes
    first = min(t.data_offset for t in reader.tensors)
    cut = tmp_path / "cut.gguf"
    for n in [0, 3, 4, 20, 24, 25, 100, first - 40, first, first + 1, end - 1]:
        cut.write_bytes(data[:n])
        out = tool("list", cut)
        words = out.stderr.decode()
        assert out.returncode == 1 and words.count("\n") == 1, n
        assert "cut.gguf: " in words
        if n >= first:
            assert f"({end - n} missing)" in words and "blk." in words, words
