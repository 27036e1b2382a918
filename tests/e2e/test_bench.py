"""tandem bench --roofline, --kernels, --cost: their tables, their JSON and what they refuse. Times are never checked:
the machine is shared.

Needs TANDEM_BUILD (a build folder); --cost needs TANDEM_MODELS.
"""
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import time

import pytest

from cli_common import SMOL, TANDEM, model, needs_build, tandem
from test_bad_input import check

pytestmark = needs_build


def table(*args, **more):
    """What it prints for people: complete, within 80 columns, nothing on standard error."""
    result = tandem("bench", *args, **more)
    assert result.returncode == 0, result.stderr.decode()
    assert not result.stderr
    text = result.stdout.decode()
    assert all(len(line) < 80 for line in text.splitlines())
    return text


def figures(*args, **more):
    """What it prints for programs: JSON and nothing else."""
    result = tandem("bench", *args, "--format", "json", **more)
    assert result.returncode == 0, result.stderr.decode()
    assert not result.stderr
    return json.loads(result.stdout)


# ---- --roofline ----

def test_roofline(tmp_path):
    out = tmp_path / "roofline.json"
    r = figures("--roofline", "-t", "2", "--runs", "3", "--json", out)
    assert r["threads"] == 2 and r["runs"] == 3
    assert tandem("--version").stdout.decode().rstrip().endswith(f"({r['level']})")
    for limit in ("read_gb_per_s", "dot_gmac_per_s", "fma_gmac_per_s"):
        assert 0 < r[limit]["median"] <= r[limit]["best"]
    assert r["read_bytes"] >= 128 << 20
    whole = json.loads(out.read_text())
    assert whole.pop("versions")["cpu"] == r["level"] and whole == r
    text = table("--roofline", "--runs", "1")
    for word in ("memory reads", "int8 dots", "float", "GB/s", "Gmac/s", "best", "median"):
        assert word in text


def test_tandem_cpu_lowers_the_roofline():
    r = figures("--roofline", "--runs", "1", env={"TANDEM_CPU": "ref"})
    assert r["level"] == "ref" and r["dot_instruction"] == r["fma_instruction"] == "plain C"


# ---- --kernels ----

def test_kernels(tmp_path):
    out = tmp_path / "kernels.json"
    args = ["--kernels", "--type", "q4_0,Q6_K", "--rows", "4,1-2", "--runs", "1"]
    r = figures(*args, "--json", out)
    assert {p["type"] for p in r} == {"Q4_0", "Q6_K"}
    shapes = {t: {(p["n_out"], p["n_in"]) for p in r if p["type"] == t} for t in ("Q4_0", "Q6_K")}
    assert {(1536, 1536), (8960, 1536), (1536, 8960), (151936, 1536)} == shapes["Q6_K"]
    assert {n_in for _, n_in in shapes["Q4_0"] - shapes["Q6_K"]} == {896, 576}  # no multiples of 256
    for t in shapes:
        for shape in shapes[t]:
            rows = [p for p in r if p["type"] == t and (p["n_out"], p["n_in"]) == shape]
            assert [p["m"] for p in rows] == [1, 2, 4]
            assert all(a["roofline_ms"] <= b["roofline_ms"] for a, b in zip(rows, rows[1:]))
    for p in r:
        assert p["ms"] > 0 and p["roofline_ms"] > 0 and p["limit"] in ("memory", "dots")
        assert p["reached"] == pytest.approx(p["roofline_ms"] / p["ms"])
        macs = p["n_out"] * p["n_in"]
        assert p["gmac_per_s"] == pytest.approx(macs * p["m"] / p["ms"] / 1e6)
        bits = p["gb_per_s"] * p["ms"] * 1e6 * 8 / macs
        assert {"Q4_0": 4.5, "Q6_K": 6.5625}[p["type"]] == pytest.approx(bits, rel=0.02)
    whole = json.loads(out.read_text())
    assert whole["products"] == r and whole["limits"]["dot_gmac_per_s"] > 0


