"""Writes the bundled lab model as GGUF, for llama.cpp. Run by a Python that has the gguf package.

    python lab_gguf.py MODEL_FOLDER OUTPUT.gguf

Every symbol of the lab's word-level vocabulary becomes a token that llama.cpp neither splits nor
changes; prompts go out as ids, so only the way from ids to text is needed. Weights are written as
32-bit floats: what llama.cpp computes can then be compared with transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np


def read_weights(file: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file of bfloat16 or float32, as float32."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    weights = {}
    for name, about in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        start, end = (8 + size + offset for offset in about["data_offsets"])
        raw = data[start:end]
        if about["dtype"] == "BF16":
            # A bfloat16 is the upper half of a float32.
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, "<f4")
        weights[name] = values.reshape(about["shape"])
    return weights


def rotate(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in llama.cpp's order: pairs that rotate stand together."""
    out, width = weight.shape
    halves = weight.reshape(heads, 2, out // heads // 2, width)
    return halves.swapaxes(1, 2).reshape(out, width)


def convert(folder: Path, output: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    heads, dim = config["num_attention_heads"], config["head_dim"]
    writer = gguf.GGUFWriter(output, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    tokens = sorted(vocabulary, key=vocabulary.get)
    kinds = [gguf.TokenType.USER_DEFINED] * len(tokens)
    kinds[config["bos_token_id"]] = kinds[config["eos_token_id"]] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, weight in read_weights(folder / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = rotate(weight, heads)
        writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
