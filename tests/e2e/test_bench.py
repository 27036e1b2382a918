"""tandem bench: sweeps, --roofline, --kernels, --cost: their tables, their JSON and what they refuse. Times are never
checked: the machine is shared.

Needs TANDEM_BUILD (a build folder); sweeps and --cost need TANDEM_MODELS.
"""
import json
import os
import pty
import re
import select
import signal
import statistics
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


# ---- sweeps ----

PROMPTS = [{"prompt": "def fibonacci(n):\n", "id": "a", "category": "code"},
           {"prompt": "Once upon a time there was", "id": "b", "category": "prose"},
           {"prompt": "import os\n\ndef walk(", "id": "c", "category": "code"}]
SWEEP = ["--temp", "0,0.8", "--verify", "token,block,coupled", "-k", "2,auto", "--draft-tree", "2x3,1x2", "--seed", "7"]
DRAFTS = [(2, 1), ("auto", 1), (3, 2)]  # 1x2 is the chain of 2 once more
SEVERAL = {"token": DRAFTS, "block": DRAFTS[:2], "coupled": DRAFTS}
ARMS = [(0, 1, "greedy", 0.0)] + [(k, w, "greedy", 0.0) for k, w in DRAFTS] + [(0, 1, "coupled", 0.8)] + [
    (k, w, rule, 0.8) for rule, drafts in SEVERAL.items() for k, w in drafts]
CASE = """k width verify temperature tok_per_s ratio ratio_low ratio_high predicted ttft_ms itl_ms_p50 itl_ms_p95
    joules_per_token drafted accepted acceptance_rate acceptance_length drafted_per_pos accepted_per_pos passes tokens
    draft_ms verify_ms sample_ms same_text""".split()


@pytest.fixture(scope="module")
def swept(smol, tmp_path_factory):
    """(table, JSON) of one sweep over three prompts of two sets."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "prompts").write_text("\n".join(map(json.dumps, PROMPTS)))
    result = tandem("bench", "-m", smol, "-md", smol, "--prompts", folder / "prompts", *SWEEP, "-n", "9", "--runs", "3",
                    "--json", folder / "out.json", timeout=600)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stderr.decode() == "tandem: --verify block takes drafts one token wide; its trees are left out\n"
    return result.stdout.decode(), json.loads((folder / "out.json").read_text())


def test_arms_of_a_sweep(swept):
    """Each temperature's plain arm first, rules only where something is sampled, every arm once."""
    _, r = swept
    assert list(r) == ["tandem_bench", "target", "draft", "n_predict", "runs", "prompts", "sets", "all", "passes", "timeline",
                       "versions"]
    assert (r["tandem_bench"], r["n_predict"], r["runs"]) == (1, 9, 3)
    assert [(p["id"], p["set"]) for p in r["prompts"]] == [("a", "code"), ("b", "prose"), ("c", "code")]
    assert [(s["set"], s["prompts"]) for s in r["sets"]] == [("code", 2), ("prose", 1)]
    for cases in [x["cases"] for x in r["prompts"] + r["sets"]] + [r["all"]]:
        assert [(c["k"], c["width"], c["verify"], c["temperature"]) for c in cases] == ARMS
        for c in cases:
            assert sorted(c) == sorted(CASE)
            # One text a seed: greedy and coupled. Of the other rules each has its own.
            assert c["same_text"] is (True if c["verify"] in ("greedy", "coupled") else None)
            assert c["accepted"] <= c["drafted"] and c["ttft_ms"] > 0 and c["itl_ms_p50"] <= c["itl_ms_p95"]
            assert c["joules_per_token"] is None or c["joules_per_token"] >= 0
            for ratio in ([c["ratio"]["min"], c["ratio"]["max"]] if c["k"] == 0 else []):
                assert ratio == 1


def test_summaries_of_a_sweep(swept):
    """Sums of counts, medians of the prompts' medians; a single prompt's figures are its set's."""
    _, r = swept
    code, prose = r["sets"]
    a, b, c = (p["cases"] for p in r["prompts"])
    assert prose["cases"] == b
    for i in range(len(ARMS)):
        for total, parts in ((r["all"][i], (a, b, c)), (code["cases"][i], (a, c))):
            for key in ("drafted", "accepted", "passes", "tokens"):
                assert total[key] == sum(p[i][key] for p in parts)
            for key, of in (("ratio", lambda x: x["ratio"]["median"]), ("tok_per_s", lambda x: x["tok_per_s"]["median"])):
                assert total[key]["median"] == pytest.approx(statistics.median(of(p[i]) for p in parts))
                assert total[key]["max"] == max(of(p[i]) for p in parts)
            for key in ("ttft_ms", "itl_ms_p50", "itl_ms_p95"):
                assert total[key] == pytest.approx(statistics.median(p[i][key] for p in parts))
    assert [x["predicted"] is not None for x in r["all"]] == [k == 2 for k, *_ in ARMS]


