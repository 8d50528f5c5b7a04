"""The tiny model of make_tiny_gguf as a folder for vLLM: the same vocabulary, template and weights.

No torch and no tokenizer library is needed: a safetensors file is a header in JSON and the bytes of the tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from real_engine.make_tiny_gguf import SPECIALS, TEMPLATE, Shape, vocabulary, weights

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


class Tensors:
    """Takes the place of a GGUF writer."""

    def __init__(self) -> None:
        self.by_name: dict[str, NDArray[Any]] = {}

    def add_tensor(self, name: str, values: NDArray[Any], **_: object) -> None:
        """Keep it under the name that it has in a Llama of transformers."""
        *block, short, kind = name.split(".")
        layer = f"model.layers.{block[1]}." if block else ""
        self.by_name[f"{layer}{NAMES[short]}.{kind}"] = values

    def write(self, path: Path) -> None:
        """Write a safetensors file."""
        header, at = {}, 0
        for name, values in self.by_name.items():
            kind = {2: "F16", 4: "F32"}[values.dtype.itemsize]
            header[name] = {
                "dtype": kind,
                "shape": list(values.shape),
                "data_offsets": [at, at + values.nbytes],
            }
            at += values.nbytes
        text = json.dumps(header).encode()
        parts = [
            len(text).to_bytes(8, "little"),
            text,
            *(one.tobytes() for one in self.by_name.values()),
        ]
        path.write_bytes(b"".join(parts))


def make(folder: Path, shape: Shape, seed: int = 1) -> None:
    """Write the model's folder."""
    plain, merges = vocabulary(shape.every)
    ids = {token: number for number, token in enumerate(plain + SPECIALS)}
    begin, _, end = SPECIALS
    tensors = Tensors()
    weights(tensors, shape, plain, seed)  # type: ignore[arg-type]
    tensors.write(folder / "model.safetensors")
    off = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    pages = {
        "config": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.dim,
            "intermediate_size": shape.ff, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "vocab_size": len(ids),
            "max_position_embeddings": shape.context, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "hidden_act": "silu",
            "tie_word_embeddings": False, "bos_token_id": ids[begin], "eos_token_id": ids[end], "dtype": "bfloat16",
        },
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape.context, "chat_template": TEMPLATE,
            "bos_token": begin, "eos_token": end, "pad_token": begin,
        },
        "tokenizer": {
            "version": "1.0", "pre_tokenizer": BYTES, "decoder": BYTES, "normalizer": None, "post_processor": None,
            "added_tokens": [{"id": ids[name], "content": name, "special": True, **off} for name in SPECIALS],
            "model": {"type": "BPE", "vocab": ids, "merges": [pair.split(" ") for pair in merges]},
        },
    }  # fmt: skip
    for name, page in pages.items():
        (folder / f"{name}.json").write_text(json.dumps(page), encoding="utf-8")
