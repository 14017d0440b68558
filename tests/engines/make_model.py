# SPDX-License-Identifier: Apache-2.0
"""Write a model of some MB, with random weights and a token for each byte: `make_model.py FILE`.

Runs beside the sources of llama.cpp, whose package `gguf` writes the file.
"""

import sys

import numpy as np
from gguf import GGUFWriter, TokenType

WIDTH, LAYERS, HEADS, HIDDEN, CONTEXT = 128, 2, 4, 256, 8192
SPECIAL = ["<unk>", "<s>", "</s>"]
TOKENS = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]


def main(path: str) -> None:
    """Write the model."""
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.05, shape).astype(np.float32))

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    add("token_embd", len(TOKENS), WIDTH)
    add("output", len(TOKENS), WIDTH)
    add_norm("output_norm")
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add_norm(f"{block}.attn_norm")
        add_norm(f"{block}.ffn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}", WIDTH, WIDTH)
        add(f"{block}.ffn_gate", HIDDEN, WIDTH)
        add(f"{block}.ffn_up", HIDDEN, WIDTH)
        add(f"{block}.ffn_down", WIDTH, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
