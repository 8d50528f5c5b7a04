"""Make a tiny llama-architecture model with random weights, and its own byte-level BPE tokenizer, as a GGUF file.

    python make_tiny_gguf.py tiny.gguf [small | large | ending | coarse]

Nothing is downloaded: weights come from a seeded generator, the vocabulary from the words that prompts are made of, so
that a word of a prompt is one token. What it says is word salad, but prefill, KV cache, batching and prefix caching in
the engine are real, which is all that a test of a client needs.

Residual dimension 0 is a constant that no layer writes to, so `output.weight[:, 0]` is a bias per token. It forbids
control tokens and bytes that are not printable ASCII (the server would hold back half UTF-8 sequences and send chunks
in bursts), and end-of-turn: every answer runs to max_tokens, so output lengths are exact.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import gguf
import numpy as np
from numpy.typing import NDArray

from tailgauge.prompts.words import WORDS

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
FORBIDDEN = -1000.0  # bias of a token that must never be chosen
F16 = gguf.GGMLQuantizationType.F16

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the defaults make 8 million parameters, some 0.5 ms a token on one core."""

    dim: int = 384
    layers: int = 4
    ff: int = 1024
    heads: int = 6
    kv_heads: int = 2
    context: int = 131072
    end_bias: float | None = None  # of the end of an answer; None: it never ends by itself
    every: int = 1  # of the words, every so manieth is a token; the others are several

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


SHAPES = {
    "small": Shape(),
    "large": Shape(dim=512, layers=6, ff=1536, heads=8, kv_heads=4),
    "ending": Shape(end_bias=1.0),
    "coarse": Shape(every=3),
}  # large: some ms a token


def byte_chars() -> dict[int, str]:
    """GPT-2's map from byte to printable character."""
    keep = {*range(33, 127), *range(161, 173), *range(174, 256)}
    moved = [byte for byte in range(256) if byte not in keep]
    return {byte: chr(byte if byte in keep else 256 + moved.index(byte)) for byte in range(256)}


def vocabulary(every: int) -> tuple[list[str], list[str]]:
    """256 bytes, then the prefix merges (a+b, ab+c, ...) that build each word, with and without a space before it."""
    words = WORDS[::every]
    chars = byte_chars()
    tokens, merges = [chars[byte] for byte in range(256)], []
    have = set(tokens)
    for word in [f" {word}" for word in words] + list(words):
        spelt = "".join(chars[byte] for byte in word.encode())
        for end in range(2, len(spelt) + 1):
            if spelt[:end] not in have:
                have.add(spelt[:end])
                tokens.append(spelt[:end])
                merges.append(f"{spelt[: end - 1]} {spelt[end - 1]}")
    return tokens, merges


def describe(writer: gguf.GGUFWriter, shape: Shape, plain: list[str], merges: list[str]) -> None:
    """Write the metadata: sizes, tokenizer, chat template."""
    tokens = plain + SPECIALS
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.dim)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.NORMAL] * len(plain) + [gguf.TokenType.CONTROL] * len(SPECIALS)
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def put(writer: gguf.GGUFWriter, name: str, values: NDArray[np.floating]) -> None:
    """Add a tensor: matrices as f16, vectors as f32."""
    exact = np.ascontiguousarray(values, dtype=np.float32)
    if exact.ndim == 1:
        writer.add_tensor(name, exact)
    else:
        writer.add_tensor(name, gguf.quants.quantize(exact, F16), raw_dtype=F16)


def weights(writer: gguf.GGUFWriter, shape: Shape, plain: list[str], seed: int) -> None:
    """Draw and write the tensors."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Matrix:
        return rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))

    def silent_matrix(rows: int, columns: int) -> Matrix:
        """It writes to the residual stream, except to its constant dimension 0."""
        drawn = matrix(rows, columns)
        drawn[0] = 0.0
        return drawn

    kv = shape.kv_heads * shape.head_dim
    embedding = rng.standard_normal((len(plain) + len(SPECIALS), shape.dim), dtype=np.float32)
    embedding[:, 0] = 4.0
    put(writer, "token_embd.weight", embedding)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        put(writer, f"{block}attn_q.weight", matrix(shape.dim, shape.dim))
        put(writer, f"{block}attn_k.weight", matrix(kv, shape.dim))
        put(writer, f"{block}attn_v.weight", matrix(kv, shape.dim))
        put(writer, f"{block}attn_output.weight", silent_matrix(shape.dim, shape.dim))
        put(writer, f"{block}ffn_gate.weight", matrix(shape.ff, shape.dim))
        put(writer, f"{block}ffn_up.weight", matrix(shape.ff, shape.dim))
        put(writer, f"{block}ffn_down.weight", silent_matrix(shape.dim, shape.ff))
        put(writer, f"{block}attn_norm.weight", np.ones(shape.dim))
        put(writer, f"{block}ffn_norm.weight", np.ones(shape.dim))
    put(writer, "output_norm.weight", np.ones(shape.dim))
    put(writer, "output.weight", biased(matrix(len(embedding), shape.dim), plain, shape.end_bias))


def biased(head: Matrix, plain: list[str], end_bias: float | None) -> Matrix:
    """Forbid every token that is not made of printable ASCII, the special ones included."""
    printable = {char for byte, char in byte_chars().items() if 32 <= byte < 127}
    head[:, 0] = 0.0
    for token, text in enumerate(plain):
        if not set(text) <= printable:
            head[token, 0] = FORBIDDEN
    head[len(plain) :, 0] = FORBIDDEN
    if end_bias is not None:
        head[len(plain) + SPECIALS.index("<|im_end|>"), 0] = end_bias
    return head


def make(path: str, shape: Shape = Shape(), seed: int = 1) -> None:
    """Write the model file."""
    plain, merges = vocabulary(shape.every)
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, shape, plain, merges)
    weights(writer, shape, plain, seed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    make(sys.argv[1], SHAPES[sys.argv[2] if sys.argv[2:] else "small"])
