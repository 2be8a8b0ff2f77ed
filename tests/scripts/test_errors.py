"""What the scripts refuse: exit status 2, a message with the thing and the remedy, nothing written
or overwritten."""

import shutil

import pytest

import classify
import convert_albert_original_tf_checkpoint_to_pytorch as converter
import download_glue_data
import export_onnx
import make_classifier
import reproduce
import run_glue
import run_parity
import run_pretraining
import share_layers
import sweep_exits
from elbert import ElbertForSequenceClassification
from tests.conftest import contents, edit_json, write

# run_glue.py.

PONDER = "--model_type ponder_albert"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--task_name RTEE", ["'RTEE'", "did you mean rte"]),
        ("--learning_rate nan", ["--learning_rate", "nan"]),
        ("--per_gpu_train_batch_size 0", ["--per_gpu_train_batch_size", "0", "at least 1"]),
        ("--max_seq_length 41", ["--max_seq_length 41", "max_position_embeddings = 40"]),
        ("--set cnt_thres=5", ["cnt_thres = 5", "num_hidden_layers = 4"]),
        ("--fp16", ["fp16: needs a GPU", "--bf16"]),
        ("--model_type gpt2", ["--model_type", "albert"]),
        ("--model_name_or_path /nowhere/w", ["/nowhere/w"]),
        ("--output_dir /proc/nowhere/out", ["/proc/nowhere"]),
        ("--output_dir README.md", ["README.md"]),
        ("--data_dir /nowhere/RTE", ["train.tsv", "/nowhere/RTE", "download_glue_data.py"]),
        ("--onnx model.onnx", ["--onnx", "leave out --do_train"]),
        ("--eval_strategy epoch", ["--eval_strategy", "'no', 'steps'"]),
        ("--lambda_lr 0.1", ["--lambda_lr", "no key of --model_type elbert"]),
        (f"{PONDER} --set cnt_thres=2", ["cnt_thres", "no key of"]),
        (f"{PONDER} --target_halt_probability 2", ["target_halt_probability = 2"]),
        (f"{PONDER} --exit_criteria mean", ["'mean'", "sample, threshold"]),
        (f"{PONDER} --max_seq_length 3", ["--max_seq_length 3", "4 to max_position_embeddings"]),
    ],
)
def test_flags_that_a_training_refuses(glue, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("")
    glue(tmp_path / "out", "--do_train", *arguments.split()).refused(*words)
    assert (tmp_path / "README.md").read_text() == ""
    assert not (tmp_path / "out").exists() or contents(tmp_path / "out") == {}


GOOD = "index\tsentence1\tsentence2\tlabel\n0\ta man\ta dog\tentailment\n"


@pytest.mark.parametrize("name", ["train", "dev"])
def test_a_bad_data_file_is_named_with_its_line_before_training(name, glue, rte, tmp_path):
    data, out = shutil.copytree(rte, tmp_path / "RTE"), tmp_path / "out"
    out.mkdir()
    (data / f"{name}.tsv").write_text(GOOD + "1\ta man\ta dog\tmaybe\n")
    (out / "config.json").write_text('{"mine": 1}')
    outcome = glue(out, "--do_train", "--do_eval", "--overwrite_output_dir", data=data)
    outcome.refused(f"{name}.tsv, line 3", "'maybe'", "entailment, not_entailment")
    assert contents(out) == {"config.json": b'{"mine": 1}'}


@pytest.mark.parametrize(
    ("spoil", "arguments", "words"),
    [
        ({}, "--do_train", ["--overwrite_output_dir"]),
        ({"intermediate_size": 64}, "--do_eval", ["has shape", "config.json"]),
        ({"finetuning_task": "mrpc"}, "--do_eval", ["trained on mrpc", "rte"]),
        (b"\xff\n", "--do_eval", ["use --out_mode one"]),
        (b",exit_thres,corr\n", "--do_eval", ["eval_results.txt has other columns"]),
    ],
)
def test_what_does_not_fit_a_trained_model_is_refused(trained, glue, spoil, arguments, words):
    if isinstance(spoil, dict):
        edit_json(trained / "config.json", **spoil)
    else:
        (trained / "eval_results.txt").write_bytes(spoil)
    before = contents(trained)
    glue(trained, "--out_mode", "all", *arguments.split()).refused(*words)
    assert contents(trained) == before


def test_untrained_or_missing_weights_are_not_evaluated(albert_dir, glue, tmp_path):
    """A plain ALBERT has no exits; random ones would print numbers that mean nothing."""
    before = contents(albert_dir)
    glue(albert_dir, "--do_eval").refused(albert_dir, "not a trained model", "--do_train")
    assert contents(albert_dir) == before
    glue(tmp_path, "--do_eval").refused(tmp_path, "--do_train")


@pytest.mark.parametrize("spoilt", ["loss", "weights"])
def test_numbers_that_are_not_finite_stop_and_keep_the_last_checkpoint(
    spoilt, glue, tmp_path, monkeypatch
):
    """At the third step; a gradient can overflow under a finite loss."""
    forward, calls = ElbertForSequenceClassification.forward, []

    def spoil(self, *arguments, **keywords):
        out = forward(self, *arguments, **keywords)
        calls.append(1)
        if len(calls) == 3 and spoilt == "loss":
            out.loss = out.loss * float("nan")
        if len(calls) == 3 and spoilt == "weights":
            self.albert.pooler.weight.data[0, 0] = float("inf")
        return out

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(ElbertForSequenceClassification, "forward", spoil)
        outcome = glue(out, "--do_train", "--save_steps", 1)
    if spoilt == "loss":
        outcome.refused("the loss is nan at step 3", "learning rate 1e-05", out / "checkpoint-2")
    else:
        outcome.refused("not finite", "--learning_rate")
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}
    assert not (out / "config.json").exists()
    glue(out, "--do_eval").refused("did not finish", "checkpoint-2")
    glue(out / "checkpoint-2", "--do_eval").done()


