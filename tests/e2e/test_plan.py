"""tandem plan: its figures against ones computed here, from the file's own keys and tensors by the gguf package; its text,
its JSON and what it refuses. What it measures is never checked: the machine is shared.

Needs TANDEM_BUILD (a build folder); rows with a file need TANDEM_MODELS.
"""
import json
import math
import re
import signal
import subprocess
import time

import gguf
import numpy as np
import pytest

from cli_common import QWEN, SMOL, TANDEM, model, needs_build, tandem
from test_bad_input import check

pytestmark = needs_build
GEMMA = "gemma-3-270m-q4_k_m.gguf"
MACHINE = ["--ram", "16GB", "--bandwidth", "50GB/s", "--flops", "2TFLOPS"]
B, RATE, RAM = 50e9, 1e12, 16e9
LLAMA_8B = ["--params", "8B", "--bits", "4.5", "--layers", "32", "--kv-heads", "8", "--head-dim", "128"]
BITS = {"f16": 16, "q8_0": 8.5, "q4_0": 4.5}


def text(*args, **more):
    """What it prints for people: complete, within 80 columns, nothing on standard error."""
    result = tandem("plan", *args, **more)
    assert result.returncode == 0, result.stderr.decode()
    assert not result.stderr
    out = result.stdout.decode()
    assert all(len(line) < 80 for line in out.splitlines()), out
    return out


def figures(*args, **more):
    result = tandem("plan", *args, "--format", "json", **more)
    assert result.returncode == 0, result.stderr.decode()
    assert not result.stderr
    return json.loads(result.stdout)


