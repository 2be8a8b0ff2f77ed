"""run_pretraining.py from its flags to its files: tokenizer, training, evaluation, resuming."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import elbert
import run_pretraining
from elbert import AlbertActForPreTraining, load_tokenizer
from tests.berts import save, tiny_encoder
from tests.commands import (
    Outcome,
    exit_status,
    logged_steps,
    main_of,
    pretraining_flags,
    report_of,
    scalars,
)
from tests.conftest import contents, sentence, tsv, write_rte
from tests.forks import assert_same_weights
from training.checkpoints import checkpoints_of
from training.pretraining.data import PretrainingData
from training.pretraining.masking import TokenClass
from training.pretraining.settings import TextSettings

ROOT = Path(run_pretraining.__file__).parent
ROWS = ["All tokens", "All unmasked tokens", "[MASK/MASK]", "[MASK/random]", "[MASK/original]"]
ROWS += ["[CLS]", "[SEP]"]
MODELS = {"albert": transformers.AlbertForPreTraining, "albert_act": AlbertActForPreTraining}


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


@pytest.fixture(scope="module")
def pretrained_once(tmp_path_factory, corpus, spiece) -> Path:
    out = tmp_path_factory.mktemp("pretrained") / "out"
    command = pretraining_flags(corpus, spiece, out, "--do_eval")
    assert exit_status(run_pretraining.main, *command) == 0
    return out


@pytest.fixture
def pretrained(pretrained_once, tmp_path) -> Path:
    """An evaluated ACT model: a copy, which a test may change."""
    return Path(shutil.copytree(pretrained_once, tmp_path / "out"))


@pytest.mark.parametrize("kind", ["albert", "albert_act"])
def test_training_reports_and_evaluation_prints_the_table(kind, pretrain, tmp_path):
    out = tmp_path / "out"
    outcome = pretrain(out, "--do_eval", kind=kind).done()
    logged = logged_steps(outcome.out)
    assert [line["step"] for line in logged] == list(range(1, 9))
    names = {name for line in logged for name in line}
    assert {"loss", "mlm_loss", "mlm_acc", "sop_loss", "sop_acc", "learning_rate"} <= names
    assert ("updates/MASK/MASK" in logged[0]) == (kind == "albert_act")
    assert scalars(out).keys() == names - {"step"}
    report = report_of(out)
    for name in ("mlm_acc", "sop_acc", "loss"):
        assert f"{name} = {report[name]:.4f}" in outcome.out
    assert list(report["updates"]) == (ROWS if kind == "albert_act" else [])
    for name, value in report["updates"].items():
        assert 1 <= value <= 3
        assert f"\n| {name} | {value:.2f} |\n" in outcome.out
    loaded = MODELS[kind].from_pretrained(out)
    assert loaded.config.model_type == kind


def test_evaluation_is_the_models_own_answer(corpus, pretrained):
    """Against AlbertActForPreTraining's forward over the same text, one example at a time."""
    report, tokenizer = report_of(pretrained), load_tokenizer(pretrained)
    text = TextSettings(train_files=[corpus / "eval.txt"], max_seq_length=16)
    data = PretrainingData(text, tokenizer, 1, seed=1, output_dir=pretrained)
    model = AlbertActForPreTraining.from_pretrained(pretrained).eval()
    losses, correct, updates = [], [], []
    for batch in data.evaluation_batches((0, 1)):
        masked = batch["labels"] != -100
        answer = model(batch["input_ids"], token_type_ids=batch["token_type_ids"])
        logits = answer.prediction_logits[masked]
        losses += torch.nn.functional.cross_entropy(
            logits, batch["labels"][masked], reduction="none"
        ).tolist()
        correct += (logits.argmax(-1) == batch["labels"][masked]).tolist()
        kept = batch["token_classes"] == TokenClass.UNMASKED
        updates += answer.updates[:, 0, 0][kept].tolist()
    assert report["mlm_loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert report["mlm_acc"] == pytest.approx(sum(correct) / len(correct))
    assert report["updates"]["All unmasked tokens"] == pytest.approx(sum(updates) / len(updates))


@pytest.mark.parametrize("kind", ["albert", "albert_act"])
def test_another_folders_model_is_evaluated_and_trained_on(kind, corpus, spiece, tmp_path, script):
    """The results are those of its own folder; a learning rate of 0 keeps all of its weights."""
    source, results, out = tmp_path / "source", tmp_path / "results", tmp_path / "out"

    def run(place: Path, *more, do: str = "train", without: Sequence[str] = ()) -> Outcome:
        command = pretraining_flags(corpus, spiece, place, *more, kind=kind, do=do)
        for name in without:
            del command[command.index(name) : command.index(name) + 2]
        return script(run_pretraining.main, *command)

    run(source, "--do_eval").done()
    before, more = contents(source), ("--model_name_or_path", source)
    run(results, *more, do="eval").done()
    found, expected = report_of(results), json.loads(before["eval_results.json"])
    origins = [x.pop("provenance") for x in (found, expected)]
    assert found == expected
    assert len({(origin["weights"], origin["data"]) for origin in origins}) == 1
    own = ("--config_name", "--tokenizer_name")  # the source's
    run(out, *more, "--learning_rate", 0, without=own).done()
    assert_same_weights(out, source)
    assert contents(source) == before


def test_a_new_tokenizer_takes_the_place_of_an_old_one(corpus, spiece, script, tmp_path):
    """Neither written beside the tokenizer of a model that is there, nor left unused behind it."""
    out = tmp_path / "out"
    command = pretraining_flags(corpus, spiece, out, "--train_tokenizer")
    del command[(place := command.index("--tokenizer_name")) : place + 2]
    command.remove("--do_train")
    script(run_pretraining.main, *command, "--do_train", "--vocab_size", 40).done()
    assert len(load_tokenizer(out)) == 40
    script(run_pretraining.main, *command, "--vocab_size", 41).refused("is not empty")
    for how in ("--overwrite_output_dir", "--resume_from_checkpoint"):
        script(run_pretraining.main, *command, "--do_train", "--vocab_size", 41, how).done()
        assert len(load_tokenizer(out)) == 41


# Errors.


def test_models_that_cannot_be_started_from_or_evaluated(
    corpus, spiece, tmp_path, script, pretrain, pretrained
):
    """A BERT and an MPNet, whose layers differ; an encoder without what predicts words; another
    mode's model, and a damaged one; a checkpoint of another text."""
    encoder = tmp_path / "encoder"
    for family, advice in (("bert", "share_layers.py"), ("mpnet", "relative attention bias")):
        deep = save(tiny_encoder(family), tmp_path / family)
        command = pretraining_flags(corpus, spiece, tmp_path / "new", "--model_name_or_path", deep)
        del command[2:4]  # --config_name
        script(run_pretraining.main, *command).refused(advice)
    elbert.AlbertActModel(elbert.AlbertActConfig.from_pretrained(corpus)).save_pretrained(encoder)
    more = ("--model_name_or_path", encoder)
    pretrain(tmp_path / "new", *more, do="eval").refused("no weights for predictions.")
    other = pretrain(pretrained, kind="albert", do="eval")
    other.refused("no weights for")
    path = pretrained / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    pretrain(pretrained, do="eval").refused("model.safetensors is damaged")
    pretrain(tmp_path / "saved", "--save_steps", 3).done()
    last = checkpoints_of(tmp_path / "saved")[-1]
    text = ("--save_steps", 3, "--train_files", corpus / "eval.txt", "--resume_from_checkpoint")
    pretrain(tmp_path / "saved", *text, last).refused(
        "training examples or their tokens are others"
    )


def test_glue_sentences_become_documents(tmp_path, script):
    write_rte(tmp_path / "RTE")
    rows = [("x", i % 2, "", f"sentence  {i}") for i in range(3)]
    tsv(tmp_path / "CoLA/train.tsv", "\t".join(map(str, rows[0])), rows)
    output = tmp_path / "text.txt"
    script(main_of("glue_text.py"), "--data_dir", tmp_path, "--output", output).done()
    documents = output.read_text().split("\n\n")
    assert documents[:3] == ["sentence 0", "sentence 1", "sentence 2"]
    assert documents[3] == f"{sentence(0)}\n{sentence(1, 1)}"
    assert len(documents) == 3 + 24
