"""The models as transformers' own tools meet them: Auto classes, pipelines and Trainer."""

import pytest
import torch
import transformers
from torch.ao.quantization import quantize_dynamic
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)
from transformers.trainer_pt_utils import LabelSmoother

import elbert
from elbert import (
    EarlyExitPipeline,
    UserError,
    load_tokenizer,
    packed_copy,
    with_halting_token,
)
from tests.berts import tiny_encoder
from tests.conftest import TINY, edit_json, sentence, tiny_model
from tests.models import assert_near, padded_batch, ponder_batch

MODES = {
    "elbert": (elbert.ElbertForSequenceClassification, elbert.load_pretrained),
    "ponder_albert": (elbert.PonderAlbertClassifier, elbert.load_ponder),
    "albert_act": (elbert.AlbertActForSequenceClassification, elbert.load_act),
}
QUIET = {"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
TEXTS = [sentence(i, 3 + i % 4) for i in range(6)]
PAIR = ("a dog sleeps in the park", "the house is red")


def made(mode: str, **keys) -> torch.nn.Module:
    """A random model that stops by no chance."""
    torch.manual_seed(3)
    model_class, _ = MODES[mode]
    if mode == "ponder_albert":
        keys["exit_criteria"] = "threshold"
    return model_class(model_class.config_class(**{**TINY, **keys})).eval()


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
        ("elbert", {"num_hidden_groups": 2, "correction_rank": 3}),
        ("ponder_albert", {"exit_thres": 0.7, "lambda_layer_arch": "linear_cat"}),
        ("albert_act", {"act_epsilon": 0.2}),
    ],
)
def test_a_saved_folder_is_one_to_the_auto_classes(mode, keys, tmp_path):
    model_class, load = MODES[mode]
    saved = made(mode, **keys)
    for parameter in saved.parameters():
        torch.nn.init.normal_(parameter)
    saved.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    assert type(transformers.AutoConfig.from_pretrained(tmp_path)) is model_class.config_class
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


