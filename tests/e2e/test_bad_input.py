"""Bad input is normal input: one clear line on standard error, nothing on standard output, and the right
exit code (1 failed, 2 misuse), for everything people and files get wrong.

Needs TANDEM_BUILD (a build folder); rows that need a model need TANDEM_MODELS.
"""
import os
import pty
import struct
import subprocess

import gguf
import numpy as np
import pytest

from cli_common import QWEN, SMOL, TANDEM, model, needs_build, tandem

pytestmark = needs_build


def check(result, code, *words):
    """One line, from us, with these words; the exit code; no output."""
    err = result.stderr.decode(errors="replace")
    assert result.returncode == code, err
    assert err.startswith("tandem: ") and err.endswith("\n") and err.count("\n") == 1, err
    assert len(err) > len("tandem: ") + 10
    for word in words:
        assert word in err, f"'{word}' is not in: {err}"
    assert not result.stdout


# ---- the command line: no model is needed to refuse these ----

RUN = ["run", "-m", "model.gguf", "-p", "x"]
MISUSE = [
    (["fly"], "unknown command 'fly'"),
    (["insepct", "x"], "did you mean inspect?"),
    (["-m", "model.gguf"], "command comes first"),
    (["help", "fly"], "unknown command 'fly'"),
    (["run"], "-m FILE"),
    (["run", "-md", "d.gguf", "-p", "x"], "-md needs a target"),
    (["run", "-m"], "-m needs a value"),
    (["run", "-m", "-p", "x"], "option -p follows"),
    (["run", "-m", "model.gguf", "-n", "--temp", "0"], "option --temp follows"),
    (RUN + ["--wobble"], "unknown option --wobble"),
    (RUN + ["--top_kk", "4"], "did you mean --top-k?"),
    (RUN + ["--tmep", "0"], "did you mean --temp?"),
    (RUN + ["--ctx-sise=1"], "did you mean --ctx-size?"),
    (RUN + ["--ignore-eos=1"], "takes no value"),
    (RUN + ["stray"], "unexpected argument 'stray'"),
    (RUN + ["-f", "file"], "one of -p, -f"),
    (RUN + ["-sys", "x"], "-sys needs --chat"),
    (RUN + ["-k", "4"], "-k needs a draft"),
    (RUN + ["--chat", "--no-parse-special"], "--no-parse-special"),
    (RUN + ["--json", "-"], "--json writes a file"),
    (RUN + ["--json", ""], "--json needs the name"),
    (RUN + ["--stop", ""], "empty"),
    (RUN + ["-ctk", "q5_1"], "-ctk takes f32, f16, q8_0 or q4_0"),
    (RUN + ["--cache-type-v", "q8_1"], "takes f32, f16, q8_0 or q4_0"),
    (RUN + ["--runs", "3"], "for 'tandem bench'"),
    (RUN + ["-ngl", "99"], "CPU"),
    (RUN + ["-ctkd", "f16"], "-ctk, -ctv"),
    (["run", "-m", "model.gguf", "-e", "-p", "a\\x00b"], "\\x00"),
    (["bench", "-m", "model.gguf"], "-md FILE"),
    (["bench", "-m", "a", "-md", "b", "-n", "-1"], "at least one token"),
    (["bench", "-m", "a", "-md", "b", "-k", "2,,4"], "commas"),
    (["bench", "-m", "a", "-md", "b", "-k", "0"], "from 1 to 64"),
    (["bench", "-m", "a", "-md", "b", "--runs", "0"], "from 1 to"),
    (["inspect"], "which file?"),
    (["inspect", "a", "b"], "unexpected argument 'b'"),
    (["inspect", "-n", "3", "a"], "for 'tandem run'"),
]


@pytest.mark.parametrize("args,words", MISUSE, ids=[" ".join(a)[-40:] for a, _ in MISUSE])
def test_misuse(args, words):
    check(tandem(*args), 2, words, "tandem help")


def test_no_arguments_show_the_usage():
    result = tandem()
    assert result.returncode == 2 and not result.stdout
    assert result.stderr.startswith(b"usage: tandem COMMAND") and b"bench" in result.stderr


NOT_NUMBERS = ["", " ", "x", "12x", "1 2", "nan", "inf", "-inf", "0x10", "1e999", "--5", "1.5.2"]
INTEGERS = {"-n": ["-2", "1e3", "1.5", "99999999999999999999"],
            "-c": ["-1", "1.0", "2000000000"],
            "-t": ["0", "-2", "1025"],
            "-k": ["-1", "65", "automatic", "3,auto"],
            "--top-k": ["-1", "0.5"],
            "--repeat-last-n": ["-2"],
            "-s": ["-2", "18446744073709551615", "1.5"]}