def test_kernels_table():
    text = table("--kernels", "--type", "Q8_0", "--rows", "1", "--runs", "1", "-t", "1")
    lines = [line.split() for line in text.splitlines() if line.startswith("Q8_0")]
    assert [line[1] for line in lines] == ["1536x1536", "8960x1536", "151936x1536", "1536x8960", "4864x896", "1536x576"]
    assert "1 thread;" in text and "copies of each matrix" in text and text.splitlines()[-1].startswith("limits")


# ---- --cost ----

@pytest.fixture(scope="module")
def smol():
    return model(SMOL)


def test_cost(smol, tmp_path):
    out = tmp_path / "cost.json"
    r = figures("--cost", "-m", smol, "-c", "96,40", "--rows", "1-3,20", "--runs", "2", "--json", out)
    assert [(p["context"], p["m"]) for p in r] == [(c, m) for c in (40, 96) for m in (1, 2, 3, 20)]
    for p in r:
        assert p["ms_min"] <= p["ms"] <= p["ms_max"] and p["ms"] > 0 and p["roofline_ms"] > 0
        assert p["kv_bytes"] == p["context"] * 30 * 2 * 3 * 64 * 2
        assert p["macs"] == r[0]["macs"] * p["m"]
        assert p["gb_per_s"] == pytest.approx((p["weight_bytes"] + p["kv_bytes"]) / p["ms"] / 1e6)
        # Medians of two rounds are means: the limits' give the roofline's but for that.
        limit = max((p["weight_bytes"] + p["kv_bytes"]) / p["read_gb_per_s"], p["macs"] / p["dot_gmac_per_s"]) / 1e6
        assert 0.5 * limit < p["roofline_ms"] < 2 * limit
    for c in (r[:4], r[4:]):
        assert c[0]["to_one_row"] == 1
        assert all(a["roofline_ms"] <= b["roofline_ms"] for a, b in zip(c, c[1:]))
    whole = json.loads(out.read_text())
    assert whole["passes"] == r and whole["target"]["step_bytes"] == r[0]["weight_bytes"]
    prefill = whole["prefill"]
    assert prefill["tokens"] == 512
    for key in ("ms", "tok_per_s", "gmac_per_s", "share_of_limit"):
        assert 0 < prefill[key]["min"] <= prefill[key]["median"] <= prefill[key]["max"]
    assert prefill["gmac_per_s"]["median"] < r[0]["macs"] * prefill["tok_per_s"]["median"] / 1e9  # no logits


def test_cost_table(smol):
    text = table("--cost", "-m", smol, "-c", "33", "--rows", "2,65", "--runs", "1", "-ctk", "f32", "-ctv", "f32")
    lines = [line.split() for line in text.splitlines() if re.match(r" +33 ", line)]
    assert [line[1] for line in lines] == ["2", "65"] and all(line[5] == "-" for line in lines)
    assert re.search(r"^prefill +512 tokens in \d+ ms: [\d.]+ tok/s, [\d.]+ Gmac/s, \d+ % of the limit$", text, re.M)
    assert "behind 33 positions (KV 1.5 MB)" in text


