"""src/text against the `tokenizers` library, jinja2 and plain Python.

The references are built from the GGUF files' own vocabularies, merges and scores; only the splitting
rules stand here, as the models' tokenizer.json files have them. Strings come from a generator with a fixed
seed and go to tokenize_tool in bulk.

Needs TANDEM_BUILD (a build directory) and TANDEM_MODELS (the test models).
"""

import os
import random
import re
import struct
import subprocess
import unicodedata
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import gguf
import jinja2
import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

BUILD = Path(os.environ.get("TANDEM_BUILD", "build"))
MODELS = Path(os.environ.get("TANDEM_MODELS", "models"))
TOOL = BUILD / "tests" / "golden" / "tokenize_tool"
QWEN = MODELS / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
QWEN_BIG = MODELS / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
SMOLLM = MODELS / "smollm2-135m-instruct-q4_1.gguf"
GEMMA = MODELS / "gemma-3-270m-q4_k_m.gguf"

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ADD_SPECIAL, PARSE_SPECIAL = 1, 2


# ---- the tool ----


def tool(mode, model, data):
    run = subprocess.run([TOOL, mode, model], input=data, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout


def records(texts, flags):
    flags = [flags] * len(texts) if isinstance(flags, int) else flags
    return b"".join(struct.pack("<II", f, len(t)) + t for t, f in zip(texts, flags))


def encode(model, texts, flags):
    """For each of the byte strings: (token ids, what the streaming detokeniser makes of them)."""
    out, at, result = tool("encode", model, records(texts, flags)), 0, []
    while at < len(out):
        (n,) = struct.unpack_from("<I", out, at)
        ids = np.frombuffer(out, "<i4", n, at + 4).tolist()
        (size,) = struct.unpack_from("<I", out, at + 4 + 4 * n)
        at += 8 + 4 * n
        result.append((ids, out[at : at + size]))
        at += size
    assert len(result) == len(texts)
    return result


# ---- what a file says ----


class Vocab(SimpleNamespace):
    def of_type(self, *types):
        return [t for t, kind in zip(self.tokens, self.types) if kind in types]


def read_vocab(path):
    fields = gguf.GGUFReader(path).fields

    def get(key, otherwise=None):
        return fields[key].contents() if key in fields else otherwise

    return Vocab(
        tokens=get("tokenizer.ggml.tokens"),
        types=get("tokenizer.ggml.token_type"),
        merges=[tuple(m.split(" ")) for m in get("tokenizer.ggml.merges", [])],
        scores=get("tokenizer.ggml.scores"),
        bos=get("tokenizer.ggml.bos_token_id"),
        add_bos=get("tokenizer.ggml.add_bos_token"),
        template=get("tokenizer.chat_template"),
    )


WRITTEN = {}  # what the tests themselves wrote, so that it need not be read back


@lru_cache(None)
def vocab(path):
    return WRITTEN.get(path) or read_vocab(path)


# ---- references ----

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
CASED = "".join(
    # two code points a range: the list of DeepSeek LLM's tokenizer.json
    chr(int(a, 16)) + "-" + chr(int(b or a, 16))
    for a, _, b in (
        r.partition("-")
        for r in """
    41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c
    38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b
    1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d
    1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102
    2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183
    2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e
    ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2
    10cc0-10cf2 118a0-118df 1e900-1e943""".split()
    )
)


def split(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


BYTES_ONLY = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
BYTES_GPT2 = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
DIGITS = [pre_tokenizers.Digits(individual_digits=True)]
SPLITTERS = {
    "qwen2": split(QWEN2) + BYTES_ONLY,
    "deepseek-r1-qwen": split(QWEN2) + BYTES_ONLY,
    "llama-bpe": split(LLAMA3) + BYTES_ONLY,
    "smollm": DIGITS + BYTES_GPT2,
    "starcoder": DIGITS + BYTES_GPT2,
    "gpt-2": BYTES_GPT2,
    "deepseek-llm": split(
        "[\r\n]",
        rf"\s?[{CASED}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        DEEPSEEK_CJK,
    )
    + DIGITS
    + BYTES_ONLY,
    "deepseek-coder": split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK) + DIGITS + BYTES_ONLY,
    "deepseek-v3": split(
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    )
    + BYTES_ONLY,
    "default": split(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]") + BYTES_ONLY,
}


def with_specials(tokenizer, v, parse_special):
    kinds = (USER, CONTROL, UNKNOWN) if parse_special else (USER,)
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in v.of_type(*kinds)])
    return tokenizer


