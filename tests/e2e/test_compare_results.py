"""tandem bench --compare: verdicts on planted changes and on noise, against figures worked out here.

Needs TANDEM_BUILD (a build folder).
"""
import json
import math
import statistics

import numpy as np
import pytest

from cli_common import needs_build, tandem
from results_common import case, result, save
from test_bad_input import check

pytestmark = needs_build


def compare(tmp_path, old, new, *args):
    return tandem("bench", "--compare", save(tmp_path / "old.json", old), save(tmp_path / "new.json", new), *args)


def arms(tmp_path, old, new):
    r = compare(tmp_path, old, new, "--format", "json")
    assert r.returncode == 0, r.stderr.decode()
    return json.loads(r.stdout)


def of_prompts(ratios, **more):
    """A result of one length with these ratios, prompt by prompt."""
    prompts = [[case(0, 1.0), case(4, x)] for x in ratios]
    return result([case(0, 1.0), case(4, statistics.median(ratios))], prompts, **more)


def test_paired_change(tmp_path):
    """Prompts differ by far more than the change; pairing sees it. The interval lies within the changes' extremes."""
    before = [1.0 + 0.2 * i for i in range(10)]
    changes = [0.03 + 0.002 * i for i in range(10)]
    r = arms(tmp_path, of_prompts(before), of_prompts([x * (1 + c) for x, c in zip(before, changes)]))
    s = r["arms"][1]["speedup"]
    assert r["paired_prompts"] == 10 and s["verdict"] == "faster"
    assert s["change"] == pytest.approx(statistics.median(changes))
    assert min(changes) <= s["low"] < s["change"] < s["high"] <= max(changes)
    assert s["old"] == pytest.approx(1.9)
    back = arms(tmp_path, of_prompts([x * 1.05 for x in before]), of_prompts(before))
    assert back["arms"][1]["speedup"]["verdict"] == "slower"


def test_noise_is_no_change(tmp_path):
    rng = np.random.default_rng(7)
    base = rng.uniform(1.1, 2.0, 12)
    verdicts = []
    for _ in range(10):
        old, new = (base * (1 + rng.normal(0, 0.03, 12)) for _ in range(2))
        verdicts.append(arms(tmp_path, of_prompts(list(old)), of_prompts(list(new)))["arms"][1]["speedup"]["verdict"])
    assert verdicts.count("same") >= 9


def test_few_prompts_go_by_the_intervals(tmp_path):
    old = result([case(0, 1.0), case(2, 1.50, interval=0.05), case(4, 1.50, interval=0.05), case(6, 1.5, interval=None)])
    new = result([case(0, 1.0), case(2, 1.58, interval=0.05), case(4, 1.62, interval=0.05), case(6, 1.9, interval=None)])
    two, four, six = [a["speedup"] for a in arms(tmp_path, old, new)["arms"][1:]]
    assert [two["verdict"], four["verdict"], six["verdict"]] == ["same", "faster", "too few"]
    assert four["low"] == pytest.approx(1.57 / 1.55 - 1) and four["high"] == pytest.approx(1.67 / 1.45 - 1)


@pytest.mark.parametrize("runs", [1, 3])
def test_acceptance(tmp_path, runs):
    """The pooled two-proportion z; runs repeat the same drafts, so they add no certainty."""
    n, a, m, b = 2000, 1600, 1800, 1530
    old = result([case(0, 1.0), case(1, 1.2, places=[(runs * n, runs * a)])], runs=runs)
    new = result([case(0, 1.0), case(1, 1.2, places=[(runs * m, runs * b)])], runs=runs)
    got = arms(tmp_path, old, new)["arms"][1]["acceptance"]
    p = (a + b) / (n + m)
    assert got["z"] == pytest.approx((b / m - a / n) / math.sqrt(p * (1 - p) * (1 / n + 1 / m)))
    assert got["verdict"] == "higher" and got["change"] == pytest.approx(0.05)
    assert arms(tmp_path, new, old)["arms"][1]["acceptance"]["verdict"] == "lower"
    assert arms(tmp_path, old, old)["arms"][1]["acceptance"]["verdict"] == "same"
    assert arms(tmp_path, old, old)["arms"][1]["acceptance"]["z"] == 0


