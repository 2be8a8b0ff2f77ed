"""export_onnx.py, run_glue.py --onnx and the examples that need nothing else."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

import export_onnx
import run_glue
from elbert import classify
from evaluation.modes import MODES
from tests.commands import ROOT, edit_key, flags, ran, report_of
from tests.conftest import edit_json, sentence

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
to_array = onnx.numpy_helper.to_array
pytestmark = [pytest.mark.onnx, pytest.mark.slow]


@pytest.fixture(scope="module")
def trained(albert_dir, rte, tmp_path_factory):
    """`trained(mode)`: a folder with a model of two steps and its files, made once."""
    folder = tmp_path_factory.mktemp("onnx")

    def of(mode: str) -> Path:
        out = folder / mode
        if not out.exists():
            train = ("--model_type", mode, "--do_train", "--max_steps", 2)
            ran(sys.executable, "run_glue.py", *flags(albert_dir, rte, out, "RTE", *train))
            export = (sys.executable, "export_onnx.py", "--model_dir", out, "--output")
            ran(*export, out / "fp32.onnx")
            if mode == "elbert":
                ran(*export, out / "int8.onnx", "--int8")
        return out

    return of


@pytest.fixture
def evaluate(script, albert_dir, rte):
    """`evaluate(mode, out, "--flag", value, ...)` evaluates a folder's model or file."""

    def run(mode: str, out: Path, *more):
        common = ("--model_type", mode, "--out_mode", "one", "--do_eval")
        return script(run_glue.main, *flags(albert_dir, rte, out, "RTE", *common, *more))

    return run


COMPARED = {
    "elbert": ("metrics", "exits_per_layer", "computation_cost", "acc_per_layer", "rule"),
    "ponder_albert": ("metrics", "exits_per_layer", "computation_cost", "acc_per_layer", "rule"),
    "albert_act": ("metrics", "tokens_per_updates", "computation_cost", "updates_per_token_class"),
}
SET = {
    "elbert": ("--set", "cnt_thres=2", "exit_thres=0.99", "margin=0.01"),
    "ponder_albert": (),  # a sample, each example by its own draw
    "albert_act": ("--set", "act_epsilon=0.4"),
}


@pytest.mark.parametrize("mode", list(MODES))
def test_a_file_is_evaluated_as_its_model_is(trained, evaluate, mode):
    out = trained(mode)
    evaluate(mode, out, *SET[mode]).done()
    expected = report_of(out)
    assert str(out.parent).encode() not in (out / "fp32.onnx").read_bytes()  # no local path
    for size in (1, 4):
        more = ("--onnx", out / "fp32.onnx", "--per_gpu_eval_batch_size", size)
        outcome, found = evaluate(mode, out, *SET[mode], *more).done(), report_of(out)
        assert {k: found[k] for k in COMPARED[mode]} == {k: expected[k] for k in COMPARED[mode]}
        assert (found["dtype"], found["batch_size"]) == ("fp32", size)
        assert found["onnx"] == str(out / "fp32.onnx")
        assert found["onnxruntime"] == onnxruntime.__version__
        assert ("same exit layer as in float32 = 1.0000" in outcome.out) == (mode != "albert_act")


def test_an_edit_of_the_configuration_reaches_the_file(trained, evaluate, script):
    """change_config.py, for config.json and for exit_config.json, and no new export."""
    out = trained("elbert")
    for threshold, layer in (("1.0", 1), ("0.0", 4)):
        edit_key(script, out, "exit_thres", threshold).done()
        evaluate("elbert", out, "--onnx", out / "fp32.onnx").done()
        assert report_of(out)["exits_per_layer"][layer - 1] == 10
    (out / "exit_config.json").write_text('{"exit_thres": 1.0}')
    evaluate("elbert", out, "--onnx", out / "fp32.onnx").done()
    assert report_of(out)["exits_per_layer"] == [10, 0, 0, 0]
    (out / "exit_config.json").unlink()
    edit_json(out / "config.json", exit_thres=0.1)


