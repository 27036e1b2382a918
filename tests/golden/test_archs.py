"""What the four real files do not show: small random models of every architecture, with head sizes that are no
multiple of 16, different sizes of K and V, biases, soft caps, scaled RoPE of all kinds, windows by pattern, heads and
widths that change from layer to layer, and matrices of all 15 types, against a float64 pass written here from the
papers. With float weights and an FP32 cache nothing is rounded but float32 sums, so the bar is tight."""

import math
import os
import pathlib
import platform
import subprocess
import sys

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
import reference  # noqa: E402

BUILD = os.environ.get("TANDEM_BUILD")
pytestmark = pytest.mark.skipif(not BUILD, reason="TANDEM_BUILD names no build folder")
LOWER = "avx2" if platform.machine() == "x86_64" else "ref"  # a level below the machine's
N = 150  # positions: past every window here, and five pages

# ---- a random file ----

BASE = {
    "arch": "llama", "layers": 3, "embd": 48, "ff": 72, "heads": 6, "kv": 2, "k": None, "v": None, "vocab": 101,
    "type": T.F32, "embd_type": T.F32, "bias": (), "tied": True, "keys": {}, "factors": None, "ctx": 4096,
}


def per_layer(value, n):
    return list(value) if isinstance(value, (list, tuple)) else [value] * n