def test_a_pipeline_gives_the_model_s_probabilities_and_where_a_text_exits(mode, folder):
    """Or how often its tokens are updated; in batches, whose padding changes nothing."""
    how = {"pipeline_class": EarlyExitPipeline, "batch_size": 7}
    classify, tokenizer = pipeline("sentiment-analysis", str(folder), **how), load_tokenizer(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    depth, depths = "updates" if mode == "albert_act" else "exit_layer", set()
    inputs = [*TEXTS, {"text": PAIR[0], "text_pair": PAIR[1]}]
    for text, found in zip(inputs, classify(inputs, top_k=None), strict=True):
        pair = text if isinstance(text, dict) else {"text": text}
        encoded = tokenizer(**pair, return_tensors="pt")
        with torch.no_grad():
            wanted = model(**encoded)[depth].double().mean().item()
        scores = answer(mode, encoded["input_ids"], encoded["token_type_ids"]).softmax(-1)[0]
        assert {x["label"]: pytest.approx(x["score"], abs=1e-5) for x in found} == {
            f"LABEL_{label}": score.item() for label, score in enumerate(scores)
        }
        assert [x[depth] for x in found] == [pytest.approx(wanted)] * 2
        depths.add(wanted)
    assert len(depths) > 1


def test_a_checkpoint_s_heads_are_new_for_another_number_of_classes(mode, folder):
    """And the names of its classes are not taken over."""
    load = MODES[mode][1]
    model, report = load(folder, num_labels=3)
    assert model.config.id2label == {i: f"LABEL_{i}" for i in range(3)}
    assert {*report.initialised} - {*load(folder, initializer_range=0.03)[1].initialised}
    encoder = "albert.embeddings" if mode == "elbert" else "embeddings"
    assert any(encoder in name for name in report.loaded)


def test_a_pipeline_answers_with_other_models_as_before(albert_dir, tokenizer):
    other = transformers.AlbertForSequenceClassification.from_pretrained(albert_dir)
    classify = EarlyExitPipeline(model=other, tokenizer=tokenizer)
    assert classify("a dog")[0].keys() == {"label", "score"}


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
    trainer = transformers.Trainer(
        AutoModelForSequenceClassification.from_pretrained(folder),
        transformers.TrainingArguments(
            str(tmp_path / "out"), num_train_epochs=12, learning_rate=2e-3, **QUIET
        ),
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
    saved, _ = MODES[mode][1](tmp_path / "trained")
    trained = trainer.model.state_dict()
    assert all(torch.equal(x, trained[name]) for name, x in saved.state_dict().items())


@pytest.mark.slow  # in whose environment PEFT is
@pytest.mark.parametrize("targets", [["query", "value"], "all-linear"], ids=str)
def test_an_adapter_of_peft_is_trained_saved_loaded_and_merged(mode, targets, albert_dir, tmp_path):
    peft = pytest.importorskip("peft")

    def base() -> torch.nn.Module:
        torch.manual_seed(4)
        return MODES[mode][1](albert_dir)[0]

    batch = (ponder_batch if mode == "ponder_albert" else padded_batch)([9, 5, 7, 4])
    new = {"elbert": None, "ponder_albert": ["ponder"], "albert_act": ["act"]}[mode]
    how = {"target_modules": targets, "modules_to_save": new}
    model = peft.get_peft_model(base(), peft.LoraConfig(task_type=peft.TaskType.SEQ_CLS, **how))
    optimizer = torch.optim.Adam((x for x in model.parameters() if x.requires_grad), 3e-3)
    losses = []
    for _ in range(20):
        losses.append(model.train()(**batch, labels=torch.tensor([0, 1, 1, 0])).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.1
    model.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path / "adapter")

    def answers(found: torch.nn.Module, **asked) -> torch.Tensor:
        if mode == "ponder_albert":  # whose logits are of the layers that ran
            found.config.exit_criteria = "threshold"
            return found.eval()(**batch, **asked).answer.softmax(-1)
        return found.eval()(**batch, **asked).logits.softmax(-1)

    with torch.no_grad():
        wanted = answers(model)
        assert_near(answers(packed_copy(model)), wanted)
        assert_near(answers(model, output_attentions=True), wanted)
        assert_near(answers(loaded), wanted)
        merged = model.merge_and_unload()
        assert_near(answers(merged), wanted)
        merged.save_pretrained(tmp_path / "merged")
        assert_near(answers(MODES[mode][1](tmp_path / "merged")[0]), wanted)


STATES = {"output_hidden_states": True, "output_attentions": True}


@pytest.mark.parametrize("words", ["input_ids", "inputs_embeds"])
def test_states_and_attentions_are_those_of_hf_albert(mode, words, albert_dir):
    """At positions that are given, and from words, too."""
    model, _ = MODES[mode][1](albert_dir)
    model.set_attn_implementation("eager")
    twin = transformers.AlbertModel.from_pretrained(albert_dir, attn_implementation="eager")
    batch = (ponder_batch if mode == "ponder_albert" else padded_batch)([9, 5, 7])
    batch["position_ids"] = batch["token_type_ids"] * 11 + torch.arange(9)
    real = batch["attention_mask"].bool()
    ran = TINY["num_hidden_layers"]
    if mode == "albert_act":  # every token halts at its first update
        torch.nn.init.constant_(model.albert.encoder.albert_layer.act.dense.bias, 40.0)
        ran = 1
    with torch.no_grad():
        if words == "inputs_embeds":
            batch["inputs_embeds"] = twin.embeddings.word_embeddings(batch.pop("input_ids"))
        wanted, found = twin(**batch, **STATES), model.eval()(**batch, **STATES)
    assert (len(found.hidden_states), len(found.attentions)) == (ran + 1, ran)
    for mine, theirs in zip(found.hidden_states, wanted.hidden_states, strict=False):
        assert_near(mine[real], theirs[real])
    for mine, theirs in zip(found.attentions, wanted.attentions, strict=False):
        assert_near(mine.transpose(1, 2)[real], theirs.transpose(1, 2)[real])


ENCODERS = [
    ("albert", "elbert", {}),
    ("albert", "elbert", {"use_out_pooler": False, "num_exit_layers": 3}),
    ("albert", "ponder_albert", {"pooler_input": "cls"}),
    ("albert", "ponder_albert", {}),
    ("bert", "elbert", {}),
    ("roberta", "elbert", {}),
    ("mpnet", "elbert", {}),
]


@pytest.mark.parametrize(("family", "mode", "keys"), ENCODERS)
def test_automodel_gives_the_encoder_of_a_trained_folder(family, mode, keys, tmp_path):
    """States and pooled states are those of HF's own AutoModel of the weights it began with."""
    twin = tiny_encoder(family)
    twin.save_pretrained(tmp_path / "hf")
    MODES[mode][1](tmp_path / "hf", **keys)[0].save_pretrained(tmp_path / mode)
    encoder, told = AutoModel.from_pretrained(tmp_path / mode, output_loading_info=True)
    assert not told["missing_keys"]
    batch = padded_batch([9, 5, 7])
    batch["token_type_ids"] *= 0  # a RoBERTa has one segment
    options = {} if family == "mpnet" else {"token_type_ids": batch.pop("token_type_ids")}
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        wanted = twin(**batch, **options, output_hidden_states=True)
        found = encoder(**batch, **options, output_hidden_states=True)
    for mine, theirs in zip(found.hidden_states, wanted.hidden_states, strict=True):
        assert_near(mine[real], theirs[real])
    assert_near(found.last_hidden_state[real], wanted.last_hidden_state[real])
    if encoder.pooler is None:
        assert found.pooler_output is None
    else:
        assert_near(found.pooler_output, wanted.pooler_output)


def test_sentence_transformers_and_feature_extraction_read_a_trained_folder(albert_dir, tmp_path):
    elbert.load_pretrained(albert_dir)[0].save_pretrained(tmp_path)
    tokenizer = load_tokenizer(albert_dir)
    tokenizer.save_pretrained(tmp_path)
    twin = transformers.AlbertModel.from_pretrained(albert_dir)
    with torch.no_grad():
        states = [twin(**tokenizer(x, return_tensors="pt")).last_hidden_state[0] for x in TEXTS]
    features = pipeline("feature-extraction", str(tmp_path))(TEXTS)
    for mine, theirs in zip(features, states, strict=True):
        assert_near(torch.tensor(mine[0]), theirs)
    sentence_transformers = pytest.importorskip("sentence_transformers")
    vectors = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
    assert_near(torch.tensor(vectors), torch.stack([x.mean(0) for x in states]))


RECORDERS = {
    "export": lambda model, ids: torch.export.export(model, (ids,)),
    "trace": lambda model, ids: torch.jit.trace(model, (ids,), strict=False),
}


@pytest.mark.parametrize("record", RECORDERS)
def test_what_records_one_example_s_layers_names_the_way_to_a_file(mode, record):
    model = made(mode)
    with pytest.raises(UserError, match=r"export_onnx\.py"):
        RECORDERS[record](model, padded_batch([9, 9])["input_ids"])


def test_prefix_tuning_is_refused_for_what_it_needs(mode):
    peft = pytest.importorskip("peft")
    config = peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4)
    model = peft.get_peft_model(made(mode), config)
    with pytest.raises(ValueError, match="does not support past key values"):
        model(**padded_batch([9, 9]))


@pytest.mark.filterwarnings("ignore")  # torch announces a successor of quantize_dynamic
def test_int8_by_torch_answers_as_hf_s_model_does(albert_dir, tmp_path):
    """Both have the same maps to quantise; dynamic scales amplify the last bit of a float."""
    twin = transformers.AlbertModel.from_pretrained(albert_dir)
    elbert.load_pretrained(albert_dir)[0].save_pretrained(tmp_path)
    encoder = AutoModel.from_pretrained(tmp_path)
    ids = padded_batch([9, 9])["input_ids"]
    with torch.no_grad():
        exact = twin(ids).last_hidden_state
        wanted = quantize_dynamic(twin, {torch.nn.Linear})(ids).last_hidden_state
        found = quantize_dynamic(encoder, {torch.nn.Linear})(ids).last_hidden_state
    rounding = (wanted - exact).abs().mean()
    assert 0 < (found - exact).abs().mean() < 1.2 * rounding
    assert (found - wanted).abs().mean() < 0.2 * rounding


@pytest.mark.filterwarnings("ignore")
def test_every_mode_runs_in_int8_by_torch(mode):
    model = made(mode)
    batch = (ponder_batch if mode == "ponder_albert" else padded_batch)([9, 5, 7])
    small = quantize_dynamic(model, {torch.nn.Linear})
    with torch.no_grad():
        exact, rounded = model(**batch).logits, small(**batch).logits
        packed = packed_copy(small)(**batch).logits
    assert_near(rounded[-1], exact[-1], 0.3 * float(exact.abs().amax()))
    assert_near(packed, rounded)


def test_label_smoothing_trains_every_exit():
    """Trainer's own loss of each exit's logits, summed."""
    model = tiny_model(label_smoothing=0.2, weight_name="equal").train()
    ids, labels = torch.tensor([[5, 6, 7], [8, 9, 10]]), torch.tensor([1, 0])
    out = model(ids, labels=labels)
    wanted = sum(LabelSmoother(0.2)({"logits": x}, labels) for x in out.all_logits)
    torch.testing.assert_close(out.loss, wanted)


def test_several_labels_an_example_are_of_elbert(mode, folder):
    several = {"problem_type": "multi_label_classification"}
    load = AutoModelForSequenceClassification.from_pretrained
    if mode == "elbert":
        assert load(folder, **several).config.is_multi_label
        return
    with pytest.raises(UserError, match=r"multi_label_classification.*elbert takes several"):
        load(folder, **several)


def test_a_second_cls_is_put_into_words_and_positions_too(tmp_path):
    made("ponder_albert").save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    ids = torch.tensor([[2, 7, 3, 9, 3]])
    words, positions = model.get_input_embeddings()(ids), torch.arange(5)[None]
    with torch.no_grad():
        found = model(inputs_embeds=words, token_type_ids=ids * 0, position_ids=positions)
        assert_near(found.logits, model(ids, token_type_ids=ids * 0).logits)