def test_an_int8_file_is_smaller_and_answers_alike_in_batches(trained, evaluate):
    """Processors without int8 instructions add two products in 16 bits: the largest sum fits."""
    out, found = trained("elbert"), []
    stored = onnx.load(out / "int8.onnx").graph.initializer
    weights = [to_array(x) for x in stored if x.name.endswith("_weight_int8")]
    assert len(weights) == 7  # of a layer pass, and the pooler's
    assert max(np.abs(weight.astype(int)).max() for weight in weights) * 255 * 2 < 2**15
    for size in (1, 4):
        # A bare name is looked up in the model's folder, too.
        more = ("--onnx", "int8.onnx", "--per_gpu_eval_batch_size", size)
        evaluate("elbert", out, *more).done()
        found.append({key: report_of(out)[key] for key in (*COMPARED["elbert"], "dtype")})
    assert found[0] == found[1]
    assert found[0]["dtype"] == "int8"
    assert (out / "int8.onnx").stat().st_size < (out / "fp32.onnx").stat().st_size


def test_int8_needs_the_training_texts_or_others(trained, tmp_path, script):
    model = shutil.copytree(trained("elbert"), tmp_path / "RTE")
    edit_json(model / "training.json", provenance={})
    export = ("--model_dir", model, "--output", tmp_path / "int8.onnx", "--int8")
    script(export_onnx.main, *export).refused("trained on", "--calibration_file")
    texts = tmp_path / "texts.tsv"
    texts.write_text("sentence1\tsentence2\n" + "it rains\tit is wet\n" * 3)
    script(export_onnx.main, *export, "--calibration_file", texts).done()


def test_a_file_of_the_users_own_is_put_aside_and_a_runs_own_replaced(trained, tmp_path, script):
    model = Path(shutil.copytree(trained("elbert"), tmp_path / "RTE"))
    output = model / "classifier-int8.onnx"
    output.write_text("mine")
    for _ in range(2):
        script(export_onnx.main, "--model_dir", model, "--output", output).done()
    assert (model / f"{output.name}.1").read_text() == "mine"
    assert not (model / f"{output.name}.2").exists()
    assert output.stat().st_size > 1000


@pytest.mark.parametrize("name", ["fp32", "int8"])
def test_a_file_says_what_it_holds_and_not_where_it_was_made(trained, name):
    out = trained("elbert")
    session = onnxruntime.InferenceSession(out / f"{name}.onnx")
    stored = session.get_modelmeta().custom_metadata_map
    told = {key: json.loads(stored[key]) for key in ("labels", "rule", "dtype", "cls_tokens")}
    assert told["labels"] == ["entailment", "not_entailment"]
    assert told["rule"]["thres_name"] == "bias_1"
    assert (told["dtype"], told["cls_tokens"]) == (name, 1)
    assert set(json.loads(stored["versions"])) == {"torch", "transformers", "onnxscript"}
    assert str(ROOT).encode() not in (out / f"{name}.onnx").read_bytes()


def answer_of(model_dir: Path, *texts: str) -> str:
    """What the examples print of the model's answer."""
    (answer,) = classify(model_dir, [texts if len(texts) == 2 else texts[0]])
    return f"{answer['label']}, after layer {answer['exit_layer']}\n"


def test_the_example_in_python_answers_as_the_model_without_the_project(trained):
    """It runs in a folder from which nothing of this project can be imported."""
    out, texts = trained("elbert"), (sentence(3), sentence(4, 3))
    run = (sys.executable, ROOT / "examples/onnx_python.py")
    for given in (texts, (sentence(3, 60), sentence(4, 50))):  # the long pair is cut
        printed = ran(*run, out / "fp32.onnx", out / "tokenizer.json", *given, cwd=out)
        assert printed == answer_of(out, *given)
    assert "transformers" not in (ROOT / "examples/onnx_python.py").read_text()
    for mode in ("ponder_albert", "albert_act"):
        other = trained(mode)
        files = (other / "fp32.onnx", other / "tokenizer.json")
        depth = {"ponder_albert": ", after layer ", "albert_act": " updates of a token"}[mode]
        assert depth in ran(*run, *files, sentence(3), cwd=other)