def test_passes_and_timeline_of_a_sweep(swept):
    _, r = swept
    passes = r["passes"]
    assert [w["rows"] for w in passes["widths"]] == [1, 3, 7]
    roofs = [w["roofline_ms"] for w in passes["widths"]]
    assert 0 < roofs[0] <= roofs[1] <= roofs[2]
    for key in ("read_gb_per_s", "dot_gmac_per_s", "decode_gb_per_s", "share_of_read_limit"):
        assert 0 < passes[key]["min"] <= passes[key]["median"] <= passes[key]["max"]
    # The plain pass's bytes: over its time they give its rate, over the read limit (of memory) at most its roofline.
    megabytes = passes["decode_gb_per_s"]["median"] * passes["widths"][0]["ms"]["median"]
    kv = passes["context"] * 30 * 2 * 3 * 64 * 2
    assert megabytes == pytest.approx((r["target"]["step_bytes"] + kv) / 1e6, rel=1e-6)
    assert roofs[0] >= megabytes / passes["read_gb_per_s"]["max"] * (1 - 1e-6)
    t = r["timeline"]  # the last auto
    assert (t["prompt"], t["k"], t["width"], t["verify"], t["temperature"]) == ("a", "auto", 1, "coupled", 0.8)
    assert t["plain_ms"] > 0 and sum(x["tokens"] for x in t["rounds"]) == 9 and t["rounds"][0]["start_ms"] == 0
    end = 0
    for x in t["rounds"]:
        assert x["start_ms"] >= end and x["tokens"] == x["accepted"] + 1 and x["accepted"] <= x["drafted"]
        end = x["start_ms"] + x["draft_ms"] + x["verify_ms"] + x["sample_ms"]


def test_table_of_a_sweep(swept):
    text, r = swept
    assert all(len(line) < 80 for line in text.splitlines())
    for word in ("prompt 3 of 3, c: ", "set code: 2 prompts", "set prose: 1 prompt\n", "all 3 prompts", "roofline", "TTFT ms"):
        assert word in text
    summary = text[text.index("all 3 prompts"):text.index("read limit")].splitlines()
    names = ["plain", "k 2", "auto", "2x3", "plain"] + [
        f"{'auto' if k == 'auto' else f'2x{k}' if w > 1 else f'k {k}'} {rule}" for k, w, rule, _ in ARMS[5:]]
    assert [line[:12].rstrip() for line in summary if re.match("[pk2]|auto", line)] == names
    assert summary[1] == "temperature 0" and "temperature 0.8" in summary
    last = text[text.rindex("\n\n") + 2:]
    assert last.startswith("Temperature 0: ") and "\nTemperature 0.8: " in last


def test_one_set_is_all(smol, tmp_path):
    """A table of its own only where there are several; JSON names it. The default: one temperature, its default rule."""
    (tmp_path / "p").write_text(json.dumps(PROMPTS[0]) + "\n" + json.dumps(PROMPTS[2]))
    args = ["-m", smol, "-md", smol, "--prompts", tmp_path / "p", "-n", "3", "--runs", "1", "-k", "1"]
    text = table(*args, "--temp", "0.8", "--draft-tree", "2x1", "--json", tmp_path / "o.json")
    assert "\nset " not in text and "Temperature" not in text
    r = json.loads((tmp_path / "o.json").read_text())
    assert [s["set"] for s in r["sets"]] == ["code"] and r["sets"][0]["cases"][0]["tokens"] == r["all"][0]["tokens"]
    assert [(c["k"], c["width"], c["verify"]) for c in r["all"]] == [(0, 1, "coupled"), (1, 1, "token"), (1, 2, "token")]
    csv = tandem("bench", *args, "--temp", "0.8,0", "--format", "csv").stdout.decode().splitlines()
    assert [line.split(",")[:4] for line in csv[1:]] == [
        ["0.8", "coupled", "1", "0"], ["0.8", "block", "1", "1"], ["0", "greedy", "1", "0"], ["0", "greedy", "1", "1"]]
    assert [line.split(",")[-1] for line in csv] == ["same_text", "true", "", "true", "true"]


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

BOTH = ["bench", "-m", "a", "-md", "b"]
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
    (BOTH + ["--temp", "0,"], "not ''"),
    (BOTH + ["--temp", "0,1001"], "from 0 to 1000, not '1001'"),
    (BOTH + ["--temp", ",".join(["1"] * 17)], "at most 16"),
    (BOTH + ["--verify", "token,greedily"], "not 'greedily'"),
    (BOTH + ["--verify", "token,,block"], "not ''"),
    (BOTH + ["--verify", "greedy,token", "--temp", "0,0.8"], "the rule of --temp 0"),
    (BOTH + ["--draft-tree", "2x2,9x8"], "at most 64 tokens together, not '9x8'"),
    (BOTH + ["--draft-tree", "2x2;2x3"], "not '2x2;2x3'"),
    (BOTH + ["-k", "auto,2"], "commas"),
    (["run", "-m", "a", "-p", "x", "--temp", "0,0.8"], "not '0,0.8'"),
    (["run", "-m", "a", "-p", "x", "--verify", "token,block"], "not 'token,block'"),
    (["run", "-m", "a", "-md", "b", "-p", "x", "--draft-tree", "2x2,2x3"], "not '2x2,2x3'"),
    (["run", "-m", "a", "-md", "b", "-p", "x", "-k", "1,2"], "not '1,2'"),
    (KERN + ["--draft-tree", "2x2"], "--draft-tree does not go with --kernels"),
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