# sweep_exits.py.


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        (lambda model: shutil.rmtree(model), "", "no such folder"),
        (
            lambda model: shutil.copytree(model.parent / "mnli", model, dirs_exist_ok=True),
            "",
            "was trained on mnli (3 labels), not on rte (2 labels)",
        ),
        (lambda model: (model / "sweep").touch(), "", "is no folder"),
        (None, "--grid exit_tres=0:1:0.1", "did you mean exit_thres"),
        (None, "--grid exit_thres", "grid exit_thres=: expected a number, FROM:TO"),
        (None, "--rules entropie", "rule entropie: did you mean entropy"),
        (None, "--pick max_coast=1", "did you mean max_cost"),
        (None, "--pick risk=0.02", "or risk=… with delta=…"),
        (None, "--pick max_p95_ms=1 --batch_size 2", "needs the times of single examples"),
        (None, "--pick risk=2 delta=0.1", "allowed is a number from 1e-06 to 0.999"),
        (None, "--compare --calibration_fraction 1", "allowed is a number from 0.01 to 0.99"),
        (None, "--grid thres_name=entropy", "grid thres_name="),
        (None, "--max_seq_length 2000", "--max_seq_length 2000: allowed is 3 to"),
    ],
)
def test_a_sweep_of_bad_input_names_it(place, sweep, change, more, message):
    if change:
        change(place / "models/rte")
    before = contents(place)
    sweep(place, "rte", *more.split()).refused(message)
    assert contents(place) == before


# The others.


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--tau -0.1", ["--tau", "at least 0"]),
        ("--train_files /nowhere/text.txt", ["/nowhere/text.txt", "No such file"]),
        ("--max_seq_length 64", ["--max_seq_length 64", "max_position_embeddings = 40"]),
        ("--per_gpu_train_batch_size 1", ["less than one example of 32 tokens", "at least 2"]),
        ("--per_gpu_train_batch_size 500", ["fewer examples than the 500"]),
        ("--model_type albert --tau 0.1", ["--tau", "albert_act"]),
        ("--do_eval --eval_file /nowhere", ["/nowhere"]),
        ("--train_files EMPTY", ["empty.txt: no text"]),
        ("--train_files BAD", ["bad.txt"]),
    ],
)
def test_flags_that_a_pretraining_refuses(more, words, pretrain, tmp_path):
    bad = {"EMPTY": tmp_path / "empty.txt", "BAD": tmp_path / "bad.txt"}
    bad["EMPTY"].write_bytes(b" = a heading = \n \n")
    bad["BAD"].write_bytes(b"a dog runs\n\xff\xfe\n")
    outcome = pretrain(tmp_path / "out", *(bad.get(word, word) for word in more.split()))
    outcome.refused(*words)
    assert not list((tmp_path / "out").glob("*model*"))


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (run_glue.main, "--do_train --model_type elbert --model_name_or_path MODEL --output_dir A"),
        (run_glue.main, "--do_eval --output_dir MODEL --statistics_dir A"),
        (make_classifier.main, "--train_file T --model_name_or_path MODEL --output_dir A"),
        (export_onnx.main, "--model_dir MODEL --output A/a.onnx"),
        (export_onnx.main, "--model_dir MODEL --triton A"),
        (classify.main, "--model_dir MODEL --input_file T --output_file A/a.csv"),
        (download_glue_data.main, "--tasks RTE --data_dir A"),
        (run_parity.main, "--output_dir A"),
        (sweep_exits.main, "--model_dir MODEL --output_dir A"),
        (run_pretraining.main, "--do_train --train_files T --output_dir A"),
        (share_layers.main, "--do_train --train_files T --model_name_or_path MODEL --output_dir A"),
        (converter.main, "--tf_checkpoint_path x --albert_config_file x --pytorch_dump_path A"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_before_the_work(
    main, arguments, script, trained, tmp_path
):
    blocked = write(tmp_path / "blocked", "mine")  # a file where a folder would be
    table = write(tmp_path / "t.csv", "sentence1,label\n" + "a,x\nb,y\n" * 9)
    places = {"A": f"{blocked}/new", "MODEL": str(trained), "T": str(table)}
    words = [places.get(word, word.replace("A/", f"{blocked}/new/")) for word in arguments.split()]
    before = contents(trained)
    if main is run_glue.main and "--do_train" in words:
        words += ["--train_file", table]
    script(main, *words).refused("blocked")
    assert contents(trained) == before
    assert blocked.read_text() == "mine"


@pytest.mark.parametrize(
    ("main", "arguments", "words"),
    [
        (run_pretraining.main, "", "nothing to do"),
        (run_pretraining.main, "--do_train", "--train_files is"),
        (run_pretraining.main, "--do_eval", "--eval_file is"),
        (run_parity.main, "--lambda_p 0", "--lambda_p: 0: allowed is"),
        (reproduce.main, "elbert", "elbert-rte"),
        (reproduce.main, "act-glue --tasks AX", "--tasks AX: act-glue has only CoLA"),
    ],
)
def test_what_cannot_be_run_is_said(main, arguments, words, script, tmp_path):
    script(main, *arguments.split(), "--output_dir", tmp_path / "out").refused(words)
    assert not (tmp_path / "out").exists()
