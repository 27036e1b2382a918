"""The command line, end to end, on SmolLM2 135M: where text and meters go, prompts, stops, JSON, help.

Needs TANDEM_BUILD (a build folder) and TANDEM_MODELS (the test models).
"""
import json
import os
import pathlib
import platform
import pty
import re
import select
import signal
import stat
import subprocess

import gguf
import jinja2
import pytest

from cli_common import SMOL, TANDEM, model, needs_build, tandem

pytestmark = needs_build
ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT = "def fibonacci(n):\n"
N = "32"
LOWER = "avx2" if platform.machine() == "x86_64" else "ref"  # a level below the machine's


@pytest.fixture(scope="module")
def smol():
    return model(SMOL)


def text(smol, *args, **more):
    """The text of a greedy run; every run must end well."""
    result = tandem("run", "-m", smol, "--temp", "0", *args, **more)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout


def figures(tmp_path, smol, *args):
    text(smol, *args, "--json", tmp_path / "run.json")
    return json.loads((tmp_path / "run.json").read_text())


@pytest.fixture(scope="module")
def plain(smol):
    return text(smol, "-p", PROMPT, "-n", N)


# ---- text ----

@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_draft_does_not_change_the_text(smol, plain, k):
    assert len(plain) > 50
    assert text(smol, "-md", smol, "-k", k, "-p", PROMPT, "-n", N) == plain


def test_no_draft_and_k_0_decode_plainly(smol, plain, tmp_path):
    for args in (["--no-draft"], ["-k", "0"]):
        out = tmp_path / "x.json"
        assert text(smol, "-md", smol, *args, "-p", PROMPT, "-n", N, "--json", out) == plain
        assert json.loads(out.read_text())["draft"] is None


def test_only_text_on_stdout_only_meters_on_stderr(smol, plain):
    result = tandem("run", "-m", smol, "-md", smol, "-k", "3", "--temp", "0", "-p", PROMPT, "-n", N)
    assert result.stdout == plain
    err = result.stderr.decode()
    for word in ("load", "prefill", "decode", "TTFT", "ITL", "drafted", "by position", "time", "memory", "stop"):
        assert re.search(rf"^ *(\S+ )*{word}|{word}", err, re.M), word
    assert all(len(line) < 80 for line in err.splitlines())
    assert "\r" not in err and "loading" not in err  # no progress where no terminal is
    quiet = tandem("run", "-m", smol, "--temp", "0", "-p", PROMPT, "-n", N, "-q")
    assert quiet.stdout == plain and not quiet.stderr


def test_prompt_from_argument_file_and_pipe(smol, plain, tmp_path):
    (tmp_path / "prompt").write_text(PROMPT)
    assert text(smol, "-f", tmp_path / "prompt", "-n", N) == plain
    assert text(smol, "-p", "-", "-n", N, stdin=PROMPT.encode()) == plain
    assert text(smol, "-n", N, stdin=PROMPT.encode()) == plain
    assert text(smol, "-f", "-", "-n", N, stdin=PROMPT.encode()) == plain
    assert text(smol, "-e", "-p", PROMPT.replace("\n", "\\n"), "-n", N) == plain
    assert text(smol, "-p", PROMPT, "-n", N, stdin=b"something else") == plain
    assert text(smol, "-p", PROMPT.rstrip(), "-n", N) != plain


def test_prompt_of_any_bytes(smol, tmp_path):
    """NULs, invalid UTF-8 and every other byte are text as well; none of them ends it early."""
    (tmp_path / "bytes").write_bytes(b"a\0b\xff\xfe\x80" + bytes(range(256)))
    n = figures(tmp_path, smol, "-f", tmp_path / "bytes", "-n", "4")["prefill"]["prompt_tokens"]
    (tmp_path / "start").write_bytes(b"a")
    assert n > 100 > figures(tmp_path, smol, "-f", tmp_path / "start", "-n", "4")["prefill"]["prompt_tokens"]


def test_empty_prompt_begins_a_text(smol, tmp_path):
    assert figures(tmp_path, smol, "-p", "", "-n", "4")["prefill"]["prompt_tokens"] == 1