def at_random(rng, type_, n_out, n_in):
    """Bytes of a matrix of the type with deviation about 1/sqrt(n_in). gguf quantises the old types; of the K and IQ4
    ones any bytes are valid, and only the scales have to be made sane."""
    want = 1 / math.sqrt(n_in)
    if type_ not in (T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS):
        return quantize(rng.normal(0, want, (n_out, n_in)).astype(np.float32), type_)
    block, n_bytes = GGML_QUANT_SIZES[type_]
    raw = rng.integers(0, 256, (n_out, n_in // block, n_bytes), dtype=np.uint8)
    halves = {T.Q2_K: (80, 82), T.Q3_K: (108,), T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,), T.IQ4_NL: (0,), T.IQ4_XS: (0,)}

    def scaled(d, minimum):
        for i, at in enumerate(halves[type_]):
            spread = rng.uniform(0.5, 1.5, raw.shape[:2])
            raw[..., at : at + 2] = (spread * (minimum if i else d)).astype("<f2")[..., None].view(np.uint8)
        return raw.reshape(n_out, -1)

    # With a minimum (its share grows with the quants' range) the values should come out about zero.
    d = want / dequantize(scaled(1.0, 0.0), type_).std()
    whole = dequantize(scaled(d, 0.0), type_).mean()
    per_min = dequantize(scaled(0.0, 1.0), type_).mean() if len(halves[type_]) > 1 else -1.0
    return scaled(d, -whole / per_min if len(halves[type_]) > 1 else 0.0).copy()


def write(path, spec, seed=1):
    s = {**BASE, **spec}
    rng = np.random.default_rng(seed)
    n_layers, embd = s["layers"], s["embd"]
    heads, kv, ff = (per_layer(s[x], n_layers) for x in ("heads", "kv", "ff"))
    head_k = s["k"] or embd // heads[0]
    head_v = s["v"] or embd // heads[0]
    w = gguf.GGUFWriter(path, s["arch"])
    w.add_block_count(n_layers)
    w.add_context_length(s["ctx"])
    w.add_embedding_length(embd)
    w.add_feed_forward_length(s["ff"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(s["vocab"])
    if s["k"]:
        w.add_key_length(head_k)
    if s["v"]:
        w.add_value_length(head_v)
    for key, value in s["keys"].items():
        key = f"{s['arch']}.{key}"
        if isinstance(value, list):
            w.add_array(key, value)
        elif isinstance(value, str):
            w.add_string(key, value)
        elif isinstance(value, float):
            w.add_float32(key, value)
        else:
            w.add_uint32(key, value)

    def matrix(name, n_out, n_in, type_=None):
        type_ = s["type"] if type_ is None else type_
        w.add_tensor(name + ".weight", at_random(rng, type_, n_out, n_in), raw_dtype=type_)
        if name.rsplit(".")[-1] in s["bias"]:
            w.add_tensor(name + ".bias", rng.normal(0, 0.3, n_out).astype(np.float32))

    def norm(name, n):
        w.add_tensor(name + ".weight", (1 + 0.3 * rng.normal(0, 1, n)).astype(np.float32))

    matrix("token_embd", s["vocab"], embd, s["embd_type"])
    if not s["tied"]:
        matrix("output", s["vocab"], embd)
    norm("output_norm", embd)
    if s["factors"] is not None:
        w.add_tensor("rope_freqs.weight", np.asarray(s["factors"], dtype=np.float32))
    for l in range(n_layers):
        p = f"blk.{l}."
        norm(p + "attn_norm", embd)
        norm(p + "ffn_norm", embd)
        matrix(p + "attn_q", heads[l] * head_k, embd)
        matrix(p + "attn_k", kv[l] * head_k, embd)
        matrix(p + "attn_v", kv[l] * head_v, embd)
        matrix(p + "attn_output", embd, heads[l] * head_v)
        matrix(p + "ffn_gate", ff[l], embd)
        matrix(p + "ffn_up", ff[l], embd)
        matrix(p + "ffn_down", embd, ff[l])
        if s["arch"] in ("qwen3", "gemma3"):
            norm(p + "attn_q_norm", head_k)
            norm(p + "attn_k_norm", head_k)
        if s["arch"] == "gemma3":
            norm(p + "post_attention_norm", embd)
            norm(p + "post_ffw_norm", embd)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return s, heads, kv, head_k, head_v


# ---- the pass, in float64 ----


def frequencies(s, n_rot, base, scaled):
    """(radians a position for each pair, what cos and sin are multiplied with)"""
    k = s["keys"]
    freq = base ** (-np.arange(0, n_rot, 2) / n_rot)
    if not scaled:
        return freq, 1.0
    if s["factors"] is not None:
        freq = freq / np.asarray(s["factors"], dtype=np.float32).astype(np.float64)
    factor = k.get("rope.scaling.factor", k.get("rope.scale_linear", 1.0))
    if k.get("rope.scaling.type") != "yarn":
        return freq / factor, 1.0
    # YaRN: waves that turn more than 32 times in the original context stay, those that turn less than once are
    # stretched, a ramp over the dimensions between. Queries and keys grow by 0.1 ln(factor) + 1.
    length = k.get("rope.scaling.original_context_length", s["ctx"])

    def dim_of(turns):
        return n_rot * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(dim_of(32)), 0), min(math.ceil(dim_of(1)), n_rot - 1)
    stretched = np.clip((np.arange(n_rot // 2) - low) / max(high - low, 0.001), 0, 1)
    size = (0.1 * math.log(factor) + 1) * k.get("rope.scaling.attn_factor", 1.0)
    return freq * (1 - stretched) + freq / factor * stretched, size


def rotate(x, n_rot, freq, size, interleaved):
    angle = np.arange(len(x))[:, None, None] * freq
    turn = np.exp(1j * angle) * size
    a, b = (x[..., 0:n_rot:2], x[..., 1:n_rot:2]) if interleaved else (x[..., : n_rot // 2], x[..., n_rot // 2 : n_rot])
    z = (a + 1j * b) * turn
    out = x.copy()
    if interleaved:
        out[..., 0:n_rot:2], out[..., 1:n_rot:2] = z.real, z.imag
    else:
        out[..., : n_rot // 2], out[..., n_rot // 2 : n_rot] = z.real, z.imag
    return out


def windowed(s, l):
    pattern = s["keys"].get("attention.sliding_window_pattern")
    if "attention.sliding_window" not in s["keys"] and s["arch"] != "gemma3":
        return False
    if isinstance(pattern, list):
        return pattern[l]
    if pattern is None:
        pattern = {"gemma3": 6, "llama": 0}.get(s["arch"], 1)
    return pattern == 0 or (l + 1) % pattern != 0


class Int8Inputs(reference.Model):
    """Weights and products of a file; quantised matrices meet inputs rounded as Tandem rounds them: 8 bits, and a
    scale for every 32 values."""

    def __init__(self, path):
        self.path, self.reader = path, gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}

    def project(self, x, name):
        if self.tensors[name + ".weight"].tensor_type not in (T.F32, T.F16, T.BF16):
            blocks = x.reshape(len(x), -1, 32)
            step = np.abs(blocks).max(-1, keepdims=True) / 127
            x = (np.rint(blocks / np.where(step > 0, step, 1)) * step).reshape(x.shape)
        return super().project(x, name)


def expected(path, made, ids):
    s, heads, kv, head_k, head_v = made
    m = Int8Inputs(path)
    keys, gemma, n = s["keys"], s["arch"] == "gemma3", len(ids)
    n_rot = keys.get("rope.dimension_count", head_k)
    scale = keys.get("attention.scale", head_k**-0.5)
    cap, final_cap = keys.get("attn_logit_softcapping"), keys.get("final_logit_softcapping")
    norm = lambda y, name: reference.rms_norm(y, m.weight(name + ".weight"), np.float64(np.float32(1e-5)))

    x = m.weight("token_embd.weight", np.asarray(ids)) * (math.sqrt(s["embd"]) if gemma else 1)
    for l in range(s["layers"]):
        p, local = f"blk.{l}.", windowed(s, l)
        base = keys.get("rope.freq_base", 10000.0)
        if local:
            base = keys.get("rope.freq_base_swa", 10000.0 if gemma else base)
        freq, size = frequencies(s, n_rot, base, not (gemma and local))
        h = norm(x, p + "attn_norm")
        q = m.project(h, p + "attn_q").reshape(n, heads[l], head_k)
        k = m.project(h, p + "attn_k").reshape(n, kv[l], head_k)
        v = m.project(h, p + "attn_v").reshape(n, kv[l], head_v)
        if s["arch"] in ("qwen3", "gemma3"):
            q, k = norm(q, p + "attn_q_norm"), norm(k, p + "attn_k_norm")
        q, k = (rotate(y, n_rot, freq, size, s["arch"] == "llama") for y in (q, k))
        back = np.arange(n)[:, None] - np.arange(n)[None, :]
        seen = (back >= 0) & (back < (keys.get("attention.sliding_window", 512) if local else n))
        mixed = np.empty((n, heads[l], head_v))
        for head in range(heads[l]):
            g = head // (heads[l] // kv[l])
            scores = q[:, head] @ k[:, g].T * scale
            if cap:
                scores = cap * np.tanh(scores / cap)
            mixed[:, head] = reference.softmax(np.where(seen, scores, -np.inf)) @ v[:, g]
        h = m.project(mixed.reshape(n, -1), p + "attn_output")
        x = x + (norm(h, p + "post_attention_norm") if gemma else h)
        h = norm(x, p + "ffn_norm")
        gate, up = m.project(h, p + "ffn_gate"), m.project(h, p + "ffn_up")
        if gemma:
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        h = m.project(gate * up, p + "ffn_down")
        x = x + (norm(h, p + "post_ffw_norm") if gemma else h)
    y = m.project(norm(x, "output_norm"), "token_embd" if s["tied"] else "output")
    return final_cap * np.tanh(y / final_cap) if final_cap else y


# ---- the comparison ----


def tool(name, *args, ids, **env):
    program = os.path.join(BUILD, "tests", "golden", name)
    out = subprocess.run([program, *map(str, args)], input=np.asarray(ids, dtype="<i4").tobytes(),
                         env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    assert out.returncode == 0, out.stderr.decode()
    return out.stdout


def differences(path, spec, kv="f32"):
    """The largest difference of a logit at each position, in deviations of the logits; and the ids."""
    made = write(path, spec)
    ids = np.random.default_rng(2).integers(0, made[0]["vocab"], N)
    got = np.frombuffer(tool("logits_tool", path, 2, 37, kv, ids=ids), dtype="<f4").reshape(N, -1)
    want = expected(path, made, ids)
    assert got.shape == want.shape
    return np.abs(got - want).max(-1) / want.std(), ids


ALL_BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output")
CASES = {
    "llama": {},
    "llama with everything": {
        "k": 10, "v": 14, "bias": ALL_BIASES, "tied": False, "factors": [1, 1.5, 4, 8],
        "keys": {"rope.dimension_count": 8, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 7.0,
                 "attention.scale": 0.4, "rope.freq_base": 500000.0}},
    "llama, layers of their own": {"heads": [6, 2, 4], "kv": [3, 1, 2], "ff": [72, 40, 8], "k": 8, "v": 22},
    "llama, one KV head": {"heads": 7, "kv": 1, "k": 6, "v": 6, "keys": {"rope.scale_linear": 3.0}},
    "llama, windows in all layers": {"keys": {"attention.sliding_window": 40}},
    "llama, windows by pattern": {"keys": {"attention.sliding_window": 9, "attention.sliding_window_pattern": [True, False, True]}},
    "llama, yarn": {"k": 16, "keys": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                                      "rope.scaling.original_context_length": 64}},
    "qwen2": {"arch": "qwen2", "bias": ("attn_q", "attn_k", "attn_v"), "tied": False},
    "qwen2, yarn": {"arch": "qwen2", "k": 32, "keys": {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 2000,
        "rope.scaling.attn_factor": 1.3, "rope.freq_base": 1000000.0}},
    "qwen3": {"arch": "qwen3", "embd": 40, "heads": 4, "kv": 4, "k": 12, "v": 20},
    "gemma3": {"arch": "gemma3", "layers": 7, "k": 20, "v": 12, "keys": {
        "attention.sliding_window": 33, "rope.freq_base": 1000000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}},
    "gemma3, another pattern": {"arch": "gemma3", "layers": 6, "keys": {
        "attention.sliding_window": 64, "attention.sliding_window_pattern": 3, "rope.freq_base_swa": 700.0}},
    "half precision": {"type": T.F16, "embd_type": T.F16, "embd": 36, "tied": False},
    "bfloat": {"type": T.BF16, "embd_type": T.BF16},
}


@pytest.mark.parametrize("name", list(CASES))
def test_float_weights(name, tmp_path):
    path = str(tmp_path / "m.gguf")
    difference, ids = differences(path, CASES[name])
    print(f"{name}: {difference.max():.1e}")
    assert difference.max() < 5e-5
    # and the rows agree among themselves, bit for bit
    assert tool("rows_tool", path, 2, "f16", ids=ids) == tool("rows_tool", path, 1, "f16", ids=ids, TANDEM_CPU=LOWER)


@pytest.mark.parametrize("type_", [T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.IQ4_NL, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_XS],
                         ids=lambda t: t.name)
def test_quantised_weights(type_, tmp_path):
    """Here and there float32 and float64 round an input to different integers, and then that position and those that
    see it part by a few hundredths. Before that happens the two agree to the last digits, and a wrong bit in a panel
    would show everywhere."""
    k_quant = GGML_QUANT_SIZES[type_][0] == 256
    path = str(tmp_path / "m.gguf")
    difference, ids = differences(path, {"type": type_, "embd_type": type_, "layers": 1,
                                   **({"embd": 256, "ff": 512, "heads": 8} if k_quant else {"embd": 96, "ff": 160})})
    print(f"{type_.name}: {np.quantile(difference, 0.1):.1e}, at worst {difference.max():.1e}")
    assert np.quantile(difference, 0.1) < 5e-5 and difference.max() < 0.15
    assert tool("rows_tool", path, 2, "f16", ids=ids) == tool("rows_tool", path, 1, "f16", ids=ids, TANDEM_CPU="ref")


def test_the_bar_can_fail(tmp_path):
    """One key less obeyed, here in what is expected, shows."""
    path = str(tmp_path / "m.gguf")
    for forgotten, case in (("attn_logit_softcapping", "llama with everything"), ("rope.scaling.factor", "gemma3"),
                            ("rope.scaling.attn_factor", "qwen2, yarn"), ("attention.sliding_window", "llama, windows by pattern")):
        made = write(path, CASES[case])
        ids = np.random.default_rng(2).integers(0, made[0]["vocab"], N)
        got = np.frombuffer(tool("logits_tool", path, 2, 37, "f32", ids=ids), dtype="<f4").reshape(N, -1)
        without = {k: v for k, v in made[0]["keys"].items() if k != forgotten}
        want = expected(path, ({**made[0], "keys": without}, *made[1:]), ids)
        assert np.abs(got - want).max() / want.std() > 2e-3
