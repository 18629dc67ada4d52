"""What single settings do: adapters, rates of tags, trackers, evaluation, absent kernels."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tree_cases import make_trajectory, tiny_model

from anabranch.checkpoint import CheckpointInfo, load_checkpoint_info
from anabranch.errors import UsageError
from anabranch.lab.data import DIALECT, PROMPTS
from anabranch.lab.families import draw_distinct, family_of
from anabranch.lab.tokenizer import save_tokenizer, vocabulary
from anabranch.records import Limits, Problem, Trajectory
from anabranch.training import arguments
from anabranch.training.config import LoraSettings, SFTConfig
from anabranch.training.evaluating import DecodeProblems, HeldOut, together
from anabranch.training.sft import train_sft

DATA = [make_trajectory(n, [[1 + n % 4, 2]] * (1 + n % 2)) for n in range(9)]
INFO = CheckpointInfo(dialect="parason", tags={"<Thread>": (5,), "</Thread>": (40,), "x": (1, 2)})


def config(**changes: Any) -> SFTConfig:
    given = {"steps": 3, "tokens_per_batch": 150, "learning_rate": 3e-3, "log_every": 1, **changes}
    return SFTConfig.model_validate(given)


@pytest.mark.parametrize("tied", [False, True])
def test_rows_of_tags_move_at_their_own_rate(tied: bool) -> None:
    """One step of AdamW: twenty times the rate is twenty times the way, decay included."""
    models = []
    for rate in (None, 6e-2):
        model = tiny_model("Llama", tie_word_embeddings=tied)
        before = model.get_input_embeddings().weight.detach().clone()
        one = config(steps=1, tag_learning_rate=rate, schedule="constant", warmup=0.0)
        train_sft(model, DATA, one, info=INFO)
        models.append(model.get_input_embeddings().weight.detach() - before)
    slow, fast = models
    assert torch.allclose(fast[[5, 40]], 20 * slow[[5, 40]], rtol=1e-3, atol=1e-5)
    others = [n for n in range(61) if n not in (5, 40)]
    assert torch.equal(slow[others], fast[others])
    with pytest.raises(UsageError, match="no tag of the model is one token"):
        train_sft(tiny_model("Llama"), DATA, config(tag_learning_rate=1.0))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("tied", [False, True])
def test_adapters_are_saved_beside_a_whole_model(tmp_path: Path, tied: bool) -> None:
    peft = pytest.importorskip("peft")
    lora = LoraSettings(rank=4, alpha=8)
    model = tiny_model("Llama", tie_word_embeddings=tied)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    settings = config(lora=lora, steps=4, save_every=2, tag_learning_rate=1e-2)
    result = train_sft(model, DATA, settings, output=tmp_path / "run", info=INFO)
    saved = load_file(tmp_path / "run/model/model.safetensors")
    changed = {name for name in start if not torch.equal(saved.get(name, start[name]), start[name])}
    embeddings = {"model.embed_tokens.weight"} | (set() if tied else {"lm_head.weight"})
    assert changed == {n for n in start if "proj" in n} | embeddings
    for name in embeddings:
        moved = (saved[name] != start[name]).any(-1)
        assert moved.nonzero().flatten().tolist() == [5, 40]
    info = load_checkpoint_info(tmp_path / "run/model")
    assert info.training["lora"] == lora.model_dump()
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in (tmp_path / "run/adapter").iterdir()
    }
    base = tiny_model("Llama", tie_word_embeddings=tied)
    again = peft.PeftModel.from_pretrained(base, tmp_path / "run/adapter")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, result.model(ids).logits, atol=1e-4)


@pytest.mark.parametrize(
    ("setting", "name"),
    [({"liger": True}, "liger-kernel"), ({"trackers": ["wandb"]}, "wandb"), ({"lora": {}}, "peft")],
)
def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any], name: str
) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda module: None)
    with pytest.raises(UsageError, match=f"{name} is not installed"):
        train_sft(tiny_model("Llama"), DATA, config(**setting))


def test_a_tracker_is_told_loss_and_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    settings = config(trackers=["tensorboard"], eval_every=2)
    train_sft(
        tiny_model("Llama"), DATA, settings, output=tmp_path / "run", evaluate=HeldOut(DATA[:3])
    )
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*tfevents*"))
    assert b"train/loss" in written and b"eval/held_out_loss" in written


def test_flex_is_refused_without_a_device() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(UsageError, match="no backward pass on CPU"):
        train_sft(tiny_model("Llama"), DATA, config(attention="flex"))


def test_held_out_loss_is_that_of_training() -> None:
    model = tiny_model("Llama")
    seen: list[float] = []
    whole = config(steps=1, tokens_per_batch=100_000)
    found = HeldOut(DATA, row_tokens=80)(model.eval(), 0)["held_out_loss"]
    # A step takes at least one sample and at most the budget, so all of one pass is one step.
    one = whole.model_copy(update={"samples_per_batch": len(DATA)})
    from anabranch.training.audit import use_tree_attention

    use_tree_attention(model)
    train_sft(model, DATA, one, on_progress=lambda p: seen.append(p.loss))
    assert found == pytest.approx(seen[0], abs=1e-4)
    with pytest.raises(UsageError, match="held-out data is empty"):
        HeldOut([])


def test_problems_are_decoded_on_the_way_and_training_does_not_notice(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from anabranch.engines.tokenizers import load_tokenizer
    from anabranch.lab.data import reference_trajectory

    save_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    drawn = draw_distinct(0, "chains", (2, 1), 6, evaluation=False)
    problems = [Problem(id=str(n), problem=p.text) for n, p in enumerate(drawn)]
    graded: list[str] = []

    def grade(problem: Problem, trajectory: Trajectory) -> bool:
        graded.append(problem.id)
        assert family_of(problem.text) is not None
        return True

    info = CheckpointInfo(dialect=DIALECT, prompts=dict(PROMPTS))
    decode = DecodeProblems(problems[:2], tokenizer, info, grade, Limits(max_total_tokens=40))
    data = [reference_trajectory(p, "parallel", tokenizer) for p in drawn]
    weights = []
    for evaluate in (None, together(HeldOut(data[:2]), decode)):
        model = tiny_model("Llama", vocab_size=len(vocabulary()))
        output = tmp_path / ("with" if evaluate else "without")
        train_sft(
            model,
            data,
            config(eval_every=2),
            output=output,
            tokenizer=AutoTokenizer.from_pretrained(tmp_path),
            evaluate=evaluate,
        )
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    lines = (tmp_path / "with/log.jsonl").read_text().splitlines()
    (found,) = [row["evaluation"] for row in map(json.loads, lines) if "evaluation" in row]
    assert found.keys() == {
        *("held_out_loss", "accuracy", "format", "activation", "critical_path", "total_tokens")
    }
    assert 0 < found["critical_path"] <= found["total_tokens"] <= 40
    assert len(graded) == 2 * found["accuracy"]
