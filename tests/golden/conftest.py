"""What the golden tests share: where models, programs and the reference are."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "reference"))


@pytest.fixture(scope="session")
def model_path():
    """model_path(file name) -> path in $TANDEM_MODELS; skips the test where the file is not."""
    folder = os.environ.get("TANDEM_MODELS")

    def find(name):
        path = os.path.join(folder or "", name)
        if not folder or not os.path.exists(path):
            pytest.skip(f"{name} is not in TANDEM_MODELS")
        return path

    return find


@pytest.fixture(scope="session")
def golden_tool():
    """golden_tool(name) -> path of a program that meson built in tests/golden; skips where there is no build."""
    folder = os.environ.get("TANDEM_BUILD")

    def find(name):
        if not folder:
            pytest.skip("TANDEM_BUILD names no build folder")
        path = os.path.join(folder, "tests", "golden", name)
        assert os.access(path, os.X_OK), f"{path} was not built"
        return path

    return find
