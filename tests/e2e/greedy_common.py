"""What the greedy tests share: running greedy_tool, and drafts that are often wrong."""

import os
import subprocess
from collections import namedtuple

import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFReader

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = os.path.join(HERE, "..", "reference", "texts")
PROMPTS = {name: os.path.join(TEXTS, file)
           for name, file in (("code", "code.py.txt"), ("prose", "prose.txt"), ("chinese", "chinese.txt"))}
TARGET = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
DRAFT = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
SMOLLM2 = "smollm2-135m-instruct-q4_1.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"

Run = namedtuple("Run", "prompt k same hash rounds drafted accepted ms n_prompt")


def tool(build, *args, level=None):
    env = dict(os.environ)
    if level:
        env["TANDEM_CPU"] = level
    program = os.path.join(build, "tests", "e2e", "greedy_tool")
    return subprocess.run([program, *map(str, args)], env=env, capture_output=True, text=True)


def levels(build):
    """The instruction sets that this machine has, lowest first."""
    found = []
    for level in ("ref", "avx2", "avx512", "amx", "neon"):
        name = tool(build, "level", level=level).stdout.strip()
        if name and name not in found:
            found.append(name)
    return found


def run(build, target, draft, threads, n_tokens, max_prompt, ks, prompts, level=None, cache="f16"):
    """Runs of the tool as a list; fails loudly when it cannot run at all."""
    out = tool(build, target, draft, threads, n_tokens, max_prompt, cache, ",".join(map(str, ks)),
               *(PROMPTS[p] for p in prompts), level=level)
    if out.returncode not in (0, 1):
        raise RuntimeError(out.stderr or f"greedy_tool ended with {out.returncode}")
    names = {path: name for name, path in PROMPTS.items()}
    runs = []
    for line in out.stdout.splitlines():
        path, k, same, digest, rounds, drafted, accepted, ms, n_prompt = line.split("\t")
        runs.append(Run(names[path], int(k), same == "same", digest, int(rounds), int(drafted),
                        int(accepted), float(ms), int(n_prompt)))
    assert len(runs) == len(prompts) * (len(ks) + 1)
    assert all(r.same for r in runs) == (out.returncode == 0)
    return runs


# Bytes of quants, without scales, within a block of each type.
QUANTS = {Q.Q4_0: (18, 2, 18), Q.Q4_1: (20, 4, 20), Q.Q5_0: (22, 6, 22), Q.Q5_1: (24, 8, 24),
          Q.Q8_0: (34, 2, 34), Q.Q4_K: (144, 16, 144), Q.Q5_K: (176, 48, 176), Q.Q6_K: (210, 0, 192)}


def spoiled(path, to, share=0.04):
    """A copy of a model whose attention outputs have some of their quants inverted: the same vocabulary and
    another mind, as a draft that is right about one time in three."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    rng = np.random.default_rng(1)
    n_spoiled = 0
    for t in GGUFReader(path).tensors:
        if "attn_output" not in t.name or t.tensor_type not in QUANTS:
            continue
        size, begin, end = QUANTS[t.tensor_type]
        blocks = np.frombuffer(data, np.uint8, t.n_bytes, t.data_offset).reshape(-1, size).copy()
        hit = rng.random(len(blocks)) < share
        blocks[hit, begin:end] ^= 0xFF
        data[t.data_offset:t.data_offset + t.n_bytes] = blocks.tobytes()
        n_spoiled += 1
    assert n_spoiled > 0
    with open(to, "wb") as f:
        f.write(data)
    return to