@lru_cache(None)
def bpe_reference(path, pre, parse_special):
    v = vocab(path)
    ids = {t: i for i, t in enumerate(v.tokens)}
    tokenizer = Tokenizer(models.BPE(ids, v.merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITTERS[pre])
    return with_specials(tokenizer, v, parse_special)


@lru_cache(None)
def pieces(path):
    v = vocab(path)
    return {t: (-v.scores[i], i) for i, t in enumerate(v.tokens) if v.types[i] in (NORMAL, USER)}


@lru_cache(None)
def spm_reference(path, parse_special):
    """The library has no scores: every way to make a piece out of two becomes a merge, in the order of the
    pieces' scores. Two ways to the same piece, equal for SentencePiece, come one after the other."""
    v, rank, merges = vocab(path), pieces(path), []
    for piece, order in rank.items():
        for cut in range(1, len(piece)):
            left, right = rank.get(piece[:cut]), rank.get(piece[cut:])
            if left and right:
                merges.append((order, left[1], right[1], piece[:cut], piece[cut:]))
    merges.sort()
    ids = {t: i for i, t in enumerate(v.tokens)}
    tokenizer = Tokenizer(
        models.BPE(ids, [m[3:] for m in merges], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    return with_specials(tokenizer, v, parse_special)


@lru_cache(None)
def spm_specials(path, parse_special):
    v = vocab(path)
    kinds = (USER, CONTROL, UNKNOWN) if parse_special else (USER,)
    special = {t: i for i, t in enumerate(v.tokens) if v.types[i] in kinds}
    longest_first = sorted(special, key=len, reverse=True)
    byte_ids = [v.tokens.index(f"<0x{b:02X}>") for b in range(256)]
    return special, re.compile("(" + "|".join(map(re.escape, longest_first)) + ")"), byte_ids


def spm_plain(path, text, parse_special):
    """SentencePiece's rule in the plainest words: merge the pair of the best score, the leftmost among
    equals, until none merges."""
    rank = pieces(path)
    special, pattern, byte_ids = spm_specials(path, parse_special)
    result = []
    for part in pattern.split(text):
        if part in special:
            result.append(special[part])
            continue
        symbols = list(part.replace(" ", "\u2581"))
        while True:
            pairs = [
                (rank[a + b][0], i)
                for i, (a, b) in enumerate(zip(symbols, symbols[1:]))
                if a + b in rank
            ]
            if not pairs:
                break
            i = min(pairs)[1]
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        for s in symbols:
            if s in rank:
                result.append(rank[s][1])
            else:
                result += [byte_ids[b] for b in s.encode()]
    return result


# ---- strings ----

WORDS = """the of and Tandem speculative decoding it's IT'S they'll THEY'LL I'm I'M we've WE'VE you're YOU'RE he'd
HE'D don't DON'T o'clock rock'n'roll naïve façade Straße größer ﬁnal coöperate Œuvre çà où łódź žluťoučký kůň
съешь ещё этих мягких французских булок Ἀχιλλεύς ῥόδον ΐ ΰ Ὦ ώ K Ω Å ǅ ǈ ſtatt 'ſ 'ſt ﬅ שלום עולם נְקֻדּוֹת مرحبا
بالعالم السَّلامُ ١٢٣ ۴۵۶ สวัสดีชาวโลก ภาษาไทย नमस्ते दुनिया क्षत्रिय ज्ञ १२३ বাংলা தமிழ் తెలుగు ಕನ್ನಡ ქართული Ქართული
հայերեն አማርኛ ខ្មែរ မြန်မာ བོད་ ᏣᎳᎩ ꮳꮃꭹ 你好世界 漢字 今日は カタカナ ｶﾀｶﾅ ひらがな 안녕하세요 한국어 ﷽ ℂℍℕ 𝔘𝔫𝔦 𝟘𝟙𝟚 ①②③ Ⅳ ½ ⅷ ²³
tɕʰ ʻokina ＡＢＣ １２３ ！？ “quoted” ‘so’ – — … · • ™ © € £ ¥ ∑∫√ → ⇒ ▁ ▁▁ Ġ Ċ Ã©""".split()
CODE = """def class return if else: for while import from self None True ( ) { } [ ] ( ) => -> == != <= >= += && || :: ;
, . ... ++ -- << >> /* */ // # @ $ % ^ & * ~ ` \\ \\n \\t "" '' \"\"\" f" r' 0x1F 0b101 1e-9 3.14 1_000 i++ foo_bar fooBar
FooBar FOO_BAR __init__ std::vector<int> #include <stdio.h> printf("%d\\n", x); <div class="a"> </div> <b> </b> <h1>
https://example.com/a?b=c&d=%20 user@example.com C:\\path $HOME {{x}} {% if %} <!-- --> SELECT * FROM t; \t \n \n\n
\r\n    \t\t        """.split(" ")
SPACES = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵", "1️⃣", "❤️", "☃", "🧑🏿‍🚀", "👁️‍🗨️", "\u200d", "\ufe0f", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
SPECIAL = """<|endoftext|> <|im_start|> <|im_end|> <|im_start|>user <|im_end <|im_ <| |> <tool_call> </tool_call> <tool_call
<<|im_end|>> <|im_start|><|im_start|> <|fim_prefix|> <|file_sep|> <s> </s> <bos> <eos> <unk> <pad> <0x41> <0xE4>
<start_of_turn> <end_of_turn> <start_of_image> <unused1> <unused12> <unused6241> <unused <table> </td> </h1>
[multimodal] [PAD151665] <repo_name> <reponame> <empty_output> <|eot_id|> [INST]""".split()


@lru_cache(None)
def pool():
    """Characters that the regular expressions of both sides class alike: Unicode grows, and libraries know
    different editions of it."""
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    every = [c for c in every if unicodedata.category(c) != "Cn" or ord(c) & 0xFFFE == 0xFFFE]
    text = "".join(every)

    def members(pre_tokenizer):
        found = set()
        for piece, (begin, end) in pre_tokenizer.pre_tokenize_str(text):
            found.update(text[begin:end])
        return found

    kinds = {k: members(pre_tokenizers.Split(Regex(rf"[^\p{{{k}}}]+"), "removed")) for k in "LNPSM"}
    # the Digits splitter has tables of its own: it isolates each of its digits
    cuts = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str("".join(c + "ab" for c in every))
    digits = {piece for piece, _ in cuts if len(piece) == 1}

    def same(c):
        category = unicodedata.category(c)[0]
        return all((c in kinds[k]) == (category == k) for k in "LNPSM") and (c in digits) == (category == "N")

    alike = [c for c in every if same(c)]
    assert len(alike) > 0.98 * len(every)
    return alike


def piece(r, specials):
    kind = r.randrange(14)
    if kind == 0:
        return " ".join(r.choices(WORDS, k=r.randint(1, 6)))
    if kind == 1:
        return r.choice(["", " ", "\n"]).join(r.choices(CODE, k=r.randint(1, 10)))
    if kind == 2:
        return "".join(r.choices(SPACES, weights=[20, 5, 8, 4] + [1] * (len(SPACES) - 4), k=r.randint(1, 12)))
    if kind == 3:
        return r.choice([" ", "\n", "\t", "\r\n", " \n"]) * r.randint(1, 40)
    if kind == 4:
        return "".join(r.choices(EMOJI, k=r.randint(1, 5)))
    if kind == 5:
        return "".join(r.choices(pool(), k=r.randint(1, 12)))
    if kind == 6:  # neighbours in the tables: one script
        at = r.randrange(len(pool()) - 80)
        return "".join(r.choices(pool()[at : at + 80], k=r.randint(1, 20)))
    if kind == 7:
        return "".join(r.choice("eaouçnس") + "".join(chr(r.randint(0x300, 0x36F)) for _ in range(r.randint(0, 4))) for _ in range(4))
    if kind == 8:
        return r.choice(["", "-", "+", "$"]) + "".join(r.choices("0123456789.,eE ", k=r.randint(1, 14)))
    if kind == 9:
        s = r.choice(specials + SPECIAL)
        cut = r.random()
        return s if cut < 0.6 else s[r.randrange(len(s)) :] if cut < 0.8 else s[: r.randrange(len(s)) + 1]
    if kind == 10:
        return "".join(chr(r.choice([0, 0, 1, 4, 7, 8, 27, 127, 128, 0xA0, 0xAD])) for _ in range(r.randint(1, 5)))
    if kind == 11:
        return r.choice("aA=-_#.é漢\u2581🙂!?") * r.randint(2, 70)
    if kind == 12:
        return r.choice(["'", "’", " '", "''"]) + r.choice("s S t T re RE Re ve VE vE m M ll LL lL d D ſ x 1 'S".split()) + r.choice(["", "t", " ", "'", "ß"])
    return "".join(chr(r.randint(32, 126)) for _ in range(r.randint(1, 20)))


def strings(seed, n, specials):
    r = random.Random(seed)
    return ["".join(piece(r, specials) for _ in range(r.randint(1, 6))) for _ in range(n)] + [""]


def expect(reference, v, texts, flags):
    wanted = [[v.bos] if v.add_bos and f & ADD_SPECIAL else [] for f in flags]
    for parse in (False, True):
        at = [i for i, f in enumerate(flags) if bool(f & PARSE_SPECIAL) == parse]
        encoded = reference(parse).encode_batch_fast([texts[i] for i in at], add_special_tokens=False)
        for i, e in zip(at, encoded):
            wanted[i] = wanted[i] + e.ids
    return wanted


def compare(got, wanted, texts, flags):
    wrong = [i for i, w in enumerate(wanted) if got[i][0] != w]
    for i in wrong[:5]:
        print(f"{texts[i]!r} flags {flags[i]}:\n  got    {got[i][0]}\n  wanted {wanted[i]}")
    assert not wrong, f"{len(wrong)} of {len(texts)} differ"


# ---- byte-level BPE ----


def byte_spelling():
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {b: chr(b) for b in own} | {b: chr(0x100 + i) for i, b in enumerate(others)}


def missing_bytes(v):
    known = set(v.tokens)
    return bytes(b for b, s in byte_spelling().items() if s not in known)


def check_bpe(path, pre, texts):
    v = vocab(path)
    flags = [i % 4 for i in range(len(texts))]
    data = [t.encode() for t in texts]
    got = encode(path, data, flags)
    wanted = expect(lambda parse: bpe_reference(path, pre, parse), v, texts, flags)
    compare(got, wanted, texts, flags)
    lost = missing_bytes(v)
    for (ids, back), text in zip(got, data):
        assert back == text.translate(None, lost)


@pytest.mark.parametrize("path, pre", [(QWEN, "qwen2"), (SMOLLM, "smollm")], ids=["qwen2", "smollm"])
def test_bpe_equals_tokenizers(path, pre):
    check_bpe(path, pre, strings(1, 12000, vocab(path).of_type(CONTROL, USER)))


def test_both_qwen_files_are_one_vocabulary():
    texts = [t.encode() for t in strings(2, 2000, [])]
    assert encode(QWEN, texts, 2) == encode(QWEN_BIG, texts, 2)


def write_vocab(path, v, pre, merges=None, template=None):
    merges = merges or v.merges
    WRITTEN[path] = Vocab(**vars(v) | {"merges": merges, "add_bos": False})
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(v.tokens)
    w.add_token_types(v.types)
    w.add_token_merges([" ".join(m) for m in merges])
    w.add_bos_token_id(0)
    w.add_add_bos_token(False)
    if template is not None:
        w.add_chat_template(template)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


@pytest.mark.parametrize("pre", sorted(set(SPLITTERS) - {"qwen2", "smollm"}))
def test_pre_splitters_equal_tokenizers(pre, tmp_path):
    path = write_vocab(tmp_path / "v.gguf", vocab(SMOLLM), pre)
    check_bpe(path, pre, strings(3, 10000, vocab(SMOLLM).of_type(CONTROL)))


@lru_cache(None)
def pairs_vocab():
    """Every two bytes merge, in a random order: where words end shows in the tokens, whatever the
    characters. (Real vocabularies have few merges outside common text, which hide a wrong split.)"""
    letters = list(byte_spelling().values())
    merges = [(a, b) for a in letters for b in letters]
    random.Random(9).shuffle(merges)
    tokens = letters + [a + b for a, b in merges]
    return Vocab(tokens=tokens, types=[NORMAL] * len(tokens), merges=merges)


@lru_cache(None)
def every_character():
    """Each character in several places; of the large uniform blocks one in 97."""
    tables = [c for c in pool() if unicodedata.category(c) != "Co" and not 0x3400 <= ord(c) < 0xA000]
    tables = [c for c in tables if not 0xAC00 <= ord(c) < 0xD700 and ord(c) < 0x20000]
    tables += pool()[::97] + list("\u4dff\u4e00\u9fa5\u9fa6\uac00\ud7a3")
    return [f"a{c}b {c}{c}x'{c}t 1{c}1234{c}\n {c}  {c}-{c}." for c in tables if c in set_of_pool()]


@lru_cache(None)
def set_of_pool():
    return set(pool())


@pytest.mark.parametrize("pre", sorted(set(SPLITTERS) - {"starcoder", "deepseek-r1-qwen"}))
def test_pre_splitters_class_every_character_alike(pre, tmp_path):
    path = write_vocab(tmp_path / "v.gguf", pairs_vocab(), pre)
    # All of them for the splitter with its own list of letters and the default models' one; the others
    # name the same Unicode properties.
    step = 1 if pre in ("deepseek-llm", "qwen2") else 3
    check_bpe(path, pre, every_character()[::step] + strings(10, 2000, []))


def test_llama_bpe_takes_whole_words_that_no_merge_makes(tmp_path):
    two_thirds = [m for i, m in enumerate(vocab(QWEN).merges) if i % 3]
    path = write_vocab(tmp_path / "v.gguf", vocab(QWEN), "llama-bpe", merges=two_thirds)
    check_bpe(path, "llama-bpe", strings(4, 10000, []))


def test_unknown_pre_splitter_is_refused_by_name(tmp_path):
    path = write_vocab(tmp_path / "v.gguf", vocab(SMOLLM), "no-such-splitter")
    run = subprocess.run([TOOL, "info", path], capture_output=True, text=True)
    assert run.returncode == 1 and "no-such-splitter" in run.stderr and run.stderr.count("\n") == 1


# ---- SentencePiece ----


def test_spm_equals_tokenizers_and_the_plain_rule():
    v = vocab(GEMMA)
    user = v.of_type(USER)
    texts = strings(5, 12000, user + v.of_type(CONTROL)[:20])
    flags = [i % 4 for i in range(len(texts))]
    got = encode(GEMMA, [t.encode() for t in texts], flags)
    wanted = expect(lambda parse: spm_reference(GEMMA, parse), v, texts, flags)

    # The library tells two ways to make one piece apart, SentencePiece does not: in runs of one character
    # the leftmost pair can be another. There, and for every tenth string, the plain rule decides.
    differ = [i for i, w in enumerate(wanted) if got[i][0] != w]
    assert len(differ) < len(texts) / 50
    for i in sorted({*differ, *range(0, len(texts), 10)}):
        parse = bool(flags[i] & PARSE_SPECIAL)
        plain = ([v.bos] if flags[i] & ADD_SPECIAL else []) + spm_plain(GEMMA, texts[i], parse)
        assert got[i][0] == plain, repr(texts[i])

    for (ids, back), text, f in zip(got, texts, flags):
        bos = "<bos>" if f & ADD_SPECIAL else ""
        assert back.decode() == bos + text.replace("\u2581", " ")


# ---- what is not UTF-8 ----


def broken_strings(seed, n):
    r = random.Random(seed)
    result = []
    for s in strings(seed, n, []):
        b = bytearray(s.encode())
        for _ in range(r.randint(1, 4)):
            at = r.randint(0, len(b))
            what = r.randrange(3)
            if what == 0:
                b[at:at] = bytes(r.randrange(128, 256) for _ in range(r.randint(1, 4)))
            elif what == 1:
                del b[at : at + 1]
            else:
                b[at:at] = r.choice([b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98"])
        result.append(bytes(b))
    return result + [bytes(r.randrange(256) for _ in range(r.randint(1, 60))) for _ in range(n)]


@pytest.mark.parametrize("path, pre", [(QWEN, "qwen2"), (SMOLLM, "smollm")], ids=["qwen2", "smollm"])
def test_invalid_utf8_survives_in_bpe(path, pre):
    """Bad bytes are their own tokens; the valid text between them is encoded as if it stood alone."""
    v = vocab(path)
    lost, spelling = missing_bytes(v), byte_spelling()
    ids = {t: i for i, t in enumerate(v.tokens)}
    texts = broken_strings(6, 2000)
    reference = bpe_reference(path, pre, False)
    # The library's added tokens are not cut off by a bad byte beside them, so the parts can be encoded apart.
    for (got, back), text in zip(encode(path, texts, 0), texts):
        assert back == text.translate(None, lost)
        wanted = []
        for part in re.split("([\udc80-\udcff])", text.decode("utf-8", "surrogateescape")):
            if len(part) == 1 and "\udc80" <= part <= "\udcff":
                byte = spelling[ord(part) - 0xDC00]
                wanted += [ids[byte]] if byte in ids else []
            elif part:
                wanted += reference.encode(part, add_special_tokens=False).ids
        assert got == wanted, text


def test_invalid_utf8_survives_in_spm():
    texts = broken_strings(7, 2000)
    for (_, back), text in zip(encode(GEMMA, texts, 0), texts):
        assert back == text.replace("\u2581".encode(), b" ")


# ---- a million bytes ----


@lru_cache(None)
def large_texts(size=1000000):
    r = random.Random(8)
    prose = " ".join(r.choices(WORDS + CODE, k=size // 4)).encode()[:size]
    return {
        "prose": prose.decode("utf-8", "ignore"),
        "letters": "a" * size,
        "spaces": " " * size,
        "spaces and a letter": " " * size + "x",
        "spaces and a hanzi": " " * size + "\u6f22",
        "newlines": "\n" * size,
        "spaces and newlines": " \n" * (size // 2),
        "wide spaces": "\u3000" * (size // 3) + "x",
        "signs": "!" * size,
        "digits": "7" * size,
    }


def test_a_million_bytes_equal_tokenizers():
    texts = large_texts()
    got = encode(QWEN, [t.encode() for t in texts.values()], 2)
    for (name, text), (ids, back) in zip(texts.items(), got):
        assert ids == bpe_reference(QWEN, "qwen2", True).encode(text, add_special_tokens=False).ids, name
        assert back == text.encode(), name


def assert_linear(path, size=1000000):
    """Ten times the text in at most twenty times the processor time, the best of a few tries."""
    names, texts = [], []
    for name, text in large_texts(size).items():
        data = text.encode()
        names.append(name)
        texts += [data[: len(data) // 10], data]
    best = [float("inf")] * len(texts)
    for _ in range(3):
        lines = tool("time", path, records(texts, 2)).decode().split("\n")[1:-1]
        best = [min(b, int(line.split()[0])) for b, line in zip(best, lines)]
        ratios = {name: best[2 * i + 1] / best[2 * i] for i, name in enumerate(names)}
        if max(ratios.values()) <= 20:
            return
    pytest.fail(f"not linear: {ratios}")


@pytest.mark.parametrize("path", [QWEN, SMOLLM, GEMMA], ids=["qwen2", "smollm", "gemma"])
def test_time_grows_with_the_text(path):
    assert_linear(path)


@pytest.mark.parametrize("pre", sorted(set(SPLITTERS) - {"qwen2", "smollm", "starcoder", "deepseek-r1-qwen"}))
def test_time_grows_with_the_text_for_every_splitter(pre, tmp_path):
    assert_linear(write_vocab(tmp_path / "v.gguf", vocab(SMOLLM), pre), 300000)


# ---- ends, chat ----


def info(path):
    return dict(line.partition(" ")[::2] for line in tool("info", path, b"").decode().splitlines())


def test_ends_of_text():
    for path, names in (
        (QWEN, {"<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}),
        (SMOLLM, {"<|endoftext|>", "<|im_end|>"}),
        (GEMMA, {"<eos>", "<end_of_turn>"}),  # not "</s>", an HTML tag there
    ):
        ends = info(path)["ends"].split()
        assert {vocab(path).tokens[int(e)] for e in ends} == names


def render(template, messages):
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True)


QWEN3_LIKE = (
    "{%- if messages[0].role == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}\n"
    "{%- endif %}\n{%- for m in messages if m.role != 'system' %}\n"
    "    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
ESCAPES = (
    "{% if messages[0].role == 'user' %}{{ \"<|im_start|>system\\nSay \\\"it's\\\" \\\\ 'so'.\\nTwice.<|im_end|>\\n\" }}"
    "{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN_TEXT = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are plain.<|im_end|>\n{{ '' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def check_chat(path, template):
    data, wanted = b"", b""
    earlier = [("user", "¿Qué?"), ("assistant", " Nada.\n")]
    for user in ("Hello", "", "  two\nlines \n", "quotes \" ' \\n {{ x }} <|im_end|>", "漢字 🙂"):
        for system in (None, "Be brief.", "", "multi\nline é"):
            for turns in ([], earlier, 2 * earlier):
                messages = ([] if system is None else [("system", system)]) + turns + [("user", user)]
                flags = [{"system": 1, "user": 2, "assistant": 3}[role] for role, _ in messages[:-1]] + [0]
                data += records([content.encode() for _, content in messages], flags)
                text = render(template, [{"role": r, "content": c} for r, c in messages]).encode()
                wanted += struct.pack("<I", len(text)) + text
    assert tool("chat", path, data) == wanted


@pytest.mark.parametrize("path", [QWEN, QWEN_BIG, SMOLLM], ids=["qwen-0.5b", "qwen-1.5b", "smollm"])
def test_chat_equals_jinja(path):
    check_chat(path, gguf.GGUFReader(path).fields["tokenizer.chat_template"].contents())


@pytest.mark.parametrize("template", [QWEN3_LIKE, ESCAPES, PLAIN_TEXT], ids=["no default", "escapes", "plain"])
def test_chat_equals_jinja_for_other_chatml_templates(template, tmp_path):
    check_chat(write_vocab(tmp_path / "v.gguf", vocab(SMOLLM), "smollm", template=template), template)


def test_chat_refuses_what_is_not_chatml(tmp_path):
    path = write_vocab(tmp_path / "v.gguf", vocab(SMOLLM), "smollm", template="{{ '[INST] ' + m + ' [/INST]' }}")
    for model, word in ((path, "Mistral"), (GEMMA, "no chat template")):
        run = subprocess.run([TOOL, "chat", model], input=records([b"x"], 0), capture_output=True)
        assert run.returncode == 1 and word in run.stderr.decode() and not run.stdout