def test_spellings(smol, plain):
    """--a b, --a=b, --a_b and the short names are one thing."""
    for args in (["--predict", N], ["--n-predict=" + N], ["--n_predict", N], ["-n=" + N]):
        assert text(smol, "--prompt", PROMPT, *args) == plain
    assert tandem("run", "--model", smol, f"--prompt={PROMPT}", "--temperature=0", "-n32").returncode == 2


def test_chat_wraps_in_the_files_template(smol):
    reader = gguf.GGUFReader(smol)
    template = reader.fields["tokenizer.chat_template"].contents()

    def render(*messages):
        return jinja2.Template(template).render(messages=messages, add_generation_prompt=True)

    user = {"role": "user", "content": "Name three colours."}
    by_hand = text(smol, "-p", render(user), "-n", "24")
    assert text(smol, "--chat", "-p", "Name three colours.", "-n", "24") == by_hand
    system = {"role": "system", "content": "Answer in French."}
    by_hand = text(smol, "-p", render(system, user), "-n", "24")
    assert text(smol, "--chat", "-sys", "Answer in French.", "-p", "Name three colours.", "-n", "24") == by_hand


def test_control_tokens_in_the_prompt(smol, tmp_path):
    args = ["-p", "<|im_start|>user\n", "-n", "1"]
    parsed = figures(tmp_path, smol, *args)["prefill"]["prompt_tokens"]
    literal = figures(tmp_path, smol, *args, "--no-parse-special")["prefill"]["prompt_tokens"]
    assert parsed == 3 < literal


# ---- stops ----

@pytest.mark.parametrize("draft", [[], ["-k", "3"], ["-k", "8"]], ids=["plain", "k3", "k8"])
def test_stop_strings(smol, plain, tmp_path, draft):
    """Any stretch of the text is a stop string, wherever its tokens begin and end."""
    draft = draft and ["-md", smol, *draft]
    out = tmp_path / "x.json"
    for begin, length in ((9, 1), (14, 5), (23, 9), (31, 17)):
        stop = plain.decode()[begin:begin + length]
        got = text(smol, *draft, "-p", PROMPT, "-n", N, "--stop", "\x01no\x01", "--stop", stop, "--json", out)
        assert got == plain[:plain.decode().find(stop)]
        report = json.loads(out.read_text())
        assert report["stop_reason"] == "stop"
        assert report["speculation"]["accepted"] <= report["decode"]["tokens"] <= int(N)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 16])
def test_n_is_exact(smol, plain, tmp_path, n):
    for draft in ([], ["-md", smol, "-k", "5"]):
        out = tmp_path / "x.json"
        got = text(smol, *draft, "-p", PROMPT, "-n", n, "--json", out)
        report = json.loads(out.read_text())
        assert report["decode"]["tokens"] == n and report["stop_reason"] == "length"
        assert plain.startswith(got) and (len(got) > 0) == (n > 0)


def test_context_ends_the_text(smol, tmp_path):
    report = figures(tmp_path, smol, "-p", PROMPT, "-c", "40", "--ignore-eos")
    assert report["stop_reason"] == "context"
    assert 40 <= report["prefill"]["prompt_tokens"] + report["decode"]["tokens"] <= 41