REALS = {"--temp": ["-0.1", "1e9"],
         "--top-p": ["-0.1", "1.01"],
         "--min-p": ["-0.1", "2"],
         "--repeat-penalty": ["0", "-1", "1000"],
         "--presence-penalty": ["-1000"],
         "--frequency-penalty": ["1000"]}
BIASES = ["15", "+1", "x+1", "15*2", "15+", "15+nan", "15+inf", "-3+1", "99999999999+1", "15+1e9"]
NUMBERS = [(flag, value) for flag, values in {**INTEGERS, **REALS}.items() for value in NOT_NUMBERS + values]
NUMBERS += [("--logit-bias", value) for value in BIASES]


@pytest.mark.parametrize("flag,value", NUMBERS)
def test_absurd_number(flag, value):
    """Read to their end, in their range, or refused with the flag's name."""
    check(tandem(*RUN, "-md", "d.gguf", f"{flag}={value}"), 2, flag, f"'{value}'")


# ---- files ----

def header(n_tensors, n_kv):
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_kv)


def text_key(key, value):
    return struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value


def unknown_architecture(path):
    w = gguf.GGUFWriter(str(path), "perceptron")
    w.add_block_count(1)
    w.add_context_length(16)
    w.add_embedding_length(32)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([b"A", b"B", b"AB", b"C", b"D", b"E", b"F", b"G"])
    w.add_token_merges(["A B"])
    w.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def unknown_type(path):
    """One tensor of type 200, which no list of types has."""
    name = b"token_embd.weight"
    tensor = struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 32, 8, 200, 0)
    body = header(1, 1) + text_key(b"general.architecture", b"llama") + tensor
    path.write_bytes(body + b"\0" * (-len(body) % 32) + b"\0" * 4096)


