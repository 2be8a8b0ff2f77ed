"""export_onnx.py, run_glue.py --onnx and the examples that need nothing else."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import change_config
import export_onnx
import run_glue
from evaluation.job import load_finished
from evaluation.modes import MODES
from modeling import load_tokenizer
from tests.commands import flags, refused
from tests.conftest import edit_json, sentence

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.onnx
slow = pytest.mark.slow
ROOT = Path(run_glue.__file__).parent


def command(albert_dir, rte, out, mode: str, *more) -> list[str]:
    return [*flags(albert_dir, rte, out), "--model_type", mode, "--out_mode", "one", *more]


@pytest.fixture(scope="module")
def trained(albert_dir, rte, tmp_path_factory):
    """`trained(mode)`: a folder with a model of two steps and its files, made once."""
    folder = tmp_path_factory.mktemp("onnx")

    def of(mode: str) -> Path:
        out = folder / mode
        if not out.exists():
            train = command(albert_dir, rte, out, mode, "--do_train", "--max_steps", "2")
            export = ("export_onnx.py", "--model_dir", out, "--output")
            runs = [["run_glue.py", *train], [*export, out / "fp32.onnx"]]
            if mode == "albert":
                runs.append([*export, out / "int8.onnx", "--int8"])
            for run in runs:
                process = [sys.executable, *map(str, run)]
                done = subprocess.run(
                    process, cwd=ROOT, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, done.stderr[-3000:]
        return out

    return of


def results(out: Path) -> dict:
    return json.loads((out / "eval_results.json").read_text())


COMPARED = {
    "albert": ("metrics", "exits_per_layer", "computation_cost", "acc_per_layer", "rule"),
    "ponder_albert": ("metrics", "exits_per_layer", "computation_cost", "acc_per_layer", "rule"),
    "albert_act": ("metrics", "tokens_per_updates", "computation_cost", "updates_per_token_class"),
}
SET = {
    "albert": ["cnt_thres=2", "exit_thres=0.99", "margin=0.01"],
    "ponder_albert": [],  # a sample, each example by its own draw
    "albert_act": ["act_epsilon=0.4"],
}


@slow
@pytest.mark.parametrize("mode", list(MODES))
def test_a_file_is_evaluated_as_its_model_is(trained, albert_dir, rte, script, mode):
    out = trained(mode)
    chosen = ["--set", *SET[mode]] if SET[mode] else []
    evaluate = command(albert_dir, rte, out, mode, "--do_eval", *chosen)
    assert script(run_glue.main, *evaluate).status == 0
    expected = results(out)
    for size in (1, 4):
        more = ("--onnx", out / "fp32.onnx", "--per_gpu_eval_batch_size", size)
        outcome = script(run_glue.main, *evaluate, *more)
        assert outcome.status == 0, outcome.err
        found = results(out)
        assert {k: found[k] for k in COMPARED[mode]} == {k: expected[k] for k in COMPARED[mode]}
        assert found["onnx"] == str(out / "fp32.onnx")
        assert found["dtype"] == "fp32"
        assert found["batch_size"] == size
        assert ("exit layers as in fp32 = 1.0000" in outcome.out) == (mode != "albert_act")


@slow
def test_an_edit_of_the_configuration_reaches_the_file(trained, albert_dir, rte, script):
    """change_config.py, for config.json and for exit_config.json, and no new export."""
    out = trained("albert")
    where = ("--task", out.name, "--model", "tiny", "--out_dir", out.parent)
    evaluate = command(albert_dir, rte, out, "albert", "--do_eval", "--onnx", out / "fp32.onnx")
    for threshold, layer in (("1.0", 1), ("0.0", 4)):
        change = ("--key", "exit_thres", "--value", threshold, *where)
        assert script(change_config.main, *change).status == 0
        assert script(run_glue.main, *evaluate).status == 0
        assert results(out)["exits_per_layer"][layer - 1] == 10
    edit_json(out / "config.json", exit_config_path="exit_config.json")
    (out / "exit_config.json").write_text('{"exit_thres": 1.0}')
    assert script(run_glue.main, *evaluate).status == 0
    assert results(out)["exits_per_layer"] == [10, 0, 0, 0]
    edit_json(out / "config.json", exit_config_path="", exit_thres=0.1)


@slow
def test_an_int8_file_is_smaller_and_answers_alike_in_batches(trained, albert_dir, rte, script):
    out = trained("albert")
    evaluate = command(albert_dir, rte, out, "albert", "--do_eval", "--onnx", out / "int8.onnx")
    found = []
    for size in (1, 4):
        assert script(run_glue.main, *evaluate, "--per_gpu_eval_batch_size", size).status == 0
        found.append({key: results(out)[key] for key in (*COMPARED["albert"], "dtype")})
    assert found[0] == found[1]
    assert found[0]["dtype"] == "int8"
    assert (out / "int8.onnx").stat().st_size < (out / "fp32.onnx").stat().st_size


@slow
def test_int8_needs_the_training_texts_or_others(trained, tmp_path, script):
    model = shutil.copytree(trained("albert"), tmp_path / "RTE")
    edit_json(model / "training.json", provenance={})
    export = ("--model_dir", model, "--output", tmp_path / "int8.onnx", "--int8")
    script(export_onnx.main, *export).refused("trained on", "--calibration_file")
    texts = tmp_path / "texts.tsv"
    texts.write_text("sentence1\tsentence2\n" + "it rains\tit is wet\n" * 3)
    assert script(export_onnx.main, *export, "--calibration_file", texts).status == 0


@slow
@pytest.mark.parametrize("name", ["fp32", "int8"])
def test_a_file_says_what_it_holds_and_not_where_it_was_made(trained, name):
    out = trained("albert")
    session = onnxruntime.InferenceSession(out / f"{name}.onnx")
    stored = session.get_modelmeta().custom_metadata_map
    assert json.loads(stored["labels"]) == ["entailment", "not_entailment"]
    assert json.loads(stored["rule"])["thres_name"] == "bias_1"
    assert json.loads(stored["dtype"]) == name
    assert json.loads(stored["cls_tokens"]) == 1
    assert set(json.loads(stored["versions"])) == {"torch", "transformers", "onnxscript"}
    assert str(ROOT).encode() not in (out / f"{name}.onnx").read_bytes()


def answer_of(model_dir: Path, *texts: str) -> str:
    """What the examples print of the model's answer."""
    model, tokenizer = load_finished(model_dir, MODES["albert"]), load_tokenizer(model_dir)
    with torch.no_grad():
        answer = model(**tokenizer(*texts, return_tensors="pt"))
    label = model.config.id2label[int(answer.logits.argmax())]
    return f"{label}, after layer {int(answer.exit_layer)}\n"