def test_end_token_ends_the_text(smol, tmp_path):
    args = ["--chat", "-p", "Say only the word yes.", "-n", "200"]
    report = figures(tmp_path, smol, *args)
    assert report["stop_reason"] == "eos" and report["decode"]["tokens"] < 200
    report = figures(tmp_path, smol, *args, "--ignore-eos")
    assert report["stop_reason"] == "length" and report["decode"]["tokens"] == 200


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_in_order(smol, tmp_path, number, code):
    out = tmp_path / "x.json"
    p = subprocess.Popen([str(TANDEM), "run", "-m", smol, "-md", smol, "-p", PROMPT, "-n", "4000", "--ignore-eos",
                          "--temp", "0", "--json", str(out)],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    begin = os.read(p.stdout.fileno(), 20)  # unbuffered: the rest is for communicate()
    p.send_signal(number)
    rest, err = p.communicate(timeout=60)
    assert p.returncode == code
    assert b"decode" in err and b"tandem:" not in err
    report = json.loads(out.read_text())
    assert report["stop_reason"] == "cancelled" and 0 < report["decode"]["tokens"] < 4000
    n = report["decode"]["tokens"]
    assert begin + rest == text(smol, "-p", PROMPT, "-n", n, "--ignore-eos")


def test_signal_while_loading_leaves_nothing(smol, tmp_path):
    out = tmp_path / "x.json"
    p = subprocess.Popen([str(TANDEM), "run", "-m", smol, "-p", "x", "--json", str(out)], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.send_signal(signal.SIGINT)  # before, while or after its handler stands
    assert p.wait(60) in (130, -signal.SIGINT)
    assert out.exists() is False or json.loads(out.read_text())["stop_reason"] == "cancelled"
    assert len(list(tmp_path.iterdir())) <= 1


# ---- sampling ----

def test_a_seed_repeats_a_text(smol, tmp_path):
    def sampled(*args):
        out = tmp_path / "x.json"
        result = tandem("run", "-m", smol, "-p", PROMPT, "-n", "24", "--temp", "1.2", *args, "--json", out)
        assert result.returncode == 0
        return result.stdout, json.loads(out.read_text())["settings"]["seed"]

    first, seed = sampled()
    assert sampled("--seed", seed) == (first, seed)
    again, other = sampled("--seed", "-1")
    assert other != seed and again != first


def test_a_seed_is_one_text_with_any_draft(smol):
    def sampled(*args):
        return text(smol, "-p", PROMPT, "-n", "48", "--temp", "0.7", "--top-p", "0.9", "--repeat-penalty", "1.1",
                    "--presence-penalty", "0.2", "--frequency-penalty", "0.1", "--seed", "7", *args)

    plain = sampled("-t", "1")
    assert plain and plain != sampled("--seed", "8")
    for k in (1, 2, 3, 5, 8):
        for threads in (1, 2):
            assert sampled("-md", smol, "-k", k, "-t", threads) == plain
    # The other rules repeat themselves, and have texts of their own.
    for rule in ("token", "block"):
        one = sampled("-md", smol, "-k", "4", "--verify", rule)
        assert one == sampled("-md", smol, "-k", "4", "--verify", rule) != plain


def test_verify_says_what_it_takes(smol):
    result = tandem("run", "-m", smol, "-p", PROMPT, "--verify", "nothing")
    assert result.returncode == 2 and b"block, token, coupled or greedy" in result.stderr
    result = tandem("run", "-m", smol, "-p", PROMPT, "--verify", "greedy", "--temp", "0.5")
    assert result.returncode == 2 and b"--temp 0" in result.stderr


def test_sampler_flags_reach_the_sampler(smol, plain):
    base = ["-p", PROMPT, "-n", N]
    assert text(smol, *base, "--repeat-penalty", "1.5") != plain
    assert text(smol, *base, "--presence-penalty", "2") != plain
    assert text(smol, *base, "--frequency-penalty", "2") != plain
    assert text(smol, *base, "--repeat-penalty", "1.5", "--repeat-last-n", "0") == plain
    # A bias of +1000 leaves one choice; -inf takes the first token away.
    reader = gguf.GGUFReader(smol)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    cat = tokens.index("cat")
    assert text(smol, "-p", PROMPT, "-n", "5", "-l", f"{cat}+1000") == b"catcatcatcatcat"
    for flag in (["--top-k", "1"], ["--top-p", "0"], ["--min-p", "1"]):
        assert tandem("run", "-m", smol, *base, "--temp", "1.5", *flag).stdout == plain
    first = tokens.index("Ġ" * 3) if plain.startswith(b"   ") else None
    if first is not None:
        assert text(smol, *base, "-l", f"{first}-inf") != plain


def test_threads_cache_types_and_levels(smol, plain):
    base = ["-p", PROMPT, "-n", N]
    assert text(smol, *base, "-t", "1") == plain
    assert text(smol, *base, env={"TANDEM_CPU": LOWER}) == plain
    for types in (["-ctk", "f32", "-ctv", "f32"], ["--cache-type-k", "q8_0"], ["-ctk", "q8_0", "-ctv", "q4_0"]):
        assert text(smol, *base, *types, "-md", smol) == text(smol, *base, *types)


# ---- figures ----

def number(v):
    return isinstance(v, (int, float)) and not isinstance(v, bool) and v >= 0


def test_json_of_a_run(smol, tmp_path):
    r = figures(tmp_path, smol, "-md", smol, "-k", "3", "-p", PROMPT, "-n", "32")
    assert number(r["load"]["ms"]) and number(r["ttft_ms"])
    for phase in ("prefill", "decode"):
        assert all(number(r[phase][key]) for key in ("tokens", "ms", "tok_per_s"))
        assert r[phase]["tok_per_s"] == pytest.approx(r[phase]["tokens"] * 1000 / r[phase]["ms"], rel=1e-6)
    assert 0 < r["decode"]["itl_ms_p50"] <= r["decode"]["itl_ms_p95"]
    assert r["prefill"]["ms"] < r["ttft_ms"] < r["prefill"]["ms"] + r["decode"]["ms"] + 1
    s = r["speculation"]
    assert s["acceptance_rate"] == pytest.approx(s["accepted"] / s["drafted"])
    assert s["acceptance_length"] == pytest.approx(1 + s["accepted"] / s["passes"])
    assert len(s["accepted_per_pos"]) == s["draft_max"] == 3
    assert sum(s["accepted_per_pos"]) == s["accepted"] and sum(s["drafted_per_pos"]) == s["drafted"]
    assert s["accepted"] + s["passes"] == r["decode"]["tokens"] == 32
    assert s["acceptance_rate"] > 0.9  # a model agrees with itself
    parts = s["draft_ms"] + s["verify_ms"] + s["sample_ms"]
    assert 0.8 * r["decode"]["ms"] < parts <= 1.001 * r["decode"]["ms"]
    assert all(r["memory"][key] > 0 for key in
               ("target_weight_bytes", "target_kv_bytes", "draft_weight_bytes", "draft_kv_bytes", "peak_bytes"))
    assert r["stop_reason"] == "length"
    assert r["versions"]["tandem"] and r["versions"]["cpu"]


def test_json_without_a_draft(smol, tmp_path):
    r = figures(tmp_path, smol, "-p", PROMPT, "-n", "4")
    s = r["speculation"]
    assert (s["drafted"], s["accepted"], s["acceptance_rate"], s["accepted_per_pos"]) == (0, 0, None, [])
    assert r["memory"]["draft_weight_bytes"] == 0 and r["draft"] is None


# ---- trees ----

@pytest.mark.parametrize("tree", ["1x4", "2x3", "5x2", "8x8"])
def test_trees_change_no_text(smol, plain, tmp_path, tree):
    r = figures(tmp_path, smol, "-md", smol, "--draft-tree", tree, "-p", PROMPT, "-n", N)
    width, depth = map(int, tree.split("x"))
    s = r["speculation"]
    assert s["draft_max"] == depth and len(s["drafted_per_pos"]) == depth and s["drafted"] <= width * sum(
        s["drafted_per_pos"])
    assert sum(s["accepted_per_pos"]) == s["accepted"]
    assert text(smol, "-md", smol, "--draft-tree", tree, "-p", PROMPT, "-n", N, "-c", "100") == text(
        smol, "-p", PROMPT, "-n", N, "-c", "100")
    sampled = ["-p", PROMPT, "-n", N, "--temp", "0.8", "--seed", "5"]
    assert (tandem("run", "-m", smol, "-md", smol, "--draft-tree", tree, *sampled).stdout
            == tandem("run", "-m", smol, *sampled).stdout)


def test_trees_say_what_they_take(smol):
    base = ["run", "-m", smol, "-p", PROMPT]
    for tree in ("", "x", "2x", "0x4", "9x8", "2x3x4", "-2x3", "2*3"):
        result = tandem(*base, "-md", smol, f"--draft-tree={tree}")
        assert result.returncode == 2 and b"candidates and depth" in result.stderr
    for more in (["--draft-tree", "2x2"], ["-md", smol, "--draft-tree", "2x2", "-k", "3"],
                 ["-md", smol, "--draft-tree", "2x2", "--verify", "block"]):
        assert tandem(*base, *more).returncode == 2


# ---- the draft length that is chosen ----

def test_auto_is_the_default_and_changes_no_text(smol, plain, tmp_path):
    r = figures(tmp_path, smol, "-md", smol, "-p", PROMPT, "-n", N)
    assert r["speculation"]["auto"] is True and r["speculation"]["draft_max"] == 16
    for args in ([], ["-k", "auto"], ["-t", "1"], ["-c", "200"]):
        assert text(smol, "-md", smol, *args, "-p", PROMPT, "-n", N) == plain
    assert figures(tmp_path, smol, "-md", smol, "-k", "2", "-p", PROMPT, "-n", "8")["speculation"]["auto"] is False
    sampled = ["-p", PROMPT, "-n", N, "--temp", "0.8", "--seed", "5"]
    assert (tandem("run", "-m", smol, "-md", smol, *sampled).stdout == tandem("run", "-m", smol, *sampled).stdout)


def test_what_passes_cost_is_kept(smol, plain, tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    args = ["-md", smol, "-p", PROMPT, "-n", N]

    def kept():
        (file,) = (tmp_path / "cache" / "tandem").iterdir()
        return file

    assert text(smol, *args, env=env) == plain
    first = kept().read_text()
    assert len(first.split("\n")) == 6 and first.startswith("tandem costs 1\n")
    assert text(smol, *args, env=env) == plain and kept().read_text() == first
    # A figure of another measuring is used as it stands; damage is measured over.
    lines = first.split("\n")
    doubled = "\n".join(lines[:3] + [" ".join(str(2 * float(x)) for x in line.split()) for line in lines[3:]])
    kept().write_text(doubled)
    assert text(smol, *args, env=env) == plain and kept().read_text() == doubled
    for damage in (b"", first[:60].encode(), first.replace("tandem costs 1", "tandem costs 9").encode(),
                   first.replace("128 2048", "2048 128").encode(), os.urandom(500),
                   "\n".join(lines[:3] + ["nan " * 17, "-1 " * 17]).encode(),
                   "\n".join(lines[:3] + ["1e30 " * 17, "0 " * 17]).encode()):
        kept().write_bytes(damage)
        assert text(smol, *args, env=env) == plain
        assert kept().read_bytes() != damage and kept().read_text().count("\n") == 5
    kept().write_text(doubled)
    assert text(smol, *args, "--recalibrate", env=env) == plain and kept().read_text() != doubled
    # No folder to write to is no reason to stop.
    for nowhere in ("/dev/null", "/proc/none", ""):
        assert text(smol, *args, env={"XDG_CACHE_HOME": nowhere, "HOME": nowhere}) == plain


def test_auto_needs_little_room_to_measure(smol):
    for ctx in ("4", "5", "16", "40", "150"):
        assert text(smol, "-md", smol, "-p", "a", "-c", ctx) == text(smol, "-p", "a", "-c", ctx)
    result = tandem("run", "-m", smol, "-md", smol, "-p", "a", "-c", "3")
    assert result.returncode == 1 and b"fixed draft length" in result.stderr


def test_json_file_is_replaced_whole(smol, tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    text(smol, "-p", PROMPT, "-n", "2", "--json", link, preexec_fn=lambda: os.umask(0o027))
    assert link.is_symlink() and json.loads(real.read_text())["decode"]["tokens"] == 2
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "real.json"]


# ---- terminals ----

def test_progress_on_a_terminal_is_erased(smol, tmp_path):
    (tmp_path / "long").write_text("The quick brown fox jumps over the lazy dog. " * 120)
    main, terminal = pty.openpty()
    p = subprocess.Popen([str(TANDEM), "run", "-m", smol, "-f", str(tmp_path / "long"), "-n", "2", "--temp", "0"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    shown = b""
    while p.poll() is None or select.select([main], [], [], 0.2)[0]:
        if select.select([main], [], [], 0.2)[0]:
            try:
                shown += os.read(main, 65536)
            except OSError:
                break
    os.close(main)
    assert p.wait(60) == 0
    assert b"reading the prompt" in shown
    assert all(len(part) < 80 for part in re.split(rb"[\r\n]+", shown))
    # What was drawn is overwritten by blanks before the meters begin.
    at = shown.rindex(b"reading the prompt")
    assert re.match(rb"[^\r]*\r +\r", shown[at:])


# ---- bench and inspect ----

def test_bench(smol, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps(PROMPT) + "\n\n" + json.dumps({"prompt": "Once upon a time", "id": 2}) + "\n")
    out = tmp_path / "bench.json"
    result = tandem("bench", "-m", smol, "-md", smol, "--prompts", prompts, "-n", "12", "--runs", "2", "-k", "2,5",
                    "--json", out, timeout=600)
    assert result.returncode == 0, result.stderr.decode()
    table = result.stdout.decode()
    assert all(len(line) < 80 for line in table.splitlines())
    for word in ("prompt 1 of 2", "all 2 prompts", "read limit", "share", "predicted"):
        assert word in table
    assert table.count("same") == 6 and "OTHER" not in table and not result.stderr
    r = json.loads(out.read_text())
    assert [p["prompt_tokens"] for p in r["prompts"]] == [7, 4]
    for cases in [p["cases"] for p in r["prompts"]] + [r["all"]]:
        assert [c["k"] for c in cases] == [0, 2, 5] and all(c["same_text"] for c in cases)
        for c in cases[1:]:
            assert c["ratio"]["min"] <= c["ratio"]["median"] <= c["ratio"]["max"]
            assert c["accepted"] <= c["drafted"]
    assert [w["rows"] for w in r["passes"]["widths"]] == [1, 3, 6]
    assert r["passes"]["read_gb_per_s"]["median"] > 0.1 and 5 < r["passes"]["context"] < 19
    # Predicted from the costs and tokens printed beside it, by the formula of the design.
    one_ms = r["passes"]["widths"][0]["ms"]["median"]
    growth = {w["rows"]: w["to_one_row"]["median"] for w in r["passes"]["widths"]}
    plain, *arms = r["all"]
    assert plain["predicted"] is None and not any(c["predicted"] for p in r["prompts"] for c in p["cases"])
    for c in arms:
        passes = c["k"] * r["passes"]["draft_to_one_row"]["median"] + growth[c["k"] + 1]
        round_ms = passes * one_ms + c["sample_ms"] / c["passes"]
        want = c["acceptance_length"] * (one_ms + plain["sample_ms"] / plain["passes"]) / round_ms
        assert abs(c["predicted"] / want - 1) < 1e-4
        assert sum(c["drafted_per_pos"]) == c["drafted"] and sum(c["accepted_per_pos"]) == c["accepted"]
    assert table[table.rindex("\n\n") + 2:].startswith(("Best here", "Do not", "Not certain"))


def test_bench_prints_the_same_in_every_format(smol):
    args = ("bench", "-m", smol, "-md", smol, "-p", PROMPT, "-n", "8", "--runs", "3", "-k", "1,3,auto")
    j = json.loads(tandem(*args, "--format", "json", timeout=600).stdout)
    assert [c["k"] for c in j["all"]] == [0, 1, 3, "auto"]
    assert all(c["ratio"]["min"] <= c["ratio_low"] <= c["ratio_high"] <= c["ratio"]["max"] for c in j["all"])
    csv = tandem(*args, "--format", "csv", timeout=600).stdout.decode().splitlines()
    assert [line.split(",")[:4] for line in csv] == [["temperature", "verify", "width", "k"]] + [
        ["0", "greedy", "1", k] for k in ("0", "1", "3", "auto")]
    assert {line.count(",") for line in csv} == {csv[0].count(",")} and all(x.endswith("true") for x in csv[1:])
    md = tandem(*args, "--format", "md", timeout=600).stdout.decode().splitlines()
    assert len(md) == 6 and {line.count("|") for line in md} == {csv[0].count(",") + 2}


def test_inspect_agrees_with_the_gguf_package(smol):
    reader = gguf.GGUFReader(smol)
    result = tandem("inspect", smol, "--json", "--tensors", "--keys")
    assert result.returncode == 0
    r = json.loads(result.stdout)
    assert r["architecture"] == reader.fields["general.architecture"].contents() == "llama"
    assert r["size_bytes"] == os.path.getsize(smol)
    assert r["parameters"] == sum(int(t.n_elements) for t in reader.tensors)
    assert [(t["name"], t["shape"], t["type"], t["bytes"]) for t in r["tensor_list"]] == [
        (t.name, [int(d) for d in t.shape], t.tensor_type.name, int(t.n_bytes)) for t in reader.tensors]
    assert set(r["keys"]) == {k for k in reader.fields if not k.startswith("GGUF.")}
    assert r["chat_template"] == reader.fields["tokenizer.chat_template"].contents()
    for name in ("block_count", "embedding_length", "context_length"):
        ours = {"block_count": "layers", "embedding_length": "embedding", "context_length": "context"}[name]
        assert r[ours] == reader.fields[f"llama.{name}"].contents()
    assert r["kv_bytes_per_token_f16"] == 30 * 2 * 3 * 64 * 2
    plain = tandem("inspect", smol, "--tensors").stdout.decode()
    assert "llama" in plain and "Q4_1" in plain and "ChatML" in plain and "token_embd.weight" in plain


# ---- help ----

COMMANDS = ["run", "bench", "plan", "selftest", "inspect"]
OPTION = re.compile(r"(?<![\w\\-])--?[a-z][a-z0-9-]*")


def listed(command):
    """The option names that a command's help lists."""
    names = set()
    for line in tandem("help", command).stdout.decode().splitlines():
        if line.startswith("  -"):
            names |= set(OPTION.findall(re.split(r"  +|[A-Z(]", line.strip())[0]))
    return names


def test_help_is_the_same_everywhere_and_fits_80_columns():
    for command in COMMANDS:
        result = tandem("help", command)
        assert result.returncode == 0 and not result.stderr
        for other in ([command, "--help"], [command, "-h"], [command, "-m", "x", "--help"]):
            assert tandem(*other).stdout == result.stdout
        assert all(len(line) < 80 for line in result.stdout.decode().splitlines())
        assert b"Exit codes" in result.stdout and b"TANDEM_CPU" in result.stdout
    result = tandem("--help")
    assert result.returncode == 0 and result.stdout == tandem("help").stdout
    assert all(len(line) < 80 for line in result.stdout.decode().splitlines())
    for command in COMMANDS:
        assert f"  {command} " in result.stdout.decode()


def test_help_lists_what_the_issue_names():
    names = listed("run")
    for name in ("-m -md -p -f -n -c -t --temp --top-k --top-p --min-p --repeat-penalty --presence-penalty "
                 "--frequency-penalty --logit-bias --seed --stop --draft-max -k --no-draft --ignore-eos --chat "
                 "--json").split():
        assert name in names


def test_every_listed_option_exists(smol):
    """Help is printed from the parser's table; an option that needs a value says so, no other is unknown."""
    for command in COMMANDS:
        for name in listed(command):
            err = tandem(command, name).stderr
            assert b"unknown" not in err and b"is for" not in err, (command, name)


def test_man_page_and_help_list_the_same_options():
    page = (ROOT / "docs" / "tandem.1").read_text().replace("\\-", "-")
    options = page[page.index(".SH OPTIONS"):page.index(".SH METERS")]
    tagged = "\n".join(line for line in re.findall(r"^\.TP\n(\.B.*)$", options, re.M))
    in_page = set(OPTION.findall(re.sub(r"\\f[IBR]", " ", tagged)))
    in_help = set().union(*(listed(c) for c in COMMANDS))
    assert in_help - in_page == set() and in_page - in_help == set()
    assert len(in_help) > 50
    assert f'"{tandem("--version").stdout.decode().rsplit(" ", 1)[0]}"' in page  # its head names the version


def test_version():
    result = tandem("--version")
    assert result.returncode == 0 and re.fullmatch(rb"tandem \d+\.\d+\.\d+ \(\w+\)\n", result.stdout)
