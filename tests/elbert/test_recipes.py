"""Recipes from Python: keys, an optimiser's groups, a model's summary, beside HF's own."""

import re

import pytest
import torch
import transformers
from transformers import Trainer, TrainingArguments

import elbert
from modeling.errors import UserError
from tests.berts import save, tiny_encoder
from tests.conftest import TINY, made_reviews, tiny_model
from tests.models import tiny_ponder


def test_weights_decay_as_in_hfs_trainer_and_exits_learn_at_their_rate():
    model = tiny_model(**{**elbert.recipe(), "num_hidden_groups": 4})
    groups = elbert.parameter_groups(model, learning_rate=1e-4)
    names = {parameter: name for name, parameter in model.named_parameters()}
    sorted_names = [names[parameter] for group in groups for parameter in group["params"]]
    assert sorted(sorted_names) == sorted(names.values())
    trainer = Trainer(model, TrainingArguments("out", use_cpu=True, report_to="none"))
    decaying = {*trainer.get_decay_parameter_names(model)} - {"exit_weights"}
    for group in groups:
        for parameter in group["params"]:
            name = names[parameter]
            assert (group["weight_decay"] > 0) == (name in decaying), name
            assert group["lr"] == (4e-4 if "exit_out" in name else 1e-4), name


def test_recipes_are_found_by_name():
    assert elbert.recipe("published") == {}
    assert elbert.recipe()["exit_lr_factor"] == 4
    for name, mode in (("best", "elbert"), ("recommended", "albert_act")):
        with pytest.raises(UserError, match=name):
            elbert.recipe(name, mode)


def test_a_summary_counts_the_encoder_as_hf_does():
    model = tiny_model()
    reference = transformers.AlbertModel(transformers.AlbertConfig(**TINY))
    text = elbert.summary(model, length=10)
    found = {
        name: int(count.replace(",", ""))
        for name, count in re.findall(r"  (.+): ([\d,]+)$", text, re.M)
    }
    encoder = reference.encoder
    mapping = sum(x.numel() for x in encoder.embedding_hidden_mapping_in.parameters())
    embeddings = sum(x.numel() for x in reference.embeddings.parameters())
    assert found["embeddings"] == embeddings + mapping
    assert found["layers"] == sum(x.numel() for x in encoder.albert_layer_groups.parameters())
    assert sum(found.values()) == model.num_parameters()
    assert len(re.findall("after layer", text)) == 4
    taught = tiny_model(self_distillation=0.5)
    assert "self_distillation" not in text
    assert "self_distillation = 0.5" in elbert.summary(taught)
    ponder = tiny_ponder(**TINY, lambda_lr=1e-3, target_halt_probability=0.3)
    assert "target_halt_probability = 0.3, lambda_lr = 0.001" in elbert.summary(ponder)
    with pytest.raises(UserError, match="AlbertModel is no model of this library"):
        elbert.summary(reference)


@pytest.mark.slow
def test_hfs_trainer_trains_by_the_recipe(tmp_path):
    bert = save(tiny_encoder("bert"), tmp_path / "bert")
    names = {0: "bad", 1: "good"}
    model, _ = elbert.load_pretrained(bert, **elbert.recipe(), id2label=names)
    tokenizer = elbert.load_tokenizer(bert)
    rows = [{**tokenizer(text), "labels": label} for text, label in made_reviews(600)]
    optimizer = torch.optim.AdamW(elbert.parameter_groups(model, learning_rate=2e-3))
    arguments = TrainingArguments(
        tmp_path / "trainer", num_train_epochs=1, use_cpu=True, report_to="none", save_strategy="no"
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        optimizers=(optimizer, None),
    )
    trainer.train()
    trainer.save_model(tmp_path / "mine")
    classify = elbert.Classifier(tmp_path / "mine")
    answers = classify([text for text, _ in made_reviews(100)])
    right = [
        answer["label"] == names[label]
        for answer, (_, label) in zip(answers, made_reviews(100), strict=True)
    ]
    assert sum(right) > 90