FILES = {
    "missing": (None, "No such file"),
    "directory": (lambda p: p.mkdir(), "directory"),
    "empty": (lambda p: p.write_bytes(b""), ""),
    "text": (lambda p: p.write_text("not a model\n" * 100), "GGUF"),
    "png": (lambda p: p.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 500), "GGUF"),
    "header alone": (lambda p: p.write_bytes(header(5, 5)), ""),
    "promises too much": (lambda p: p.write_bytes(header(1 << 60, 1 << 60) + b"\0" * 64), ""),
    "unknown architecture": (unknown_architecture, "perceptron"),
    "unknown type": (unknown_type, "200"),
    "no permission": (lambda p: (p.write_bytes(header(0, 0)), p.chmod(0)), "ermission"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", ["run", "draft", "inspect"])
def test_bad_model_file(tmp_path, kind, command):
    make, words = FILES[kind]
    path = tmp_path / "bad.gguf"
    if kind == "no permission" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    if command == "inspect" and kind == "unknown architecture":
        pytest.skip("showing it is what inspect is for; test_inspect_shows_an_unknown_architecture")
    if make:
        make(path)
    if command == "inspect":
        result = tandem("inspect", path)
    elif command == "run":
        result = tandem("run", "-m", path, "-p", "x", "-n", "1")
    else:
        result = tandem("run", "-m", model(SMOL), "-md", path, "-p", "x", "-n", "1")
    check(result, 1, words, "bad.gguf")


def test_inspect_shows_an_unknown_architecture(tmp_path):
    unknown_architecture(tmp_path / "new.gguf")
    result = tandem("inspect", tmp_path / "new.gguf")
    assert (result.returncode == 0 and b"perceptron" in result.stdout) or b"perceptron" in result.stderr


@pytest.mark.parametrize("size", [4, 1000, 100_000, 5_000_000, -1])
def test_truncated_model(tmp_path, size):
    path = tmp_path / "cut.gguf"
    with open(model(SMOL), "rb") as f:
        data = f.read()
    path.write_bytes(data[:size])
    check(tandem("run", "-m", path, "-p", "x", "-n", "1"), 1, "cut.gguf")
    check(tandem("inspect", path), 1, "cut.gguf")


def test_file_name_with_control_characters(tmp_path):
    """A newline or an escape sequence in a name must not become a second line or a colour."""
    check(tandem("run", "-m", tmp_path / "a\nb\x1b[31m.gguf", "-p", "x"), 1, "a?b?[31m.gguf")


def test_draft_of_another_vocabulary():
    check(tandem("run", "-m", model(QWEN), "-md", model(SMOL), "-p", "x", "-n", "1"), 1, "vocabular")


@pytest.mark.parametrize("content,words", [
    (b"", "no prompt"), (b"\n \n", "no prompt"), (b"hello\n", "line 1"), (b'"a"\n{"text": "b"}\n', "line 2"),
    (b'"a"\n\n["b"]\n', "line 3"), (b'"\xff"\n', "line 1")])
def test_prompts_file(tmp_path, content, words):
    path = tmp_path / "prompts"
    path.write_bytes(content)
    check(tandem("bench", "-m", "m", "-md", "d", "--prompts", path), 1, words, "prompts")


def test_prompt_files(tmp_path):
    smol = model(SMOL)
    check(tandem("run", "-m", smol, "-f", tmp_path / "none"), 1, "none", "No such file")
    check(tandem("run", "-m", smol, "-f", tmp_path), 1, "directory")
    check(tandem("run", "-m", smol, "-f", smol + "/x"), 1, "Not a directory")
    check(tandem("run", "-m", smol, "-f", "/dev/zero"), 1, "/dev/zero", "MB")


# ---- sizes ----

def test_context_too_large_for_memory():
    check(tandem("run", "-m", model(SMOL), "-p", "x", "-n", "1", "-c", "200000000"), 1, "context")


def test_prompt_longer_than_the_context():
    check(tandem("run", "-m", model(SMOL), "-p", "word " * 100, "-c", "50"), 1, "50")
    check(tandem("run", "-m", model(SMOL), "-md", model(SMOL), "-p", "word " * 100, "-c", "50"), 1, "50")


def test_bias_of_a_token_that_does_not_exist():
    check(tandem("run", "-m", model(SMOL), "-p", "x", "-l", "49152+1"), 2, "49152", "49151")


def test_short_memory():
    """4 GB of address space would do; 60 MB do not hold the weights."""
    check(subprocess.run(["prlimit", "--as=60000000", str(TANDEM), "run", "-m", model(SMOL), "-p", "x"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE), 1)


# ---- the environment ----

def test_unknown_cpu_level():
    check(tandem("run", "-m", "m", "-p", "x", env={"TANDEM_CPU": "z80"}), 2, "TANDEM_CPU", "z80")
    check(tandem("--version", env={"TANDEM_CPU": "z80"}), 2, "TANDEM_CPU")


# ---- standard input and output ----

def test_unreadable_stdin(tmp_path):
    smol = model(SMOL)
    for args in (["-p", "-"], ["-f", "-"], []):
        check(tandem("run", "-m", smol, *args, stdin=None, preexec_fn=lambda: os.close(0)), 1, "standard input")
        fd = os.open(tmp_path, os.O_RDONLY)
        check(tandem("run", "-m", smol, *args, stdin=None, preexec_fn=lambda: os.dup2(fd, 0)), 1, "standard input")
        os.close(fd)


def test_terminal_without_a_prompt():
    main, terminal = pty.openpty()
    result = tandem("run", "-m", "m", stdin=None, preexec_fn=lambda: os.dup2(terminal, 0))
    check(result, 2, "no prompt")
    os.close(main)
    os.close(terminal)


def test_closed_pipe():
    """`tandem run | head -c 1`: it stops instead of writing a thousand tokens to nobody."""
    p = subprocess.Popen([str(TANDEM), "run", "-m", model(SMOL), "-p", "Once upon a time", "-n", "4000", "--ignore-eos"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert len(p.stdout.read(1)) == 1
    p.stdout.close()
    err = p.stderr.read().decode()
    assert p.wait(60) == 1
    assert err == "tandem: standard output can't be written: Broken pipe\n"


def test_full_or_closed_stdout():
    args = ["run", "-m", model(SMOL), "-p", "Once upon a time", "-n", "4"]
    with open("/dev/full", "wb") as full:
        check_stderr = tandem(*args, stdout=full)
        assert (check_stderr.returncode, check_stderr.stderr) == (
            1, b"tandem: standard output can't be written: No space left on device\n")
        for other in (["--help"], ["help", "run"], ["--version"], ["inspect", model(SMOL)]):
            result = tandem(*other, stdout=full)
            assert result.returncode == 1 and b"No space left" in result.stderr, other
    result = tandem(*args, preexec_fn=lambda: os.close(1))
    assert result.returncode == 1 and result.stderr.count(b"\n") == 1 and b"standard output" in result.stderr


def test_json_that_cannot_be_written(tmp_path):
    args = ["run", "-m", model(SMOL), "-p", "x", "-n", "2", "-q"]
    full = tandem(*args, "--json", "/dev/full")
    assert full.returncode == 1 and full.stderr.count(b"\n") == 1
    assert full.stderr == b"tandem: --json: /dev/full can't be written: No space left on device\n"
    # What is known at the start is said at the start: no text.
    check(tandem(*args, "--json", tmp_path), 1, "is a directory")
    check(tandem(*args, "--json", tmp_path / "no" / "x.json"), 1, "No such file")
    if os.geteuid():
        tmp_path.chmod(0o500)
        check(tandem(*args, "--json", tmp_path / "x.json"), 1, "ermission")
