"""tandem bench --plot: the pictures and data of saved results, and of one that is measured.

Needs TANDEM_BUILD (a build folder) and gnuplot; measuring needs TANDEM_MODELS.
"""
import json
import os
import shutil
import struct
import xml.etree.ElementTree

import pytest

from cli_common import SMOL, model, needs_build, tandem
from results_common import around, case, result, save
from test_bad_input import check

pytestmark = [needs_build, pytest.mark.skipif(not shutil.which("gnuplot"), reason="gnuplot is not installed")]
NAMES = ["acceptance", "cost", "speedup", "timeline"]
PASSES = {"context": 70, "widths": [{"rows": m, "ms": around(10 + m), "roofline_ms": 9.0} for m in (1, 3, 5)]}
TIMELINE = {"prompt": None, "k": 4, "width": 1, "temperature": 0.0, "verify": "greedy", "plain_ms": 100.0,
            "rounds": [{"start_ms": 10.0 * i, "draft_ms": 2, "verify_ms": 7, "sample_ms": 0.5, "drafted": 4,
                        "accepted": i % 5, "tokens": 1 + i % 5} for i in range(5)]}
CASES = [case(0, 1.0), case(2, 1.4, predicted=1.45), case(4, 1.6, predicted=1.5), case("auto", 1.62)]


def plot(tmp_path, value, **more):
    """Draws a saved result; the folder and what was said."""
    out = tmp_path / "plots"
    r = tandem("bench", "--plot", out, save(tmp_path / "r.json", value), **more)
    assert r.returncode == 0 and not r.stdout, r.stderr.decode()
    return out, r.stderr.decode()


def texts(path):
    return " ".join("".join(e.itertext()) for e in xml.etree.ElementTree.parse(path).iter() if e.tag.endswith("text"))


def check_pictures(folder, names):
    assert sorted(p.stem for p in folder.glob("*.png")) == sorted(p.stem for p in folder.glob("*.svg")) == names
    for name in names:
        png = (folder / f"{name}.png").read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n" and png[-8:-4] == b"IEND"
        width, height = struct.unpack(">II", png[16:24])
        assert width >= 900 and height >= 400


def blocks(path):
    """Rows of numbers, block by block."""
    return [[[float(x) for x in line.split()] for line in block.splitlines() if line and line[0] != "#"]
            for block in path.read_text().split("\n\n\n") if block.strip()]


def test_all_four(tmp_path):
    out, err = plot(tmp_path, result(CASES, passes=PASSES, timeline=TIMELINE))
    assert not err
    check_pictures(out, NAMES)
    words = {"acceptance": ["place in the draft", "draft length (tokens)", "acceptance rate (%)", "greedy"],
             "speedup": ["draft length (tokens)", "speed-up (times plain)", "predicted S(k)", "auto 1.62", "95 % interval"],
             "cost": ["rows of the pass", "time T(m) (ms)", "T(m) / T(1)", "roofline", "70 positions"],
             "timeline": ["tokens written", "(ms)", "plain decoding", "tokens that the draft guessed", "k 4", "15 tokens"]}
    for name in NAMES:
        text = texts(out / f"{name}.svg")
        for word in words[name] + ["Target 1.5B", "Draft 0.5B", "128 tokens", "avx2, 2 threads"]:
            assert word in text, (name, word)
    assert blocks(out / "acceptance.dat") == [[[1, 80], [2, 75]], [[2, 77.7778], [4, 77.7778]]]
    assert blocks(out / "speedup.dat") == [[[2, 1.4], [4, 1.6]], [[2, 1.4, 1.35, 1.45], [4, 1.6, 1.55, 1.65]],
                                           [[2, 1.45], [4, 1.5]]]
    assert [row[4:] for row in blocks(out / "timeline.dat")[0]] == [[0, 0, 1], [1, 2, 3], [3, 5, 6], [6, 9, 10], [10, 14, 15]]