@slow
def test_ten_lines_answer_as_the_model(trained):
    """The example, in a folder from which nothing of this project can be imported."""
    out, texts = trained("albert"), (sentence(3), sentence(4, 3))
    example = ROOT / "examples" / "onnx_python.py"
    run = [sys.executable, example, out / "fp32.onnx", out / "tokenizer.json", *texts]
    done = subprocess.run(run, cwd=out, capture_output=True, text=True, check=True)
    assert done.stdout == answer_of(out, *texts)
    assert done.stderr == ""
    words = example.read_text()
    assert "modeling" not in words
    assert "transformers" not in words


@slow
@pytest.mark.parametrize("mode", ["ponder_albert", "albert_act"])
def test_they_run_a_file_of_any_mode(trained, mode):
    out = trained(mode)
    run = [ROOT / "examples" / "onnx_python.py", out / "fp32.onnx", out / "tokenizer.json"]
    done = subprocess.run(
        [sys.executable, *run, sentence(3)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ", after layer " in done.stdout


@slow
def test_so_do_they_in_javascript(trained, node_modules):
    out, pair = trained("albert"), (sentence(3), sentence(4, 3))
    example = shutil.copy(ROOT / "examples" / "onnx_javascript.mjs", node_modules.parent)
    for texts in (pair, pair[:1]):
        run = ["node", example, out / "fp32.onnx", out, *texts]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        assert done.stdout == answer_of(out, *texts)


@slow
def test_a_file_of_other_weights_is_refused(trained, albert_dir, rte, script, tmp_path):
    """Before the model answers anything: the results that were there stay."""
    old, new = trained("albert") / "fp32.onnx", tmp_path / "RTE"
    train = command(albert_dir, rte, new, "albert", "--do_train", "--max_steps", 1)
    script(run_glue.main, *train).done()
    evaluate = command(albert_dir, rte, new, "albert", "--do_eval", "--onnx", old)
    refused(script, evaluate, f"{old}: exported from other weights", "export it again")
    assert not (new / "eval_results.json").exists()


def test_what_is_no_trained_model_is_refused(albert_dir, tmp_path, script):
    pytest.importorskip("onnxscript")
    for folder, words in ((albert_dir, "not a trained model"), (tmp_path, "config.json")):
        arguments = ("--model_dir", folder, "--output", tmp_path / "a.onnx")
        outcome = script(export_onnx.main, *arguments)
        assert outcome.status == 2
        assert words in outcome.err
        assert not (tmp_path / "a.onnx").exists()


@slow
@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ("thres_name=entropy", "exported with thres_name = bias_1, the model now has entropy"),
        ("window_score=class0", "exported with window_score = lead"),
    ],
)
def test_what_no_input_sets_takes_a_new_export(trained, albert_dir, rte, script, changed, word):
    out = trained("albert")
    evaluate = command(albert_dir, rte, out, "albert", "--do_eval", "--onnx", out / "fp32.onnx")
    refused(script, [*evaluate, "--set", changed], word, "export it again")
