"""libtandem as others find it: installed, with its pkg-config file, its header and no symbol besides."""

import glob
import os
import re
import shutil
import subprocess

import pytest

BUILD = os.environ.get("TANDEM_BUILD")
MODELS = os.environ.get("TANDEM_MODELS")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CC = os.environ.get("CC", "cc").split()
pytestmark = pytest.mark.skipif(not BUILD, reason="TANDEM_BUILD names no build folder")
SMOLLM2 = os.path.join(MODELS or "", "smollm2-135m-instruct-q4_1.gguf")


def ask(*command, **kw):
    out = subprocess.run(command, capture_output=True, text=True, **kw)
    assert out.returncode == 0, f"{command}: {out.stdout}{out.stderr}"
    return out.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of an installation, and an environment in which pkg-config finds it."""
    dest = str(tmp_path_factory.mktemp("install"))
    ask("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", dest)
    (pc,) = glob.glob(dest + "/**/tandem.pc", recursive=True)
    env = dict(os.environ, PKG_CONFIG_PATH=os.path.dirname(pc), PKG_CONFIG_SYSROOT_DIR=dest)
    return dest, env


def header():
    with open(os.path.join(ROOT, "src", "tandem.h")) as f:
        return f.read()


def test_only_the_headers_functions_are_exported(installed):
    (lib,) = glob.glob(installed[0] + "/**/libtandem.so", recursive=True)
    symbols = {line.split()[-1] for line in ask("nm", "-D", "--defined-only", lib).splitlines()}
    declared = set(re.findall(r"^TD_API[^(;]*?\b(td_\w+)\(", header(), re.M))
    assert len(declared) > 20
    assert symbols == declared


@pytest.mark.parametrize("language", ["c", "c++"])
def test_header_stands_alone(language, installed, tmp_path):
    compiler = CC if language == "c" else [os.environ.get("CXX", "c++")]
    if not shutil.which(compiler[0]):
        pytest.skip(f"no compiler for {language}")
    source = tmp_path / "alone.c"
    source.write_text("#include <tandem.h>\nint main(void) { return td_version() == 0; }\n")
    flags = ask("pkg-config", "--cflags", "tandem", env=installed[1]).split()
    ask(*compiler, "-x", language, "-Wall", "-Wextra", "-Werror", "-c", str(source), "-o", str(tmp_path / "alone.o"),
        *flags)


def test_version(installed):
    assert ask("pkg-config", "--modversion", "tandem", env=installed[1]).strip()
    assert "libpcre2-8" in ask("pkg-config", "--print-requires-private", "tandem", env=installed[1])


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_example(kind, installed, tmp_path):
    """The example of the README, built by its own words, generates with SmolLM2; as its own draft, the same."""
    if not os.path.exists(SMOLLM2):
        pytest.skip("SmolLM2 is not in TANDEM_MODELS")
    dest, env = installed
    source, program = os.path.join(ROOT, "examples", "generate.c"), str(tmp_path / "generate")
    assert len(open(source).readlines()) <= 40
    static = ["--static"] if kind == "static" else []
    flags = ask("pkg-config", "--cflags", "--libs", *static, "tandem", env=env).split()
    if static:  # the archive stands beside the shared library, which the linker would prefer
        flags = ["-l:libtandem.a" if f == "-ltandem" else f for f in flags]
    ask(*CC, "-Wall", "-Wextra", "-Werror", source, *flags, "-o", program)
    (lib,) = glob.glob(dest + "/**/libtandem.so", recursive=True)
    if not static:
        env = dict(env, LD_LIBRARY_PATH=os.path.dirname(lib))
    prompt = "Once upon a time"
    plain = subprocess.run([program, prompt, SMOLLM2], env=env, capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout.split()) > 20
    assert re.search(r"\n64 tokens in 64 passes\n$", plain.stderr)
    spec = subprocess.run([program, prompt, SMOLLM2, SMOLLM2], env=env, capture_output=True, text=True)
    assert spec.returncode == 0, spec.stderr
    assert spec.stdout == plain.stdout
    assert re.search(r"\n64 tokens in \d+ passes\n$", spec.stderr)
    wrong = subprocess.run([program, prompt, source], env=env, capture_output=True, text=True)
    assert wrong.returncode == 1 and wrong.stderr.startswith("generate: ") and wrong.stderr.count("\n") == 1