def test_arms_are_matched_by_what_they_are(tmp_path):
    old = [case(0, 1.0), case(2, 1.1), case(0, 1.0, "block", 0.8), case(2, 1.2, "block", 0.8), case(2, 1.3, "token", 0.8)]
    new = [case(0, 1.0, "token", 0.8), case(2, 1.4, "token", 0.8, width=2), case(2, 1.5, "token", 0.8), case(2, 1.6)]
    r = arms(tmp_path, result(old), result(new))
    assert [(a["k"], a["temperature"], a["speedup"]["old"], a["speedup"]["new"]) for a in r["arms"]] == [
        (2, 0.0, 1.1, 1.6), (0, 0.8, 1.0, 1.0), (2, 0.8, 1.3, 1.5)]
    assert r["only_old"] == ["plain", "k 2 T 0.8 block"] and r["only_new"] == ["tree 2x2 T 0.8 token"]


def test_table(tmp_path):
    old = of_prompts([1.2, 1.3, 1.4, 1.5, 1.6])
    new = of_prompts([1.5, 1.6, 1.7, 1.8, 1.9])
    new["all"][1]["same_text"] = False
    new["all"].append(case("auto", 1.3))
    new["all"].append(case(64, 1.3, "coupled", 0.85, places=((1, 0),)))
    r = compare(tmp_path, old, new)
    text = r.stdout.decode()
    assert r.returncode == 0 and not r.stderr
    assert all(len(line) < 80 for line in text.splitlines()), text
    assert "k 4  " in text and "faster" in text and "paired by prompt" in text and "not judged" in text
    assert "in the new result k 4 wrote another" in text and "only in the new result: k auto" in text


def test_what_is_not_alike_is_said(tmp_path):
    old, new = of_prompts([1.2, 1.3, 1.4, 1.5, 1.6]), of_prompts([1.2, 1.3])
    new["target"]["name"], new["draft"], new["n_predict"], new["versions"]["cpu"] = "Other", None, 64, "avx512"
    r = compare(tmp_path, old, new)
    err = r.stderr.decode()
    assert r.returncode == 0
    for words in ("target: Target 1.5B, then Other", "draft: Draft 0.5B, then none", "(-n): 128, then 64",
                  "instruction set: avx2, then avx512", "prompts are not the same"):
        assert words in err
    assert "paired by prompt" not in r.stdout.decode()


BAD = [("", "not JSON"), ("{", "not JSON"), ("[1]", "tandem_bench"), ("{}", "tandem_bench"),
       ('{"tandem_bench": 2}', "version 2"), ('{"tandem_bench": 1}', "damaged"),
       ('{"tandem_bench": 1, "all": [{"k": "x"}], "prompts": []}', "damaged"),
       ('{"tandem_bench": 1, "all": [{"k": 65}], "prompts": []}', "damaged"),
       ('{"tandem_bench": 1, "all": [3], "prompts": []}', "damaged"),
       ('{"tandem_bench": 1, "all": [], "prompts": [{"cases": 1}]}', "damaged")]


@pytest.mark.parametrize("text,word", BAD, ids=[w + str(i) for i, (_, w) in enumerate(BAD)])
def test_bad_files(tmp_path, text, word):
    good, bad = save(tmp_path / "good.json", of_prompts([1.2])), tmp_path / "bad.json"
    bad.write_text(text)
    for pair in ((good, bad), (bad, good)):
        check(tandem("bench", "--compare", *pair), 1, "bad.json", word)


def test_strange_values_are_survived(tmp_path):
    """Right in shape, senseless in content: never a crash."""
    odd = result([{"k": 0}, {"k": 2, "ratio": 3, "drafted": "x"}, case(4, 1e300, places=((0, 0),))], runs="x", target=7)
    for pair in ((odd, odd), (odd, of_prompts([1.2])), (result([], []), odd)):
        assert compare(tmp_path, *pair).returncode == 0
        assert compare(tmp_path, *pair, "--format", "json").returncode == 0


def test_misuse(tmp_path):
    check(tandem("bench", "--compare", "a"), 2, "OLD.json NEW.json")
    check(tandem("bench", "--compare", "a", "b", "c"), 2, "unexpected argument 'c'")
    check(tandem("bench", "--compare", "a", "b", "-m", "x"), 2, "--model does not go with --compare")
    check(tandem("bench", "--compare", "a", "b", "--plot", "x"), 2, "--plot does not go with --compare")
    check(tandem("bench", "--plot", "x", "r", "--runs", "2"), 2, "--runs does not go with a saved result")
    check(tandem("bench", "--compare", "a", "b", "--format", "csv"), 2, "text or json")
    check(tandem("bench", "--compare", tmp_path / "no.json", "b"), 1, "no.json", "No such file")