def test_every_temperature_and_rule_is_a_series(tmp_path):
    cases = []
    for t, rule in ((0.0, "greedy"), (0.8, "block"), (0.8, "token")):
        cases += [case(0, 1.0, rule, t), case(2, 1.3, rule, t), case(4, 1.4, rule, t)]
    cases.append(case(2, 1.2, "token", 0.8, width=3))
    out, _ = plot(tmp_path, result(cases))
    for name in ("acceptance", "speedup"):
        text = texts(out / f"{name}.svg")
        for series in ("greedy", "temperature 0.8, block", "temperature 0.8, token"):
            assert series in text
    assert "trees 3 wide" in texts(out / "speedup.svg")


def test_what_has_no_figures_is_left_out(tmp_path):
    out, err = plot(tmp_path, result([case(0, 1.0), case("auto", 1.1)]))
    assert not list(out.iterdir())
    assert [line.split()[2] for line in err.splitlines()] == NAMES[:1] + ["speedup", "cost", "timeline"]


def test_one_length_without_interval_or_prediction(tmp_path):
    out, err = plot(tmp_path, result([case(0, 1.0), case(4, 0.9, interval=None)]))
    check_pictures(out, ["acceptance", "speedup"])
    assert err.count("\n") == 2


@pytest.mark.parametrize("name", ["it's `touch pwned`", "<b> & &amp; &x; \"q\" ]]>", "{/Symbol a}_x^2 @m $0 % \\n # \u2603",
                                  "line\nbreak\x01", "'.system('touch pwned').'", "x" * 300, ""])
def test_names_mean_nothing_to_gnuplot(tmp_path, name):
    value = result(CASES, passes=PASSES, timeline=TIMELINE)
    value["target"]["name"] = name
    value["all"][1]["verify"] = "greedy"
    out, err = plot(tmp_path, value, cwd=tmp_path)
    assert not err and not list(tmp_path.rglob("pwned"))
    check_pictures(out, NAMES)
    shown = " ".join(name.replace("\n", " ").replace("\x01", " ").replace("&", "+").translate({39: "\u2019", 60: "\u2039", 62: "\u203a"})[:44].split()) or "target.gguf"
    assert shown in " ".join(texts(out / "cost.svg").split())


def test_odd_folder(tmp_path):
    out = tmp_path / "it's a `folder` $x; \u2603"
    assert tandem("bench", "--plot", out, save(tmp_path / "r.json", result(CASES))).returncode == 0
    check_pictures(out, ["acceptance", "speedup"])


def test_folders_that_cannot_be(tmp_path):
    path = save(tmp_path / "r.json", result(CASES))
    check(tandem("bench", "--plot", tmp_path / "no" / "such", path), 1, "can't be made", "No such file")
    check(tandem("bench", "--plot", path, path), 1, "not a folder")
    check(tandem("bench", "--plot", "/proc/self/fdinfo", path), 1, "--plot", "/proc/self/fdinfo")
    check(tandem("bench", "--plot", "", path), 2, "name of a folder")


def test_missing_gnuplot_is_said_before_anything_is_loaded(tmp_path):
    env = {"PATH": str(tmp_path)}
    check(tandem("bench", "-m", "no.gguf", "-md", "no.gguf", "--plot", tmp_path / "p", env=env), 1, "gnuplot-nox")
    broken = tmp_path / "gnuplot"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    check(tandem("bench", "-m", "no.gguf", "-md", "no.gguf", "--plot", tmp_path / "p", env=env), 1, "pngcairo")
    os.remove(broken)


def test_what_was_measured_is_drawn(tmp_path):
    smol = model(SMOL)
    r = tandem("bench", "-m", smol, "-md", smol, "-p", "Once", "-n", "6", "--runs", "1", "-k", "2", "--plot",
               tmp_path / "p", "--format", "json", timeout=600)
    assert r.returncode == 0, r.stderr.decode()
    assert json.loads(r.stdout)["all"][1]["k"] == 2
    assert {"acceptance", "cost", "speedup"} <= {p.stem for p in (tmp_path / "p").glob("*.png")}
