"""What the tests of the command line share: where the program and the models are, and running it."""
import os
import pathlib
import subprocess

import pytest

BUILD = os.environ.get("TANDEM_BUILD")
MODELS = os.environ.get("TANDEM_MODELS")
TANDEM = (pathlib.Path(BUILD or ".") / "src" / "cli" / "tandem").resolve()  # tests may run it in other folders

SMOL = "smollm2-135m-instruct-q4_1.gguf"
QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"

needs_build = pytest.mark.skipif(not BUILD, reason="TANDEM_BUILD names no build folder")


def model(name):
    """The path of a test model; skips the test where it is missing."""
    path = pathlib.Path(MODELS or ".") / name
    if not MODELS or not path.exists():
        pytest.skip(f"{name} is not in TANDEM_MODELS")
    return str(path)


def tandem(*args, stdin=b"", env=None, timeout=300, **more):
    """Runs the program to its end; bytes in, bytes out."""
    if stdin is not None:
        more["input"] = stdin
    return subprocess.run([str(TANDEM), *map(str, args)], stdout=more.pop("stdout", subprocess.PIPE),
                          stderr=subprocess.PIPE, env={**os.environ, **(env or {})}, timeout=timeout, **more)
