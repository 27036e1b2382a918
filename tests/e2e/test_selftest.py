"""tandem selftest on a real model: all checks pass, the exit code and JSON say so, and the program is what it judges."""
import json
import signal
import subprocess
import time

import pytest
from cli_common import SMOL, TANDEM, model, needs_build, tandem

pytestmark = needs_build


@pytest.fixture(scope="module")
def smol():
    return model(SMOL)


def test_selftest_passes(smol, tmp_path):
    out = tmp_path / "selftest.json"
    result = tandem("selftest", "-m", smol, "--json", out, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    r = json.loads(out.read_text())
    checks = {c["name"]: c for c in r["checks"]}
    assert r["passed"] is True and all(c["passed"] for c in checks.values())
    for rule in ("token", "block", "coupled"):
        table, loop = checks[f"law, {rule}"], checks[f"law in the loop, {rule}"]
        assert table["n"] == 1_000_000 and abs(table["z"]) < 5 and 0 < table["distance"] < table["bound"] < 0.02
        assert loop["n"] >= 25 and loop["distance"] < loop["bound"]
    assert checks["law in the loop, trees"]["n"] >= 25
    for name in ("greedy text", "seeded text, coupled"):
        assert checks[name]["n"] >= 30 and checks[name]["wrong"] == 0
    assert checks["caches"]["n"] > 10 and checks["caches"]["wrong"] == 0
    lines = result.stdout.decode().splitlines()
    assert len(lines) == len(checks) + 1 and all(len(line) < 80 for line in lines[:-1])
    assert lines[-1].startswith("passed: ")


def test_selftest_says_what_is_wrong(smol, tmp_path):
    assert tandem("selftest").returncode == 2
    assert tandem("selftest", "-m", smol, "extra").returncode == 2
    assert tandem("selftest", "-m", smol, "--temp", "1").returncode == 2
    missing = tandem("selftest", "-m", tmp_path / "none.gguf")
    assert missing.returncode == 1 and b"none.gguf" in missing.stderr and not missing.stdout


def test_selftest_stops_on_ctrl_c(smol):
    p = subprocess.Popen([TANDEM, "selftest", "-m", smol], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(2)
    p.send_signal(signal.SIGINT)
    assert p.wait(60) == 130
    assert not p.stderr.read()
