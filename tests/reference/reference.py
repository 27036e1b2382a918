#!/usr/bin/env python3
"""The independent reference: a decoder-only transformer in float64 with numpy.

Tandem's logits are judged against this file, so it shares nothing with Tandem: the `gguf` package reads
the file and dequantises, numpy multiplies in float64, and the architecture is written down here once
more, straight from the papers and model cards (llama, qwen2, qwen3, gemma3). It is written to be read
beside them, and to be right; it is slow, and only its memory is watched (one tensor is dequantised at a time).

    reference.py MODEL.gguf TEXT.txt [N]         perplexity of the first N tokens (256)
    reference.py MODEL.gguf --greedy PROMPT [N]  N tokens of greedy continuation (32)

As a module: `tokenizer(path)`, `hidden(path, [ids, ...])`, `log_probs(path, hidden)`.
"""
import functools
import hashlib
import os
import sys
import unittest.mock

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

# Rows of a weight matrix that are dequantised and multiplied at a time: bounds memory at the unembedding,
# where a vocabulary of 262144 in float64 would be gigabytes.
BLOCK_ROWS = 16384


@functools.lru_cache(maxsize=1)
def read_file(path):
    """The reader and the tensors by name, kept for the next call: vocabularies are lists of 100,000 small arrays."""
    # Slices of a memmap are memmaps, each three times the work of a plain array's: the reader gets the plain view.
    with unittest.mock.patch.object(np, "memmap", lambda *a, map=np.memmap, **k: np.asarray(map(*a, **k))):
        reader = GGUFReader(path)
    return reader, {t.name: t for t in reader.tensors}


