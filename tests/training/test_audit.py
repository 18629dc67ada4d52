"""The audit lets exact models through and refuses, with a reason, what is silently wrong."""

from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.models.llama import modeling_llama
from tree_cases import tiny_model

from anabranch.errors import ModelError
from anabranch.training.audit import audit, refuse_implementation, use_tree_attention
from anabranch.training.sft import load_for_training


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Qwen2", "SmolLM3", "Granite"])
def test_exact_models_pass(family: str) -> None:
    model = tiny_model(family)
    use_tree_attention(model)
    found = audit(model)
    assert found.deviation < 1e-5 and found.gather


def test_learned_absolute_positions_are_followed() -> None:
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
    )
    use_tree_attention(model)
    assert audit(model).deviation < 1e-5


@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3", "paged|sdpa"])
def test_flash_attention_is_refused_before_anything_is_loaded(name: str) -> None:
    """Restates huggingface/transformers#39608: a 4-D mask under FlashAttention."""
    with pytest.raises(ModelError, match=r"sdpa .* flex_attention") as caught:
        load_for_training("/nonexistent", attention=name)
    assert name in str(caught.value)
    with pytest.raises(ModelError, match="flash_attention_2"):
        refuse_implementation("flash_attention_2")


def bloom() -> Any:
    return BloomForCausalLM(
        BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1)
    )


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tiny_model("Mistral", sliding_window=4), "sliding-window attention .window 4."),
        (lambda: tiny_model("Gemma2"), "layers of type sliding_attention"),
        (bloom, "its own attention"),
    ],
)
def test_models_that_cannot_follow_a_tree_are_refused(make: Any, reason: str) -> None:
    model = make()
    before = model.config._attn_implementation
    with pytest.raises(ModelError, match=reason) as caught:
        use_tree_attention(model)
    assert "sdpa" in str(caught.value) and "\n" not in str(caught.value)
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flex_attention"])
def test_other_implementations_are_not_audited_but_refused(implementation: str) -> None:
    model = tiny_model("Llama")
    model.set_attn_implementation(implementation)
    with pytest.raises(ModelError, match="without the tree's mask"):
        audit(model)


def test_an_attention_that_drops_the_mask_is_found_by_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Restates huggingface/transformers#29525: a custom mask replaced after an upgrade."""
    model = tiny_model("Llama")
    use_tree_attention(model)
    forward = modeling_llama.LlamaAttention.forward

    def without_mask(self: Any, *args: Any, **kwargs: Any) -> Any:
        length = kwargs["hidden_states"].shape[1]
        causal = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
        return forward(self, *args, **{**kwargs, "attention_mask": causal})

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", without_mask)
    with pytest.raises(ModelError, match="ignores mask or positions"):
        audit(model)


def test_a_model_that_ignores_positions_is_found_by_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("Llama")
    use_tree_attention(model)
    forward = modeling_llama.LlamaRotaryEmbedding.forward

    def by_index(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return forward(self, x, torch.arange(x.shape[1])[None])

    monkeypatch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", by_index)
    with pytest.raises(ModelError, match="ignores mask or positions"):
        audit(model)


def test_weights_mode_and_random_state_are_left_alone() -> None:
    model = tiny_model("Llama").train()
    use_tree_attention(model)
    before = [p.clone() for p in model.parameters()], torch.random.get_rng_state()
    audit(model)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before[0], model.parameters(), strict=True))
    assert torch.equal(before[1], torch.random.get_rng_state())
