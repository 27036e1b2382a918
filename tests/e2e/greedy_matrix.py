#!/usr/bin/env python3
"""The whole matrix of bar 2: greedy text with a draft is the text without one, byte for byte.

Pairs x instruction sets of this machine x threads x prompts x draft lengths; a pair's text must also be the same at
every thread count and level. Takes about an hour on two cores; tests/e2e/test_greedy.py runs a slice of it.

    TANDEM_BUILD=build TANDEM_MODELS=models tests/e2e/greedy_matrix.py [--tokens 256] [--pairs default,smollm2]
"""

import argparse
import os
import sys
import tempfile
import time

from greedy_common import DRAFT, GEMMA, SMOLLM2, TARGET, levels, run, spoiled

PAIRS = {
    # name: target, draft ("spoiled": the target with some weights inverted), prompt tokens at most, levels
    "default": (TARGET, DRAFT, 128, "fast"),
    "smollm2": (SMOLLM2, SMOLLM2, 128, "all"),
    "smollm2-spoiled": (SMOLLM2, "spoiled", 128, "all"),
    "gemma": (GEMMA, GEMMA, 480, "fast"),  # 480 + 256: past the window of 512
    "gemma-spoiled": (GEMMA, "spoiled", 480, "fast"),
}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.environ.get("TANDEM_BUILD", "build"))
    p.add_argument("--models", default=os.environ.get("TANDEM_MODELS", "models"))
    p.add_argument("--tokens", type=int, default=256)
    p.add_argument("--pairs", default=",".join(PAIRS))
    p.add_argument("--k", default="1,2,3,4,5,8,16")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--levels", help="instead of all this machine has")
    p.add_argument("--prompts", default="code,prose,chinese")
    a = p.parse_args()
    ks = [int(k) for k in a.k.split(",")]
    have = a.levels.split(",") if a.levels else levels(a.build)
    n_runs, n_bad, start = 0, 0, time.time()
    with tempfile.TemporaryDirectory() as tmp:
        for pair in a.pairs.split(","):
            target, draft, max_prompt, which = PAIRS[pair]
            target = os.path.join(a.models, target)
            draft = (spoiled(target, os.path.join(tmp, pair + ".gguf")) if draft == "spoiled"
                     else os.path.join(a.models, draft))
            texts = {}
            for level in have if which == "all" else [x for x in have if x != "ref"] or have:
                for threads in map(int, a.threads.split(",")):
                    runs = run(a.build, target, draft, threads, a.tokens, max_prompt, ks, a.prompts.split(","),
                               level)
                    for r in runs:
                        known = texts.setdefault(r.prompt, r.hash)
                        good = r.same and r.hash == known
                        n_runs += 1
                        n_bad += not good
                        print(f"{pair:16} {level:7} t={threads} {r.prompt:8} k={r.k:<2} "
                              f"{'same' if good else 'DIFFERS'} {r.hash} rounds {r.rounds:3} "
                              f"accepted {r.accepted}/{r.drafted} {r.ms:.0f} ms", flush=True)
    print(f"{n_runs} runs in {time.time() - start:.0f} s, {n_bad} differ")
    return 1 if n_bad or not n_runs else 0


if __name__ == "__main__":
    sys.exit(main())