class Model:
    """A GGUF file seen as metadata and named float64 matrices."""

    def __init__(self, path):
        self.path = path
        self.reader, self.tensors = read_file(os.fspath(path))
        self.arch = self.field("general.architecture")
        if self.arch not in ("llama", "qwen2", "qwen3", "gemma3"):
            raise ValueError(f"{path}: the reference knows no architecture '{self.arch}'")
        self.n_layer = self.meta("block_count")
        self.n_embd = self.meta("embedding_length")
        self.n_head = self.meta("attention.head_count")
        self.n_head_kv = self.meta("attention.head_count_kv", self.n_head)
        self.head_dim = self.meta("attention.key_length", self.n_embd // self.n_head)
        self.eps = self.meta("attention.layer_norm_rms_epsilon")
        self.rope_base = self.meta("rope.freq_base", 10000.0)
        self.rope_dim = self.meta("rope.dimension_count", self.head_dim)
        self.rope_factor = 1.0
        # Gemma 3: five local layers to a global one. Local ones see `window` positions, themselves included, and have
        # their own RoPE base, which files lack.
        self.period = 6 if self.arch == "gemma3" else 0
        self.window = self.meta("attention.sliding_window", 0) if self.period else 0
        self.local_base = 10000.0
        scaling = self.meta("rope.scaling.type", "none")
        if scaling == "linear":
            self.rope_factor = self.meta("rope.scaling.factor")
        elif scaling != "none":
            raise ValueError(f"{path}: the reference knows no RoPE scaling '{scaling}'")

    def field(self, key, default=None):
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def meta(self, key, default=None):
        return self.field(f"{self.arch}.{key}", default)

    def has(self, name):
        return name in self.tensors

    def weight(self, name, rows=slice(None)):
        """The tensor (or some of its rows) in float64."""
        tensor = self.tensors[name]
        return dequantize(tensor.data[rows], tensor.tensor_type).astype(np.float64)

    def project(self, x, name):
        """x @ W^T + b for the matrix and, where the file has one, the bias called `name`."""
        n_out = int(self.tensors[name + ".weight"].shape[1])
        y = np.empty((x.shape[0], n_out))
        for at in range(0, n_out, BLOCK_ROWS):
            rows = slice(at, min(at + BLOCK_ROWS, n_out))
            y[:, rows] = x @ self.weight(name + ".weight", rows).T
        if self.has(name + ".bias"):
            y += self.weight(name + ".bias")
        return y


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rope(x, n_rot, base, factor, freq_factors, interleaved):
    """Rotate the first n_rot dimensions of x (positions, heads, head_dim) by position.

    interleaved: dimensions 2i and 2i+1 are a pair (the llama files are permuted for it); otherwise i and
    i + n_rot/2 are (as in GPT-NeoX)."""
    freq = base ** (-np.arange(0, n_rot, 2) / n_rot) / factor
    if freq_factors is not None:
        freq = freq / freq_factors
    angle = np.arange(x.shape[0])[:, None, None] * freq
    cos, sin = np.cos(angle), np.sin(angle)
    first = slice(0, n_rot, 2) if interleaved else slice(0, n_rot // 2)
    second = slice(1, n_rot, 2) if interleaved else slice(n_rot // 2, n_rot)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def attention(q, k, v, scale, window):
    """Causal attention of one sequence. q: (n, H, d); k, v: (n, G, d), each shared by H/G heads.
    window: a position sees itself and the window - 1 before it; 0 for all."""
    n, n_head, _ = q.shape
    back = np.arange(n)[:, None] - np.arange(n)[None, :]
    seen = back >= 0
    if window:
        seen &= back < window
    out = np.empty(q.shape[:2] + v.shape[2:])
    for h in range(n_head):
        g = h * k.shape[1] // n_head
        scores = np.where(seen, q[:, h] @ k[:, g].T * scale, -np.inf)
        out[:, h] = softmax(scores) @ v[:, g]
    return out.reshape(n, -1)


def layer(m, il, x, starts):
    """One block over the rows of several sequences; starts are the row numbers where they begin and end."""
    gemma = m.arch == "gemma3"
    name = f"blk.{il}."
    norm = lambda y, what: rms_norm(y, m.weight(name + what + ".weight"), m.eps)

    base, factor, window = m.rope_base, m.rope_factor, 0
    if m.period and (il + 1) % m.period != 0:
        base, factor, window = m.local_base, 1.0, m.window  # local layers' positions are never scaled
    scale = m.head_dim ** -0.5
    if gemma and m.n_layer == 62:
        scale = (m.n_embd / m.n_head) ** -0.5  # the 27B alone scales by its width, not its head size
    factors = m.weight("rope_freqs.weight") if m.has("rope_freqs.weight") else None

    h = norm(x, "attn_norm")
    q = m.project(h, name + "attn_q").reshape(len(x), m.n_head, -1)
    k = m.project(h, name + "attn_k").reshape(len(x), m.n_head_kv, -1)
    v = m.project(h, name + "attn_v").reshape(len(x), m.n_head_kv, -1)
    if m.has(name + "attn_q_norm.weight"):
        q, k = norm(q, "attn_q_norm"), norm(k, "attn_k_norm")
    mixed = np.empty((len(x), m.n_head * v.shape[2]))
    for a, b in zip(starts[:-1], starts[1:]):
        turn = lambda y: rope(y, m.rope_dim, base, factor, factors, m.arch == "llama")
        mixed[a:b] = attention(turn(q[a:b]), turn(k[a:b]), v[a:b], scale, window)
    h = m.project(mixed, name + "attn_output")
    x = x + (norm(h, "post_attention_norm") if gemma else h)

    h = norm(x, "ffn_norm")
    gate, up = m.project(h, name + "ffn_gate"), m.project(h, name + "ffn_up")
    if gemma:  # GELU by the tanh formula
        gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    else:  # SiLU
        gate = gate / (1 + np.exp(-gate))
    h = m.project(gate * up, name + "ffn_down")
    return x + (norm(h, "post_ffw_norm") if gemma else h)


def forward(path, sequences, m=None):
    """The normed hidden states before the unembedding, one (n, n_embd) array a sequence.
    m: the model, where a test has changed a constant of it."""
    m = m or Model(path)
    ids = np.concatenate([np.asarray(s, dtype=np.int64) for s in sequences])
    starts = np.cumsum([0] + [len(s) for s in sequences])
    x = m.weight("token_embd.weight", ids)
    if m.arch == "gemma3":
        x = x * np.sqrt(m.n_embd)
    for il in range(m.n_layer):
        x = layer(m, il, x, starts)
    x = rms_norm(x, m.weight("output_norm.weight"), m.eps)
    return [x[a:b] for a, b in zip(starts[:-1], starts[1:])]


def cache_folder():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".cache")
    return os.path.join(os.environ.get("TANDEM_CACHE") or root, "reference")


def hidden(path, sequences):
    """forward(), remembered on disk. The key is this file, the model (size, both ends) and the ids; what is
    kept is the last hidden state, since log-probabilities would be gigabytes and are quick to make from it."""
    key = hashlib.sha256()
    with open(__file__, "rb") as f:
        key.update(f.read())
    size = os.path.getsize(path)
    with open(path, "rb") as f:
        key.update(f"{size} ".encode() + f.read(1 << 20))
        f.seek(max(0, size - (1 << 20)))
        key.update(f.read(1 << 20))
    for s in sequences:
        key.update(b"|" + np.asarray(s, dtype="<i4").tobytes())
    folder = cache_folder()
    kept = os.path.join(folder, key.hexdigest()[:32] + ".npz")
    if os.path.exists(kept):
        with np.load(kept) as z:
            return [z[f"h{i}"] for i in range(len(sequences))]
    states = forward(path, sequences)
    os.makedirs(folder, exist_ok=True)
    partial = f"{kept}.{os.getpid()}.npz"
    np.savez(partial, **{f"h{i}": h for i, h in enumerate(states)})
    os.replace(partial, kept)
    return states


def logits(path, states):
    """(n, n_vocab) float64 logits of hidden states."""
    m = Model(path)
    y = m.project(states, "output" if m.has("output.weight") else "token_embd")
    cap = m.meta("final_logit_softcapping", 0.0)
    return np.tanh(y / cap) * cap if cap else y


def log_softmax(x):
    """Log-softmax over the last axis, in place."""
    for row in x:  # row by row: no second copy of a (n, n_vocab) array
        row -= row.max()
        row -= np.log(np.exp(row).sum())
    return x


def log_probs(path, states):
    return log_softmax(logits(path, states))


def perplexity(lp, ids):
    """exp of the mean surprise of ids[1:], lp being log-probabilities at ids' positions."""
    return float(np.exp(-lp[np.arange(len(ids) - 1), np.asarray(ids[1:])].mean()))


class SentencePiece:
    """Greedy pair merging by score with byte fallback, as SentencePiece's BPE does; quadratic, for short texts."""

    def __init__(self, m):
        tokens = m.field("tokenizer.ggml.tokens")
        types = m.field("tokenizer.ggml.token_type")
        self.tokens = tokens
        self.scores = m.field("tokenizer.ggml.scores")
        self.ids = {t: i for i, t in enumerate(tokens) if types[i] in (1, 4)}  # normal, user-defined
        self.whole = {t for i, t in enumerate(tokens) if types[i] == 4}
        self.bytes = {int(t[3:5], 16): i for i, t in enumerate(tokens) if types[i] == 6}
        self.longest = max((len(t) for t in self.whole), default=0)
        self.bos = [m.field("tokenizer.ggml.bos_token_id")] if m.field("tokenizer.ggml.add_bos_token", True) else []
        self.prefix = m.field("tokenizer.ggml.add_space_prefix", True)

    def encode(self, text):
        if self.prefix and text:
            text = " " + text
        out, run, at = list(self.bos), "", 0
        while at < len(text):
            # User-defined pieces are cut out first, the longest at each place; the file spells them with real spaces.
            for n in range(min(self.longest, len(text) - at), 0, -1):
                if text[at : at + n] in self.whole:
                    out += self.merge(run) + [self.ids[text[at : at + n]]]
                    run, at = "", at + n
                    break
            else:
                run, at = run + text[at], at + 1
        return out + self.merge(run)

    def merge(self, text):
        parts = list(text.replace(" ", "\u2581"))
        while True:
            best = None
            for i in range(len(parts) - 1):
                j = self.ids.get(parts[i] + parts[i + 1])
                if j is not None and (best is None or self.scores[j] > best[0]):
                    best = (self.scores[j], i)
            if best is None:
                break
            i = best[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        out = []
        for p in parts:
            out += [self.ids[p]] if p in self.ids else [self.bytes[b] for b in p.encode()]
        return out

    def decode(self, ids):
        special = set(self.bos)
        raw = b""
        byte_of = {i: b for b, i in self.bytes.items()}
        for i in ids:
            if i in byte_of:
                raw += bytes([byte_of[i]])
            elif i not in special:
                raw += self.tokens[i].replace("\u2581", " ").encode()
        return raw.decode(errors="replace")


class ByteBPE:
    """Byte-level BPE by the `tokenizers` library from the file's own vocabulary and merges."""

    SPLITS = {
        "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    }

    def __init__(self, m):
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        tokens = m.field("tokenizer.ggml.tokens")
        merges = [tuple(x.split(" ")) for x in m.field("tokenizer.ggml.merges")]
        pre = m.field("tokenizer.ggml.pre", "default")
        self.bos = [m.field("tokenizer.ggml.bos_token_id")] if m.field("tokenizer.ggml.add_bos_token", False) else []
        self.tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        by_pattern = self.SPLITS.get(pre)
        steps = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
        if by_pattern:
            steps.append(pre_tokenizers.Split(Regex(by_pattern), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not by_pattern))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        self.tokenizer.decoder = decoders.ByteLevel()

    def encode(self, text):
        return self.bos + self.tokenizer.encode(text).ids

    def decode(self, ids):
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)


def tokenizer(path):
    m = Model(path)
    return SentencePiece(m) if m.field("tokenizer.ggml.model") == "llama" else ByteBPE(m)


def main(argv):
    if len(argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    path, tok = argv[1], tokenizer(argv[1])
    if argv[2] == "--greedy":
        ids = tok.encode(argv[3])
        n_prompt = len(ids)
        for _ in range(int(argv[4]) if len(argv) > 4 else 32):
            ids.append(int(logits(path, forward(path, [ids])[0][-1:]).argmax()))
        print(tok.decode(ids[n_prompt:]))
        return 0
    with open(argv[2], encoding="utf-8") as f:
        ids = tok.encode(f.read())[: int(argv[3]) if len(argv) > 3 else 256]
    lp = log_probs(path, hidden(path, [ids])[0])
    print(f"{os.path.basename(path)}: {len(ids)} tokens, perplexity {perplexity(lp, ids):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