def test_the_example_in_javascript_answers_as_the_model(trained, node_modules):
    out, pair = trained("elbert"), (sentence(3), sentence(4, 3))
    example = shutil.copy(ROOT / "examples" / "onnx_javascript.mjs", node_modules.parent)
    long_pair = (sentence(3, 60), sentence(4, 50))  # cut as in the training
    for texts in (pair, pair[:1], long_pair, long_pair[:1]):
        assert ran("node", example, out / "fp32.onnx", out, *texts) == answer_of(out, *texts)


def test_a_file_of_other_weights_or_another_rule_is_refused(trained, evaluate, tmp_path):
    """Before the model answers anything: no results are written."""
    out = trained("elbert")
    file, new = out / "fp32.onnx", shutil.copytree(out, tmp_path / "RTE")
    (new / "eval_results.json").unlink(missing_ok=True)
    for changed, words in (
        ("thres_name=entropy", "exported with thres_name = bias_1, the model now has entropy"),
        ("window_score=class0", "exported with window_score = lead"),
    ):
        ended = evaluate("elbert", new, "--onnx", file, "--set", changed)
        ended.refused(words, "export it again")
    evaluate("elbert", new, "--do_train", "--max_steps", 1, "--overwrite_output_dir").done()
    (new / "eval_results.json").unlink()
    ended = evaluate("elbert", new, "--onnx", file)
    ended.refused(f"{file}: exported from other weights", "export it again")
    assert not (new / "eval_results.json").exists()


@pytest.mark.parametrize("mode", list(MODES))
def test_triton_gets_a_repository_whose_config_says_what_the_file_has(
    trained, script, tmp_path, mode
):
    """By Triton's own protobuf; what it cannot batch is not there."""
    model_config_pb2 = pytest.importorskip("tritonclient.grpc").model_config_pb2
    folder = tmp_path / "models" / "reviews"
    script(export_onnx.main, "--model_dir", trained(mode), "--triton", folder).done()
    config = text_format.Parse(
        (folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
    )
    assert (config.name, config.backend) == ("reviews", "onnxruntime")
    assert (folder / "labels.txt").read_text() == "entailment\nnot_entailment\n"
    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx")
    assert not session.get_overridable_initializers()
    assert "layers_run" not in [value.name for value in session.get_outputs()]
    kinds = {"tensor(int64)": "TYPE_INT64", "tensor(float)": "TYPE_FP32"}
    sides = ((session.get_inputs(), config.input), (session.get_outputs(), config.output))
    for values, entries in sides:
        for value, entry in zip(values, entries, strict=True):
            shape = [-1 if isinstance(size, str) else size for size in value.shape]
            dims = list(entry.reshape.shape if entry.HasField("reshape") else entry.dims)
            kind = model_config_pb2.DataType.Name(entry.data_type)
            assert (value.name, kinds[value.type]) == (entry.name, kind)
            assert shape == [-1, *dims]  # a batch of any size
    feed = {
        value.name: np.ones([3, 5][: len(value.shape)], kinds_of_numpy(value.type))
        for value in session.get_inputs()
    }
    logits, depth = session.run(None, feed)
    assert (logits.shape, len(depth)) == ((3, 2), 3)
    script(export_onnx.main, "--model_dir", trained(mode)).refused("--output", "--triton")
    # What somebody has changed there is kept.
    with (folder / "config.pbtxt").open("a") as file:
        file.write("# tuned\n")
    tuned = (folder / "config.pbtxt").read_text()
    script(export_onnx.main, "--model_dir", trained(mode), "--triton", folder).done()
    assert (folder / "config.pbtxt").read_text() != tuned
    assert (folder / "config.pbtxt.1").read_text() == tuned
    assert not (folder / "labels.txt.1").exists()
    for_int8 = ("--triton", folder, "--calibration_file", "texts.csv")
    script(export_onnx.main, "--model_dir", trained(mode), *for_int8).refused("--int8")
    more = ("--triton", folder, "--no_defaults")
    script(export_onnx.main, "--model_dir", trained(mode), *more).refused("--no_defaults")


def kinds_of_numpy(kind: str) -> type:
    return np.float32 if kind == "tensor(float)" else np.int64
