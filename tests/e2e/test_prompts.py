"""tandem bench --prompts: the shapes of prompt files, the sets of bench/prompts, and what is refused.

Needs TANDEM_BUILD (a build folder); reading with a model needs TANDEM_MODELS, too.
"""
import json
import pathlib

import gguf
import jinja2
import pytest

from cli_common import SMOL, TANDEM, model, needs_build, tandem
from test_bad_input import check

pytestmark = needs_build
SETS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "prompts"
NAMES = ["code", "edit", "prose", "chat", "summary", "json", "math"]


def words(n):
    """A text of n tokens, one a word: lengths tell which messages were taken."""
    return " ".join(["one", "two", "three", "four", "five"][i % 5] for i in range(n))


def said(role, n):
    return {"role": role, "content": words(n)}


def turns(*pairs):
    return {"conversations": [{"from": who, "value": words(n)} for who, n in pairs]}


USER, ANSWER, SYSTEM = "user", "assistant", "system"

# What a file says; the messages, or the text, that it means; id, set and language.
SHAPES = [
    (words(5), words(5), (None, None, None)),
    ({"prompt": words(6), "id": "p\n1", "lang": "en"}, words(6), ("p\n1", None, "en")),
    ({"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "x", "entry_point": "f", "test": "y"},
     "def f():\n", ("HumanEval/0", None, None)),
    ({"id": 7, "messages": [said(USER, 7)]}, [said(USER, 7)], ("7", None, None)),
    ({"messages": [said(SYSTEM, 8), said(USER, 16), said(ANSWER, 32), said(USER, 64), said(ANSWER, 128)]},
     [said(SYSTEM, 8), said(USER, 16), said(ANSWER, 32), said(USER, 64)], (None, None, None)),
    ({"question_id": 81, "category": "writing", "turns": [words(9), words(50)]}, [said(USER, 9)],
     ("81", "writing", None)),
    ({"question": words(10), "answer": words(99)}, [said(USER, 10)], (None, None, None)),
    ({"id": "QWJhYvA_0", "language": "zh", **turns(("human", 11), ("gpt", 30), ("human", 60))}, [said(USER, 11)],
     ("QWJhYvA_0", None, "zh")),
    (turns(("system", 3), ("human", 12), ("user", 24), ("chatgpt", 48), ("human", 96)),
     [said(SYSTEM, 3), said(USER, 12), said(USER, 24)], (None, None, None)),
    (turns(("gpt", 40), ("human", 13), ("gpt", 80), ("human", 7)), [said(USER, 13)], (None, None, None)),
]


@pytest.fixture(scope="module")
def smol():
    return model(SMOL)


@pytest.fixture(scope="module")
def render(smol):
    """The model's template as jinja2 runs it."""
    template = jinja2.Template(gguf.GGUFReader(smol).fields["tokenizer.chat_template"].contents())
    return lambda messages: template.render(messages=messages, add_generation_prompt=True)


def bench(smol, tmp_path, *args):
    """(what it prints, the prompts in its JSON) of the shortest of runs."""
    out = tmp_path / "bench.json"
    result = tandem("bench", "-m", smol, "-md", smol, *args, "-n", "1", "--runs", "1", "-k", "1", "--json", out)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode(), json.loads(out.read_text())["prompts"]


@pytest.mark.parametrize("array", [False, True], ids=["lines", "array"])
def test_shapes(smol, render, tmp_path, array):
    """Each has as many tokens as the same conversation that jinja2 rendered, given as a text to continue."""
    path = tmp_path / "mixed"
    values = [v for v, _, _ in SHAPES]
    values += [{"prompt": meant if isinstance(meant, str) else render(meant)} for _, meant, _ in SHAPES]
    lines = "\n\n".join(json.dumps(v) for v in values)
    path.write_text(json.dumps(values, indent=1) if array else "\r\n" + lines)
    table, prompts = bench(smol, tmp_path, "--prompts", path)
    n = len(SHAPES)
    assert len(prompts) == 2 * n
    sizes = [p["prompt_tokens"] for p in prompts]
    assert sizes[:n] == sizes[n:] and len(set(sizes[:n])) == n  # all differ: no shape is taken for another
    assert [(p["id"], p["set"], p["lang"]) for p in prompts[:n]] == [labels for _, _, labels in SHAPES]
    assert f"prompt 3 of {2 * n}, HumanEval/0: " in table and f"prompt 2 of {2 * n}, p\\n1: " in table


def test_chat_and_system_message(smol, render, tmp_path):
    """--chat wraps texts as well; -sys stands where a prompt brings no system message."""
    path = tmp_path / "p.jsonl"
    values = [words(9), {"question": words(20)}, {"messages": [said(SYSTEM, 30), said(USER, 5)]}]
    path.write_text("\n".join(map(json.dumps, values)))
    _, prompts = bench(smol, tmp_path, "--prompts", path, "--chat", "-sys", words(3))
    own = [[said(SYSTEM, 3), said(USER, 9)], [said(SYSTEM, 3), said(USER, 20)], values[2]["messages"]]
    path.write_text("\n".join(json.dumps(render(m)) for m in own))
    _, by_hand = bench(smol, tmp_path, "--prompts", path)
    assert [p["prompt_tokens"] for p in prompts] == [p["prompt_tokens"] for p in by_hand]


def test_sets_by_name(smol, tmp_path):
    """Sets and files in the order given."""
    (tmp_path / "own.jsonl").write_text('{"id": "mine", "category": "c", "prompt": "a"}')
    _, prompts = bench(smol, tmp_path, "--prompts", f"math,{tmp_path}/own.jsonl,prose")
    wanted = [(v["id"], s, v["lang"]) for s in ("math", "prose") for v in read_set(s)]
    wanted.insert(len(read_set("math")), ("mine", "c", None))
    assert [(p["id"], p["set"], p["lang"]) for p in prompts] == wanted


def test_a_model_without_a_template(tmp_path):
    gemma = model("gemma-3-270m-q4_k_m.gguf")
    check(tandem("bench", "-m", gemma, "-md", gemma, "--prompts", "math"), 1, "no chat template", "a text to continue")


# ---- names: reading comes before the models, whose absence says that it went well ----

def read(prompts, **more):
    return tandem("bench", "-m", "no-model.gguf", "-md", "d", "--prompts", prompts, **more)


@pytest.mark.parametrize("prompts", NAMES + ["all", "code,prose", "all,math"])
def test_names(prompts, tmp_path):
    check(read(prompts, cwd=tmp_path), 1, "no-model.gguf")


def test_a_file_wins_over_a_set(tmp_path):
    check(read("./code", cwd=tmp_path), 1, "./code", "No such file")
    (tmp_path / "code").mkdir()
    check(read("code", cwd=tmp_path), 1, "no-model.gguf")
    check(read("./code", cwd=tmp_path), 1, "./code", "directory")
    (tmp_path / "math").write_text("broken")
    check(read("code,math", cwd=tmp_path), 1, "math, line 1")
    (tmp_path / "code,math").write_text('"fine"')
    check(read("code,math", cwd=tmp_path), 1, "no-model.gguf")


@pytest.mark.parametrize("prompts,word", [
    ("prosa", "did you mean prose?"), ("xyz", "code, edit, prose, chat, summary, json, math and all"), ("", "''"),
    ("code,", "''"), ("code,,math", "''"), ("a\nb", "'a\\nb'")])
def test_unknown_names(prompts, word, tmp_path):
    check(read(prompts, cwd=tmp_path), 2, "--prompts", word, "tandem help")


def test_missing_file(tmp_path):
    check(read(tmp_path / "none"), 1, "none", "No such file")
    check(read("code,none.jsonl", cwd=tmp_path), 1, "none.jsonl", "No such file")


def test_messages_need_control_tokens(tmp_path):
    result = tandem("bench", "-m", "m", "-md", "d", "--prompts", "math", "--no-parse-special")
    check(result, 2, "--no-parse-special", "math")


# ---- contents that are refused; test_bad_input has more ----

WRONG = [
    ('{"prompt": 1}', '"prompt" has to be a string'),
    ('{"question": ["a"]}', '"question" has to be a string'),
    ('{"turns": []}', 'the first of "turns" has to be a string'),
    ('{"turns": "a"}', 'the first of "turns" has to be a string'),
    ('{"messages": "a"}', '"messages" has to be a list'),
    ('{"messages": []}', "no message of a user"),
    ('{"messages": [{"role": "assistant", "content": "a"}]}', "no message of a user"),
    ('{"messages": ["a"]}', 'item 1: needs strings "role" and "content"'),
    ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', 'item 1: needs strings "role" and "content"'),
    ('{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}', "item 2: there is no role 'tool'"),
    ('{"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}', "system message has to be the first"),
    ('{"conversations": []}', "no message of a user"),
    ('{"conversations": [{"from": "gpt", "value": "a"}]}', "no message of a user"),
    ('{"conversations": [{"role": "user", "content": "a"}]}', 'needs strings "from" and "value"'),
    ('{"text": "a"}', '"messages"'), ("3", '"messages"'), ("null", '"messages"'), ("{}", '"messages"'),
    ('{"prompt": "a"', "not a whole JSON value"),
]


@pytest.mark.parametrize("value,word", WRONG)
def test_wrong_values(value, word, tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text(f'"good"\n\n{value}\n"good"')
    check(read(path), 1, str(path), "line 3: ", word)
    if not value.endswith('"a"'):
        path.write_text(f'["good",\n{value}]')
        check(read(path), 1, str(path), "entry 2: ", word)


@pytest.mark.parametrize("content,word", [
    ("[]", "no prompt"), (" \n [ ] \n", "no prompt"), ('["a",\n"b"', "line 2: not JSON"), ('["a"]\n"b"\n', "line 2: not JSON"),
    ('"a"\n' * 1001, "more than 1000 prompts"), (json.dumps(["a"] * 1001), "more than 1000 prompts"),
    ("[" * 100000, "not JSON"), ('{"a":' * 100000, "line 1")])
def test_wrong_files(content, word, tmp_path):
    path = tmp_path / "f"
    path.write_text(content)
    check(read(path), 1, str(path), word)


# ---- our sets ----

def read_set(name):
    return [json.loads(line) for line in (SETS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_folder_holds_the_sets_that_are_built_in():
    assert sorted(f.stem for f in SETS.glob("*.jsonl")) == sorted(NAMES)
    program = TANDEM.read_bytes()
    for name in NAMES:
        assert (SETS / f"{name}.jsonl").read_bytes() in program


@pytest.mark.parametrize("name", NAMES)
def test_set(name):
    values = read_set(name)
    assert len(values) >= 8
    assert [v["id"] for v in values] == [f"{name}-{i + 1}" for i in range(len(values))]
    languages = [v["lang"] for v in values]
    assert all(languages.count(lang) >= 2 for lang in ("en", "es", "zh")) and len(set(languages)) == 3
    for v in values:
        assert set(v) <= {"id", "lang", "messages", "prompt", "original"} and ("messages" in v) != ("prompt" in v)
        roles = [m["role"] for m in v.get("messages", [])]
        if roles[:1] == ["system"]:
            roles = roles[1:]
        assert "prompt" in v or roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        contents = [m["content"] for m in v.get("messages", [])] + [v.get("prompt", "x")]
        assert all(c.strip() for c in contents)
        # The language is what it says: Chinese characters, Spanish letters, or neither.
        asked = "".join(contents)
        chinese = sum("\u4e00" <= c <= "\u9fff" for c in asked)
        assert (chinese > 20) == (v["lang"] == "zh")
        assert v["lang"] != "es" or any(c in asked for c in "áéíóúñ¿")


def test_edits_give_the_whole_file():
    for v in read_set("edit"):
        assert v["original"] in v["messages"][-1]["content"]
        assert 40 <= len(v["original"].splitlines()) <= 120


def test_texts_to_sum_up_have_their_length():
    for v in read_set("summary"):
        text = v["messages"][0]["content"].split("\n\n", 1)[1]
        assert 300 <= len(text) <= 1000 if v["lang"] == "zh" else 200 <= len(text.split()) <= 500