def test_contexts_of_the_model_are_the_default(smol, tmp_path):
    """A file that says 2048 positions: 8192 is left out, with a line that says so."""
    with open(smol, "rb") as f:
        data = f.read()
    at = data.index(b"llama.context_length") + len(b"llama.context_length")
    assert data[at:at + 8] == struct.pack("<II", 4, 8192)
    path = tmp_path / "short.gguf"
    path.write_bytes(data[:at + 4] + struct.pack("<I", 2048) + data[at + 8:])
    p = subprocess.Popen([str(TANDEM), "bench", "--cost", "-m", str(path), "--rows", "1", "--runs", "1"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert b"past the 2048 positions" in p.stderr.readline()
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)
    assert p.returncode == 143


# ---- stopping and progress ----

@pytest.mark.parametrize("args", [["--kernels"], ["--cost", "-c", "2000"], ["--roofline", "--runs", "1000"]],
                         ids=lambda a: a[0])
def test_ctrl_c_ends_it(args, tmp_path):
    out = tmp_path / "x.json"
    args = args + (["-m", model(SMOL)] if "--cost" in args else [])
    main, terminal = pty.openpty()
    p = subprocess.Popen([str(TANDEM), "bench", *args, "--json", str(out)], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    shown, end = b"", time.monotonic() + 60
    while b"steps" not in shown and time.monotonic() < end:  # its progress on the terminal: it is at work
        if select.select([main], [], [], 0.5)[0]:
            shown += os.read(main, 4096)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    while select.select([main], [], [], 0.2)[0]:
        try:
            shown += os.read(main, 4096)
        except OSError:
            break
    os.close(main)
    assert p.returncode == 130
    assert b"steps" in shown and b"tandem:" not in shown and not out.exists()
    assert all(len(part) < 80 for part in re.split(rb"[\r\n]+", shown))


# ---- what it refuses ----

ROOF, KERN, COST = ["bench", "--roofline"], ["bench", "--kernels"], ["bench", "--cost", "-m", "model.gguf"]
MISUSE = [
    (ROOF + ["--cost"], "one at a time"),
    (ROOF + ["-m", "model.gguf"], "--model does not go with --roofline"),
    (ROOF + ["--rows", "1"], "--rows does not go with --roofline"),
    (KERN + ["--temp", "1"], "--temperature does not go with --kernels"),
    (KERN + ["stray"], "unexpected argument 'stray'"),
    (COST + ["-md", "draft.gguf"], "--model-draft does not go with --cost"),
    (COST + ["-p", "x"], "--prompt does not go with --cost"),
    (COST + ["--type", "Q4_K"], "--type does not go with --cost"),
    (["bench", "--cost"], "-m FILE"),
    (["bench", "-m", "a", "-md", "b", "--rows", "1"], "--rows needs --kernels or --cost"),
    (["bench", "--roofline", "--format", "csv"], "text or json"),
    (["bench", "-m", "a", "-md", "b", "-c", "512,2048"], "a list needs --cost"),
    (["run", "-m", "a", "--cost"], "for 'tandem bench'"),
    (["run", "-m", "a", "-c", "1,2"], "whole number"),
    (KERN + ["--type", "Q4_Z"], "there is no 'Q4_Z'; there are F32 F16"),
    (KERN + ["--type", "Q4_0,"], "there is no ''"),
    (KERN + ["--format", "xml"], "text, json, csv or md"),
    (COST + ["--json", "-"], "--json writes a file"),
    (COST + ["-c", "0"], "not 0"),
    (COST + ["--rows", "1-66"], "at most 65 rows"),
]
LISTS = ["", ",", "1,", "0", "-1", "x", "1-", "3-1", "1-2-3", "1.5", "1e3", "513", "1 2", "99999999999999999999"]
NUMBERS = [("--rows", v) for v in LISTS] + [("-c", v) for v in LISTS if v not in ("0", "513")] + [
    ("-c", "268435457"), ("-t", "0"), ("-t", "1025"), ("--runs", "0"), ("--runs", "1001"), ("--runs", "x")]


@pytest.mark.parametrize("args,words", MISUSE, ids=[" ".join(a)[-40:] for a, _ in MISUSE])
def test_misuse(args, words):
    check(tandem(*args), 2, words, "tandem help")


@pytest.mark.parametrize("flag,value", NUMBERS)
def test_absurd_number(flag, value):
    check(tandem(*COST, f"{flag}={value}"), 2, flag, f"'{value}'")


def test_missing_model_and_unknown_level(tmp_path):
    check(tandem("bench", "--cost", "-m", tmp_path / "no.gguf"), 1, "no.gguf", "No such file")
    check(tandem("bench", "--cost", "-m", "m", "-c", "1-300"), 2, "at most 256 of them")
    for args in (ROOF, KERN, COST):
        check(tandem(*args, env={"TANDEM_CPU": "z80"}), 2, "TANDEM_CPU")
    check(tandem("bench", "--roofline", "--json", tmp_path), 1, "is a directory")


def test_a_context_that_memory_cannot_hold(smol):
    check(tandem("bench", "--cost", "-m", smol, "-c", "200000000"), 1, "positions")