class Model:
    """Bytes and multiply-adds of a file, layer by layer."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        key = {name: field.contents() for name, field in reader.fields.items()}
        arch = key["general.architecture"]
        tensors = {t.name: t for t in reader.tensors}
        assert not any(t.tensor_type in (0, 1, 30) and len(t.shape) > 1 for t in reader.tensors)  # no float matrices
        self.weights = sum(int(t.n_bytes) for t in reader.tensors)
        untied = "output.weight" in tensors
        self.step = self.weights - (int(tensors["token_embd.weight"].n_bytes) if untied else 0)
        self.prefill_macs = sum(int(np.prod(t.shape)) for n, t in tensors.items() if re.fullmatch(r"blk\.\d+\.(attn|ffn)_"
                                r"(q|k|v|output|gate|up|down)\.weight", n))
        output = tensors["output.weight" if untied else "token_embd.weight"]
        self.macs = self.prefill_macs + int(np.prod(output.shape))
        heads = key[f"{arch}.attention.head_count"]
        self.kv_heads = key[f"{arch}.attention.head_count_kv"]
        self.group = heads // self.kv_heads
        self.dim = key.get(f"{arch}.attention.key_length", key[f"{arch}.embedding_length"] // heads)
        window = key.get(f"{arch}.attention.sliding_window", math.inf)
        self.windows = [window if window != math.inf and (layer + 1) % 6 else math.inf
                        for layer in range(key[f"{arch}.block_count"])]

    def values(self, n):
        """Of K and V, behind n positions."""
        return sum(2 * self.kv_heads * self.dim * min(n, w) for w in self.windows)

    def read_ms(self, n, bits=16, streams=1):
        return 1e3 * (self.step + streams * self.values(n) * bits / 8) / B

    def arithmetic_ms(self, n, rows=1):
        return 1e3 * rows * (self.macs + self.group * self.values(n)) / RATE

    def ms(self, n, bits=16, streams=1, rows=1):
        return max(self.read_ms(n, bits, streams), self.arithmetic_ms(n, streams * rows))


@pytest.mark.parametrize("name", [SMOL, QWEN, GEMMA])
def test_a_file(name):
    path = model(name)
    m = Model(path)
    r = figures("-m", path, *MACHINE, "-c", "3000", "--prompt-tokens", "700", "--answer-tokens", "50", "-ctv", "q8_0")
    t = r["target"]
    assert (t["weight_bytes"], t["step_bytes"], t["macs"], t["prefill_macs"]) == (
        m.weights, m.step, m.macs, m.prefill_macs)
    assert r["draft"] is None and r["speculation"] is None
    free = RAM - m.weights
    assert r["memory"]["free_bytes"] == free and r["memory"]["context"] == 3000
    for c in r["memory"]["kv"]:
        bits = BITS[c["type"]]
        assert c["bytes_at_context"] == pytest.approx(m.values(3000) * bits / 8)
        n = c["longest_context"]
        assert m.values(n) * bits / 8 <= free < m.values(n + 1) * bits / 8
    bits = (16 + 8.5) / 2
    s = r["speed"]
    assert s["decode_tok_per_s_empty"] == pytest.approx(1e3 / m.ms(0))
    assert s["decode_tok_per_s_full"] == pytest.approx(1e3 / m.ms(3000, bits))
    attention = m.group * sum(m.values(i) for i in range(1, 701))
    prefill = max(m.read_ms(0), 1e3 * (700 * m.prefill_macs + attention) / RATE)
    answer = sum(m.ms(700 + i + 0.5, bits) for i in range(50))
    assert s["prefill_ms"] == pytest.approx(prefill)
    assert s["answer_ms"] == pytest.approx(answer, rel=1e-6)
    assert s["total_ms"] == pytest.approx(prefill + answer, rel=1e-6)
    assert s["prefill_tok_per_s"] == pytest.approx(7e5 / prefill)
    assert [b["streams"] for b in r["batch"]["batches"]] == [1, 2, 4, 8, 16, 32]
    for b in r["batch"]["batches"]:
        n = b["streams"]
        assert b["read_ms"] == pytest.approx(m.read_ms(3000, bits, n))
        assert b["arithmetic_ms"] == pytest.approx(m.arithmetic_ms(3000, n))
        assert b["tok_per_s"] == pytest.approx(1e3 * n / m.ms(3000, bits, n))
        assert b["tok_per_s_a_stream"] == pytest.approx(b["tok_per_s"] / n)
        assert b["limit"] == ("arithmetic" if m.arithmetic_ms(3000, n) > m.read_ms(3000, bits, n) else "bandwidth")
        assert b["fits"] == (n * m.values(3000) * bits / 8 <= free)
    turn = next((n for n in range(1, 10000) if m.arithmetic_ms(3000, n) >= m.read_ms(3000, bits, n)), None)
    assert r["batch"]["arithmetic_from_streams"] == turn


def test_a_draft():
    """Every length at every batch, and the best of them."""
    target, draft = model(QWEN), model(SMOL)  # the vocabularies differ: a plan does not look at them
    t, d = Model(target), Model(draft)
    r = figures("-m", target, "-md", draft, "--acceptance", "0.7", *MACHINE)
    assert r["memory"]["free_bytes"] == RAM - t.weights - d.weights
    spec = r["speculation"]
    assert spec["acceptance"] == 0.7
    expected = [sum(0.7 ** i for i in range(k + 1)) for k in range(1, 9)]
    assert spec["tokens_a_pass"] == pytest.approx(expected)
    assert [b["streams"] for b in spec["batches"]] == [1, 4, 16]
    for b in spec["batches"]:
        n = b["streams"]
        plain, c = t.ms(4096, streams=n), d.ms(4096, streams=n)
        s = [expected[k - 1] * plain / (k * c + t.ms(4096, streams=n, rows=k + 1)) for k in range(1, 9)]
        assert b["speedup"] == pytest.approx(s)
        assert b["v"] == pytest.approx([t.ms(4096, streams=n, rows=k + 1) / plain for k in range(1, 9)])
        best = max(range(8), key=lambda i: s[i])
        assert b["pays"] == (s[best] > 1) and b["best_k"] == (best + 1 if s[best] > 1 else 0)


def test_numbers_alone():
    """Llama 3 8B on a 4090: 24 GB less 4.5; 2 x 32 x 8 x 128 values a token; 1008 GB/s."""
    r = figures(*LLAMA_8B, "--gpu", "RTX 4090", "-c", "8192")
    assert r["target"]["weight_bytes"] == r["target"]["step_bytes"] == 4500000000
    f16 = r["memory"]["kv"][0]
    assert f16["bytes_per_token"] == 131072 and f16["bytes_at_context"] == 1 << 30
    assert f16["longest_context"] == 19500000000 // 131072
    assert r["speed"]["decode_tok_per_s_empty"] == pytest.approx(1008e9 / 4.5e9)
    assert r["speed"]["decode_tok_per_s_full"] == pytest.approx(1008e9 / (4.5e9 + (1 << 30)))
    # 512 of 8e9 at 330.3 Tmac/s; attention: 32 query heads of 128, K and V, 32 layers, at 82.6
    prefill = 512 * 8e9 / 330.3e12 + 2 * 32 * 128 * 32 * (512 * 513 / 2) / 82.6e12
    assert r["speed"]["prefill_ms"] == pytest.approx(1e3 * prefill)
    assert r["batch"]["streams_that_fit"] == 18 and r["batch"]["arithmetic_from_streams"] is None
    half = figures(*LLAMA_8B, "--gpu", "RTX 4090", "-c", "8192", "--heads", "16")
    assert half["batch"]["batches"][0]["arithmetic_ms"] < r["batch"]["batches"][0]["arithmetic_ms"]


def test_numbers_of_a_draft():
    """A quarter of the parameters: half of the KV."""
    r = figures(*LLAMA_8B, "--draft-params", "2B", "--draft-bits", "16", "--acceptance", "0.8", *MACHINE)
    assert r["draft"]["weight_bytes"] == 4000000000 and r["draft"]["kv_values"] == 32768
    assert r["memory"]["free_bytes"] == RAM - 8.5e9
    assert r["speculation"]["batches"][0]["draft_ms"] == pytest.approx(1e3 * (4e9 + 65536 * 4096) / B)


def test_units_and_spellings():
    want = figures(*LLAMA_8B, *MACHINE)
    for args in (["--params=8000M", *LLAMA_8B[2:], *MACHINE], ["--params", "8000000000", *LLAMA_8B[2:], *MACHINE],
                 ["--params", "0.008T", *LLAMA_8B[2:], "--ram", "16000mb", "--bandwidth", "0.05TB/s", "--flops=2000gflops"]):
        assert figures(*args) == want
    assert figures(*LLAMA_8B, *MACHINE, "--ram", "16GiB")["machine"]["memory_bytes"] == 16 << 30
    assert figures(*LLAMA_8B, "--gpu", "a100-80", "--ram", "40GB")["machine"]["memory_bytes"] == 40e9


def test_text():
    """Five sections, and formulas that hold: what stands right gives what stands left, to the digits shown."""
    out = text(*LLAMA_8B, *MACHINE, "--draft-params", "1B", "--draft-bits", "4.5", "--acceptance", "0.8")
    assert re.findall(r"^(\w+) ", out, re.M) == ["Model", "Memory", "Speed", "Batch", "Speculation"]
    number = {"kB": 1e3, "MB": 1e6, "GB": 1e9}

    def size(words):
        value, unit = words.split()
        return float(value) * number[unit]

    rate = B / size(re.search(r"decode, empty .* B / (\d.*)$", out, re.M)[1])
    assert float(re.search(r"decode, empty +([\d.]+) tok/s", out)[1]) == pytest.approx(rate, rel=6e-3)
    full = re.search(r"at 4096 +([\d.]+) tok/s +B / \((.*B) \+ (.*B) of KV\)", out)
    assert float(full[1]) == pytest.approx(B / (size(full[2]) + size(full[3])), rel=6e-3)
    for n, free, token in re.findall(r"B +(\d+) +([\d.]+ .B) / ([\d.]+ .B)$", out, re.M):
        assert int(n) == pytest.approx(size(free) / size(token), rel=6e-3)
    c = re.search(r"c = ([\d.]+) ms / ([\d.]+) ms = ([\d.]+),", out)
    assert float(c[1]) / float(c[2]) == pytest.approx(float(c[3]), rel=1e-2)
    expected, v, s = [[float(x) for x in re.search(rf"^  {name} +([\d. ]+)", out, re.M)[1].split()[:8]]
                      for name in (r"E\[N\]", r"v\(k\+1\)", "S, alone")]
    for k in range(1, 9):
        assert s[k - 1] == pytest.approx(expected[k - 1] / (k * float(c[3]) + v[k - 1]), rel=1e-2)


@pytest.mark.parametrize("args", [
    ["--params", "1T", "--bits", "32", "--layers", "4096", "--kv-heads", "64", "--head-dim", "128", "-c", "1000000",
     "--draft-params", "999M", "--draft-bits", "2.75", "--acceptance", "0.12345", "--ram", "1MB"],
    ["--params", "1M", "--bits", "1", "--layers", "1", "--kv-heads", "1", "--head-dim", "1", "--ram", "1000TB"],
    ["--params", "100T", "--bits", "32", "--layers", "200", "--kv-heads", "8", "--head-dim", "128", "--flops", "1GFLOPS",
     "--bandwidth", "1MB/s", "--ram", "64GB", "-ctk", "f32", "-ctv", "q4_0"]], ids=["large", "small", "slow"])
def test_text_of_extremes(args):
    for word in ("nan", "inf", "-0"):
        assert not re.search(rf"\b{word}\b", text(*args, "--gpu", "MI300X"))
    assert figures(*args, "--gpu", "MI300X")["speed"]["total_ms"] > 0


def test_this_machine(tmp_path):
    """Nothing given: memory and rates are measured, and --json writes what --format json prints."""
    out = tmp_path / "plan.json"
    r = figures(*LLAMA_8B, "-t", "1", "--json", out)
    assert json.loads(out.read_text()) == r
    m = r["machine"]
    assert m["memory_from"] == "free here" and m["read_from"] == "measured: 1 thread"
    assert m["dot_from"].startswith("measured: ") and min(m["read_gb_per_s"], m["dot_gmac_per_s"], m["fma_gmac_per_s"]) > 0
    given = figures(*LLAMA_8B, "--bandwidth", "10GB/s")["machine"]
    assert given["read_from"] == "given" and given["dot_from"].startswith("measured") and given["read_gb_per_s"] == 10
    assert "measured: " in text("-m", model(GEMMA), "--ram", "2GB")


def test_gpu_list():
    out = text("--gpu", "list")
    for name in ("H100", "H200", "A100-40GB", "A100-80GB", "L40S", "L4", "RTX-4090", "RTX-3090", "T4", "MI300X"):
        assert re.search(rf"^{name} ", out, re.M)
    rows = {g["name"]: g for g in figures("--gpu", "list")}
    assert rows["H100"] == {"name": "H100", "memory_gb": 80, "read_gb_per_s": 3350, "fp16_tflops": 989.4,
                            "int8_tops": 1978.9}


def test_a_context_of_its_own():
    """As trained, at most 4096, and enough for the text."""
    smol = model(SMOL)
    assert figures("-m", smol, *MACHINE, "-c", "0")["memory"]["context"] == 8192
    assert figures("-m", smol, *MACHINE)["memory"]["context"] == 4096
    assert figures("-m", smol, *MACHINE, "--prompt-tokens", "6000")["memory"]["context"] == 6128


def test_ctrl_c_ends_it(tmp_path):
    out = tmp_path / "x.json"
    p = subprocess.Popen([str(TANDEM), "plan", *LLAMA_8B, "--json", str(out)], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while time.monotonic() < end:  # until it listens to the signal
        with open(f"/proc/{p.pid}/status") as f:
            if int(re.search(r"SigCgt:\s*(\w+)", f.read())[1], 16) & 1 << (signal.SIGINT - 1):
                break
    p.send_signal(signal.SIGINT)
    stdout, stderr = p.communicate(timeout=60)
    assert (p.returncode, stdout, stderr) == (130, b"", b"") and not out.exists()


# ---- what it refuses ----

def without(name):
    i = LLAMA_8B.index(name)
    return LLAMA_8B[:i] + LLAMA_8B[i + 2:]


MISUSE = [
    ([], "which model? -m FILE"),
    (["-m", "x", *LLAMA_8B], "-m names the model"),
    (["-m", "x", "--heads", "4"], "-m names the model"),
    *[(without(name), "needs all of") for name in LLAMA_8B[::2]],
    ([*LLAMA_8B, "--heads", "12"], "12 heads do not divide over 8"),
    ([*without("--head-dim"), "--head-dim", "4096"], "--params is too small"),
    ([*LLAMA_8B, "-c", "0"], "-m FILE"),
    ([*LLAMA_8B, "-c", "600"], "-c 600 is too small"),
    ([*without("--layers"), "--layers", "2000", "-c", "268435456"], "petabyte"),
    ([*LLAMA_8B, "--acceptance", "0.8"], "--acceptance needs a draft"),
    ([*LLAMA_8B, "-md", "x"], "how often is the draft right?"),
    ([*LLAMA_8B, "--draft-params", "1B", "--acceptance", "0.8"], "both --draft-params and --draft-bits"),
    ([*LLAMA_8B, "--draft-bits", "4", "--acceptance", "0.8"], "both --draft-params and --draft-bits"),
    ([*LLAMA_8B, "-md", "x", "--draft-params", "1B", "--draft-bits", "4", "--acceptance", "0.8"], "one draft"),
    ([*LLAMA_8B, "--gpu", "A100"], "'A100' is none, or not one, of H100"),
    ([*LLAMA_8B, "--gpu", ""], "of H100"),
    ([*LLAMA_8B, "stray"], "unexpected argument 'stray'"),
    ([*LLAMA_8B, "-n", "3"], "for 'tandem run'"),
    ([*LLAMA_8B, "--json", "-"], "--json writes a file"),
    ([*LLAMA_8B, "--hed-dim", "3"], "did you mean --head-dim?"),
]
JUNK = ["", " ", "x", "nan", "inf", "0x10", "-1", "1e9", "1.5.2", "--5", "8b8", "9" * 40]
NUMBERS = {"--params": ["0", "999K", "101T", "8GB", "8 B"], "--bits": ["0", "33", "4B"], "--layers": ["0", "4097", "1.5"],
           "--kv-heads": ["0", "4097"], "--head-dim": ["0", "4097"], "--heads": ["0", "4097"],
           "--ram": ["64", "64B", "999KB", "1001TB"], "--bandwidth": ["80GB", "80", "0GB/s"], "--flops": ["2T", "2", "0TFLOPS"],
           "--prompt-tokens": ["0", "134217729"], "--answer-tokens": ["0", "134217729"], "--acceptance": ["1.01", "80%"],
           "--draft-params": ["0", "101T"], "--draft-bits": ["0.5", "33"]}


@pytest.mark.parametrize("args,words", MISUSE, ids=[" ".join(a)[-40:] for a, _ in MISUSE])
def test_misuse(args, words):
    check(tandem("plan", *args), 2, words, "tandem help plan")


@pytest.mark.parametrize("flag,value", [(flag, v) for flag, values in NUMBERS.items() for v in JUNK + values])
def test_absurd_number(flag, value):
    check(tandem("plan", *LLAMA_8B, f"{flag}={value}"), 2, flag, f"'{value}'")


def test_experts_are_refused(tmp_path):
    """A pass reads a part of them: the figures would be wrong."""
    path = tmp_path / "experts.gguf"
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(32)
    w.add_feed_forward_length(64)
    w.add_head_count(2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_expert_count(8)
    w.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    check(tandem("plan", "-m", path), 1, "experts.gguf", "mixtures of experts")


def test_bad_files(tmp_path):
    check(tandem("plan", "-m", tmp_path / "no.gguf"), 1, "no.gguf", "No such file")
    check(tandem("plan", *LLAMA_8B, "-md", tmp_path, "--acceptance", "1"), 1, "directory")
    check(tandem("plan", *LLAMA_8B, *MACHINE, "--json", tmp_path), 1, "is a directory")
    check(tandem("plan", *LLAMA_8B, env={"TANDEM_CPU": "z80"}), 2, "TANDEM_CPU")
