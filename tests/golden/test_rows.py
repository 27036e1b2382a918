"""Contract R on real models: what rows_tool compares, and that its digest of all logits does not depend on the
number of threads or the CPU level."""

import os
import pathlib
import platform
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "reference"))
import reference  # noqa: E402

BUILD = os.environ.get("TANDEM_BUILD")
MODELS = os.environ.get("TANDEM_MODELS")
pytestmark = pytest.mark.skipif(not BUILD or not MODELS, reason="TANDEM_BUILD and TANDEM_MODELS are not set")

SMOLLM2 = "smollm2-135m-instruct-q4_1.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"
QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
LOWER = "avx2" if platform.machine() == "x86_64" else "ref"  # a level below the machine's


def ids_of(model, n):
    text = "".join(p.read_text() for p in sorted((ROOT / "tests" / "reference" / "texts").iterdir()))
    ids = reference.tokenizer(os.path.join(MODELS, model)).encode(text)[:n]
    assert len(ids) == n
    return np.array(ids, dtype="<i4").tobytes()


def digest(model, ids, threads=2, kv="f16", level=None, stride=1, rows=50):
    path = os.path.join(MODELS, model)
    if not os.path.exists(path):
        pytest.skip(f"{model} is not in TANDEM_MODELS")
    env = dict(os.environ)
    env.pop("TANDEM_CPU", None)
    if level:
        env["TANDEM_CPU"] = level
    program = os.path.join(BUILD, "tests", "golden", "rows_tool")
    out = subprocess.run([program, path, str(threads), kv, str(stride)], input=ids, env=env,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=900)
    assert out.returncode == 0, out.stderr.decode()
    words = out.stdout.decode().split()
    assert words[0] == "rows" and int(words[1]) >= rows  # it did compare
    return words[3]


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_smollm2_threads_and_levels(kv):
    ids = ids_of(SMOLLM2, 130)
    whole = digest(SMOLLM2, ids, kv=kv, rows=800)
    assert digest(SMOLLM2, ids, threads=1, kv=kv, level=LOWER) == whole
    if kv == "f16":
        assert digest(SMOLLM2, ids, threads=5) == whole


@pytest.mark.parametrize("kv", ["q8_0", "q4_0"])
def test_smollm2_quantised_caches(kv):
    ids = ids_of(SMOLLM2, 130)
    assert digest(SMOLLM2, ids, kv=kv, stride=4, rows=200) == digest(SMOLLM2, ids, threads=1, kv=kv, level=LOWER, stride=4)


def test_smollm2_ref():
    ids = ids_of(SMOLLM2, 33)
    assert digest(SMOLLM2, ids, level="ref", stride=4, rows=20) == digest(SMOLLM2, ids, stride=4, rows=20)


def test_qwen2_levels():
    ids = ids_of(QWEN, 40)
    assert digest(QWEN, ids, level=LOWER, stride=4) == digest(QWEN, ids, threads=1, stride=4)


def test_gemma_past_its_window():
    ids = ids_of(GEMMA, 620)
    digest(GEMMA, ids, rows=200, stride=16)
    assert digest(GEMMA, ids[: 4 * 60], threads=1, stride=4) == digest(GEMMA, ids[: 4 * 60], level=LOWER, stride=4)


def test_the_f32_cache_is_another_model():
    """f16 rounds K and V: were the digests equal, the cache's type would not be honoured."""
    ids = ids_of(SMOLLM2, 33)
    assert digest(SMOLLM2, ids, kv="f32", stride=8, rows=10) != digest(SMOLLM2, ids, stride=8, rows=10)
