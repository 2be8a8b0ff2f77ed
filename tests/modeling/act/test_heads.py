"""Adaptive Depth's heads: outputs and losses against HF's on the same weights, and files."""

import pytest
import torch
import transformers

import elbert
from elbert import AlbertActForSequenceClassification, AlbertActModel
from tests.models import SMALL, assert_near, padded_batch, tiny_act

NAMES = "PreTraining MaskedLM SequenceClassification TokenClassification QuestionAnswering"
ACT_HEADS = {
    head: getattr(elbert, f"AlbertActFor{head}") for head in [*NAMES.split(), "MultipleChoice"]
}


def labels_for(head: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    batch = len(inputs["input_ids"])
    tokens = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    classes = torch.arange(batch) % 2
    return {
        "PreTraining": {"labels": tokens, "sentence_order_label": classes},
        "MaskedLM": {"labels": tokens},
        "SequenceClassification": {"labels": classes},
        "TokenClassification": {"labels": tokens.clamp(max=1)},
        "QuestionAnswering": {"start_positions": classes, "end_positions": classes + 1},
        "MultipleChoice": {"labels": classes},
    }[head]


def inputs_for(head: str) -> dict[str, torch.Tensor]:
    """(batch, length), or (batch, 2 choices, length)."""
    if head == "QuestionAnswering":  # HF's answers may begin in the padding; without any, all agree
        return padded_batch([9, 9, 9], 6)
    if head != "MultipleChoice":
        return padded_batch([9, 6, 7], 6)
    return {k: v.view(2, 2, -1) for k, v in padded_batch([9, 6, 7, 9], 6).items()}


def hf_name(name: str) -> str:
    """HF ALBERT's name of a weight."""
    name = name.replace("albert_layer.LayerNorm", "albert_layer.attention.LayerNorm")
    return name.replace("albert_layer.", "albert_layer_groups.0.albert_layers.0.")


def hf_twins(head: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A model whose tokens halt at once, and HF's with one layer, on the same weights."""
    model = tiny_act(6, ACT_HEADS[head], tau=0.0)
    with torch.no_grad():
        model.albert.encoder.albert_layer.act.dense.bias.fill_(1e3)
    config = transformers.AlbertConfig(**{**SMALL, "num_hidden_layers": 1})
    peer = getattr(transformers, f"AlbertFor{head}")(config).double().eval()
    weights = {hf_name(k): v for k, v in model.state_dict().items() if ".act." not in k}
    peer.load_state_dict(weights)
    return model, peer


def assert_same_on_the_text(
    ours: torch.Tensor, theirs: torch.Tensor, attention_mask: torch.Tensor
) -> None:
    """Equal but for the values of padding, which HF updates too."""
    real = attention_mask.bool()
    if ours.shape[: real.dim()] == real.shape:
        ours, theirs = ours[real], theirs[real]
    assert_near(ours, theirs, 1e-9)


@pytest.mark.parametrize("head", ACT_HEADS)
def test_halting_at_once_is_hf_albert_with_one_layer(head):
    """Every head's logits, task loss and states, for ids, embedded words, and as a tuple."""
    model, peer = hf_twins(head)
    inputs = inputs_for(head)
    mask, labels = inputs["attention_mask"], labels_for(head, inputs)
    words = peer.albert.embeddings.word_embeddings(inputs["input_ids"]).detach()
    embedded = {**inputs, "input_ids": None, "inputs_embeds": words}
    for call in ({**inputs, **labels}, {**embedded, **labels}):
        out, expected = (x(**call, output_hidden_states=True) for x in (model, peer))
        assert (out.updates <= 1).all()
        torch.testing.assert_close(out.loss, expected.loss)
        names = [name for name in expected if name.endswith("logits")]
        assert names
        for name in names:
            assert_same_on_the_text(out[name], expected[name], mask)
        for ours, theirs in zip(out.hidden_states, expected.hidden_states, strict=True):
            assert_same_on_the_text(ours, theirs, mask.flatten(0, -2))
    expected = peer(**call, return_dict=False)
    answer = model(**call, return_dict=False)
    for ours, theirs in zip(answer[: len(expected)], expected, strict=True):
        assert_same_on_the_text(ours, theirs, mask)


@pytest.mark.parametrize("head", ACT_HEADS)
def test_loss_is_task_loss_plus_tau_times_mean_ponder_cost(head):
    model, inputs = tiny_act(7, ACT_HEADS[head], tau=0.0), inputs_for(head)
    labels = labels_for(head, inputs)
    task = model(**inputs, **labels)
    model.config.tau = 0.03
    out = model(**inputs, **labels)
    assert out.ponder_cost.shape == (len(inputs["input_ids"]),)
    torch.testing.assert_close(out.loss, task.loss + 0.03 * task.ponder_cost.mean())
    assert model(**inputs).loss is None


def test_an_albert_gives_all_weights_but_the_halting_head_s(tmp_path):
    albert = transformers.AlbertModel(transformers.AlbertConfig(**SMALL))
    albert.save_pretrained(tmp_path)
    for kind, prefix in ((AlbertActModel, ""), (AlbertActForSequenceClassification, "albert.")):
        model, report = kind.from_pretrained(tmp_path, output_loading_info=True)
        for name in report["missing_keys"]:
            assert "albert_layer.act.dense." in name or name.startswith("classifier.")
        weights = {hf_name(name): tensor for name, tensor in model.state_dict().items()}
        for name, tensor in albert.state_dict().items():
            assert torch.equal(weights[f"{prefix}{name}"], tensor), name


@pytest.mark.parametrize("head", ACT_HEADS)
def test_save_and_auto_class_round_trip(head, tmp_path):
    model, inputs = tiny_act(10, ACT_HEADS[head]).float(), inputs_for(head)
    model.save_pretrained(tmp_path)
    auto_class = getattr(transformers, f"AutoModelFor{head}")
    loaded = auto_class.from_pretrained(tmp_path)
    assert type(loaded) is ACT_HEADS[head]
    with torch.no_grad():
        torch.testing.assert_close(dict(loaded.eval()(**inputs)), dict(model(**inputs)))
