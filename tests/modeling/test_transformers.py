"""The models as transformers' own tools meet them: Auto classes, pipelines and Trainer."""

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    pipeline,
)

from modeling import (
    AlbertActConfig,
    AlbertActForSequenceClassification,
    ElbertConfig,
    ElbertForSequenceClassification,
    PonderAlbertClassifier,
    PonderAlbertConfig,
    UserError,
    load_act,
    load_ponder,
    load_pretrained,
    losses,
    with_halting_token,
)
from tests.conftest import TINY, edit_json, sentence
from tests.models import assert_near

MODES = {
    "elbert": (ElbertConfig, ElbertForSequenceClassification, load_pretrained),
    "ponder_albert": (PonderAlbertConfig, PonderAlbertClassifier, load_ponder),
    "albert_act": (AlbertActConfig, AlbertActForSequenceClassification, load_act),
}
QUIET = {"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
TEXTS = [sentence(i, 3 + i % 4) for i in range(6)]
PAIR = ("a dog sleeps in the park", "the house is red")


def made(mode: str, **keys) -> torch.nn.Module:
    """A random model that stops by no chance."""
    torch.manual_seed(3)
    config_class, model_class, _ = MODES[mode]
    if mode == "ponder_albert":
        keys["exit_criteria"] = "threshold"
    return model_class(config_class(**{**TINY, **keys})).eval()


@pytest.fixture(params=MODES)
def mode(request) -> str:
    return request.param


@pytest.fixture
def folder(mode, tokenizer, tmp_path):
    """A model and its tokenizer, saved as training saves them."""
    made(mode).save_pretrained(tmp_path / mode)
    tokenizer.save_pretrained(tmp_path / mode)
    return tmp_path / mode


@pytest.mark.parametrize(
    ("mode", "keys"),
    [
        ("elbert", {"exit_thres": 0.77, "thres_name": "bias_3"}),
        ("elbert", {"weight_name": "equal", "num_hidden_layers": 1, "cnt_thres": 1}),
        ("elbert", {"num_exit_layers": 4, "use_out_pooler": False, "use_fc2": True, "fc_size1": 8}),
        ("elbert", {"num_hidden_groups": 2, "inner_group_num": 2, "num_labels": 1}),
        ("ponder_albert", {"exit_thres": 0.7, "lambda_layer_arch": "linear_cat"}),
        ("albert_act", {"act_epsilon": 0.2}),
    ],
)
def test_a_saved_folder_is_one_to_the_auto_classes(mode, keys, tmp_path):
    config_class, model_class, load = MODES[mode]
    saved = made(mode, **keys)
    for parameter in saved.parameters():
        torch.nn.init.normal_(parameter)
    saved.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    assert type(AutoConfig.from_pretrained(tmp_path)) is config_class
    auto = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    auto.save_pretrained(tmp_path / "again")
    for loaded in (auto, load(tmp_path)[0], model_class.from_pretrained(tmp_path / "again")):
        assert isinstance(loaded, model_class)
        assert loaded.config.exit_keys() == saved.config.exit_keys()
        torch.testing.assert_close(loaded.state_dict(), saved.state_dict(), atol=0, rtol=0)
    half = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype="float16")
    assert {tensor.dtype for tensor in half.state_dict().values()} == {torch.float16}


def answer(mode: str, ids: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
    """What the model itself says to ids and segments, which tensors of 1 take for granted."""
    inputs = (ids, torch.ones_like(ids), types)
    with torch.no_grad():
        if mode == "ponder_albert":
            return made(mode)(*map(with_halting_token, inputs)).answer
        return made(mode)(*inputs).logits


def test_the_second_text_is_the_second_segment(mode, folder):
    """Also for folders saved earlier, whose tokenizers leave the segments out."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    encoded = tokenizer(*PAIR, return_tensors="pt")
    ids = encoded["input_ids"]
    first = ids[0].tolist().index(tokenizer.sep_token_id) + 1
    types = (torch.arange(ids.shape[1]) >= first).long()[None]
    assert encoded["token_type_ids"].tolist() == types.tolist()
    expected = answer(mode, ids, types)
    assert not torch.allclose(answer(mode, ids, torch.zeros_like(ids)), expected, atol=1e-3)
    with torch.no_grad():
        assert_near(model(**encoded).logits, expected)
        del encoded["token_type_ids"]
        assert_near(model(**encoded).logits, expected)


def test_a_pipeline_gives_the_model_s_probabilities(mode, folder):
    """In batches, whose padding changes nothing."""
    classify = pipeline("text-classification", str(folder), batch_size=3)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = [*TEXTS, {"text": PAIR[0], "text_pair": PAIR[1]}]
    for text, found in zip(inputs, classify(inputs, top_k=None), strict=True):
        pair = text if isinstance(text, dict) else {"text": text}
        encoded = tokenizer(**pair, return_tensors="pt")
        scores = answer(mode, encoded["input_ids"], encoded["token_type_ids"]).softmax(-1)[0]
        assert {x["label"]: pytest.approx(x["score"], abs=1e-5) for x in found} == {
            f"LABEL_{label}": score.item() for label, score in enumerate(scores)
        }


def test_a_pipeline_gives_a_regression_s_value(mode, tokenizer, tmp_path):
    made(mode, num_labels=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", problem_type=None)  # as in folders saved earlier
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with torch.no_grad():
        value = model(**tokenizer(TEXTS[0], return_tensors="pt")).logits.item()
    (found,) = pipeline("text-classification", str(tmp_path))([TEXTS[0]])
    assert found["score"] == pytest.approx(value, abs=1e-5)


def test_trainer_trains_every_mode(mode, folder, tmp_path):
    """And what it saves is a folder like any other."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [{**tokenizer(sentence(i, 4)), "labels": i % 2} for i in range(16)]
    trainer = Trainer(
        AutoModelForSequenceClassification.from_pretrained(folder),
        TrainingArguments(str(tmp_path / "out"), num_train_epochs=12, learning_rate=2e-3, **QUIET),
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tokenizer,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    predicted = trainer.predict(rows)
    assert predicted.metrics["test_loss"] < before - 0.1
    assert predicted.predictions.shape == (16, 2)
    trainer.save_model(tmp_path / "trained")
    saved, _ = MODES[mode][2](tmp_path / "trained")
    trained = trainer.model.state_dict()
    assert all(torch.equal(x, trained[name]) for name, x in saved.state_dict().items())


def test_training_without_labels_warns_and_evaluation_does_not(mode, folder, monkeypatch):
    said, model = [], AutoModelForSequenceClassification.from_pretrained(folder)
    inputs = AutoTokenizer.from_pretrained(folder)("a dog", return_tensors="pt")
    monkeypatch.setattr(losses.logger, "warning_once", said.append)
    model.eval()(**inputs)
    model.train()(**inputs, labels=torch.tensor([1]))
    assert not said
    model(**inputs)
    assert "training without labels" in said[0]


def test_several_labels_an_example_are_refused(mode, folder):
    with pytest.raises(UserError, match="multi_label_classification"):
        AutoModelForSequenceClassification.from_pretrained(
            folder, problem_type="multi_label_classification"
        )
