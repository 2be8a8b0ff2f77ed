"""Every door, for a classifier of transformers that has got exits between its own layers."""

import json
import shutil
from functools import partial

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import classify
import elbert
import sweep_exits
from modeling.loading.weights import load_trained_model
from tests.commands import report_of
from tests.conftest import RTE_LABELS, sentence, write
from tests.forks import assert_same_weights
from tests.general_encoders import save_with_tokenizer, tiny_classifier
from tests.scripts.test_serve import post, serving

PAIRS = [(sentence(number, 3 + number % 4), sentence(number + 1)) for number in range(12)]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["modernbert", "deberta-v2"])
def test_a_fine_tuned_classifier_gets_exits_and_goes_through_every_door(
    model_type, script, glue, tmp_path
):
    """Only the exits learn, so that at full depth all answers are transformers'."""
    classifier = tiny_classifier(model_type, num_labels=2)
    classifier.config.id2label = dict(enumerate(RTE_LABELS))
    classifier.config.label2id = {name: number for number, name in enumerate(RTE_LABELS)}
    weights = save_with_tokenizer(classifier, tmp_path / "hf")
    twin = AutoModelForSequenceClassification.from_pretrained(weights).eval()
    out = tmp_path / "out"
    run = partial(glue, weights=weights)
    training = ("--model_type", "elbert", "--recipe", "add_exits", "--train_exits_only")
    training += ("--do_train", "--max_steps", 4, "--save_steps", 2, "--max_seq_length", 40)
    run(out, *training).done()

    # Resume, to the last bit.
    resumed = tmp_path / "resumed"
    shutil.copytree(out / "checkpoint-2", resumed / "checkpoint-2")
    run(resumed, *training, "--resume_from_checkpoint", "latest").done()
    assert_same_weights(out, resumed)

    # elbert.Classifier, at full depth.
    model = load_trained_model(out)
    model.config.exit_thres = 0.0
    tokenizer = AutoTokenizer.from_pretrained(weights)
    firsts = [first for first, _ in PAIRS]
    seconds = [second for _, second in PAIRS]
    batch = tokenizer(firsts, seconds, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        expected = twin(ids, mask).logits
        assert torch.equal(model(ids, mask).logits, expected)
    (out / "exit_config.json").write_text('{"thres_name": "entropy", "exit_thres": 0.0}')
    answers = elbert.Classifier(str(out))(PAIRS)
    scores = [answer["score"] for answer in answers]
    assert scores == pytest.approx(expected.softmax(-1).amax(-1).tolist(), abs=1e-5)

    # A table, and a server.
    new_rows = [{"sentence1": first, "sentence2": second} for first, second in PAIRS]
    table = write(tmp_path / "new.jsonl", "".join(json.dumps(row) + "\n" for row in new_rows))
    scored = tmp_path / "scored.jsonl"
    files = ("--model_dir", out, "--input_file", table, "--output_file", scored)
    script(classify.main, *files).done()
    rows = [json.loads(line) for line in scored.read_text().splitlines()]
    assert [row["label"] for row in rows] == [answer["label"] for answer in answers]
    with serving("--model_dir", out) as (_, port):
        status, served = post(port, {"texts": PAIRS})
    assert status == 200
    assert [answer["label"] for answer in served["answers"]] == [
        answer["label"] for answer in answers
    ]

    # Half precision, and a sweep.
    run(out, "--model_type", "elbert", "--do_eval", "--dtype", "bf16").done()
    assert report_of(out)["dtype"] == "bf16"
    script(sweep_exits.main, "--model_dir", out, "--rules", "entropy").done()
    assert (out / "sweep/sweep.csv").exists()
