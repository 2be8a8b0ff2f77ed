"""push_to_hub.py: a card that says what was measured, and a hub that is a folder."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects
from transformers import pipeline

import push_to_hub
import run_glue
from elbert import EarlyExitPipeline
from runs import hub_upload
from tests.commands import edit_key, exit_status, report_of
from tests.conftest import contents, edit_json, sentence


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Path:
    """The folder that stands for a repository of the hub."""
    sent = tmp_path / "hub"

    class FolderHub:
        def create_repo(self, name: str, **more) -> None:
            sent.mkdir(exist_ok=True)

        def upload_folder(
            self, repo_id: str, folder_path: Path, allow_patterns, delete_patterns
        ) -> str:
            there = [path.name for path in sent.iterdir()]
            for name in filter_repo_objects(there, allow_patterns=delete_patterns):
                (sent / name).unlink()
            files = [str(x.relative_to(folder_path)) for x in folder_path.rglob("*.*")]
            for name in filter_repo_objects(files, allow_patterns=allow_patterns):
                shutil.copy(folder_path / name, sent)
            return repo_id

    monkeypatch.setattr(hub_upload, "HfApi", FolderHub)
    return sent


def test_a_model_is_sent_with_what_its_evaluation_found(script, glue, trained, hub):
    edit_json(trained / "config.json", self_distillation=0.5)
    glue(trained, "--do_eval", "--do_predict", "--per_gpu_eval_batch_size", 4).done()
    (trained / "notes.json").write_text("{}")  # the user's own
    # Two runs, in kilograms, as codecarbon writes them.
    (trained / "emissions.csv").write_text("run_id,emissions\na,0.002\nb,0.001\n")
    flags = ("--model_dir", trained, "--hub_model_id", "me/rte")
    assert "sent: me/rte" in script(push_to_hub.main, *flags).done().out
    names = "README.md config.json exits.png model.safetensors tokenizer.json tokenizer_config.json"
    assert {path.name for path in hub.iterdir()} == set(names.split())
    card, report = ModelCard.load(hub / "README.md"), report_of(trained)
    found = {result.metric_name: result.metric_value for result in card.data.eval_results}
    costs = ("computation_cost", "flops_ratio")
    assert found == report["metrics"] | {name: report[name] for name in costs}
    result = card.data.eval_results[0]
    about = (result.dataset_type, result.dataset_config, result.dataset_split, result.metric_type)
    assert about == ("nyu-mll/glue", "rte", "validation", "accuracy")
    for key, value in {**report["rule"], "self_distillation": 0.5, "max_seq_length": 32}.items():
        assert f"| {key} | {value} |" in card.text
    assert card.data.model_name == "me/rte"
    assert card.data.to_dict()["co2_eq_emissions"]["emissions"] == pytest.approx(3)  # grams
    assert str(trained.parent) not in card.content
    classify = pipeline("text-classification", str(hub), pipeline_class=EarlyExitPipeline)
    assert classify(sentence(1))[0]["exit_layer"] >= 1


def test_nothing_private_is_sent(script, glue, trained, hub):
    """No other file, whatever its name; of JSON files no path, flag, command or password."""
    glue(trained, "--do_eval").done()
    before = {path.name for path in trained.iterdir()}
    for name in ("hf_token.json", "token.json", "my_tokens.json", "model-before.safetensors"):
        (trained / name).write_text("{}")
    (trained / "checkpoint-1").mkdir()
    (trained / "checkpoint-1/config.json").write_text("{}")
    path = "/home/alice/secret-client/data"
    edit_json(
        trained / "config.json", _name_or_path=path, my_out_dir=path, exit_config_path="a.json"
    )
    edit_json(
        trained / "tokenizer_config.json",
        name_or_path=path,
        tokenizer_file=f"{path}/tokenizer.json",
        vocab_file="C:\\\\Users\\\\alice\\\\vocab.txt",
        source="https://alice:pass@example.org/model",
    )
    provenance = {"command": f"sweep_exits.py {path}", "flags": {"data_dir": path}, "weights": "0a"}
    keys = {"exit_thres": 0.2, "provenance": {**provenance, "versions": {"torch": "2"}}}
    (trained / "a.json").write_text(json.dumps(keys))
    kept = contents(trained)
    glue(trained, "--do_eval", "--out_mode", "one").done()
    flags = ("--model_dir", trained, "--hub_model_id", "me/rte")
    script(push_to_hub.main, *flags).done()
    assert {x: contents(trained)[x] for x in ("config.json", "a.json")}.items() <= kept.items()
    names = {path.name for path in hub.iterdir()}
    assert names <= before | {"README.md", "exit_config.json"}
    for sent in hub.iterdir():
        for word in (b"alice", b"secret", b"pass@", str(trained.parent).encode()):
            assert word not in sent.read_bytes(), sent
    sent_keys = json.loads((hub / "exit_config.json").read_text())
    about = {"weights": "0a", "versions": {"torch": "2"}}
    assert sent_keys == {"exit_thres": 0.2, "provenance": about}
    # What transformers reads of a repository, which is no folder there.
    assert json.loads((hub / "config.json").read_text())["exit_thres"] == 0.2
    classify = pipeline("text-classification", str(hub), pipeline_class=EarlyExitPipeline)
    assert classify.model.config.exit_thres == 0.2
    assert classify.model.config.id2label == {0: "entailment", 1: "not_entailment"}
    (trained / "a.json").unlink()
    edit_json(trained / "config.json", exit_config_path="", exit_thres=0.6)
    glue(trained, "--do_eval", "--out_mode", "one").done()
    script(push_to_hub.main, *flags).done()  # again, without an exit file
    assert not (hub / "exit_config.json").exists()
    assert json.loads((hub / "config.json").read_text())["exit_thres"] == 0.6


def test_a_card_is_true_and_never_written_over_one_s_own(script, glue, trained, hub):
    flags, card = ("--model_dir", trained), trained / "README.md"
    script(push_to_hub.main, *flags).refused("no evaluation", "--do_eval")
    glue(trained, "--do_eval").done()
    script(push_to_hub.main, *flags).done()
    edit_key(script, trained, "exit_thres", 0.4).done()
    script(push_to_hub.main, *flags).refused("other exit settings", "evaluate again")
    glue(trained, "--do_eval").done()
    script(push_to_hub.main, *flags).done()
    assert "| exit_thres | 0.4 |" in card.read_text()
    card.write_text(card.read_text() + "\nTrained by me.\n")  # now it is the user's
    assert "it is left as it is" in script(push_to_hub.main, *flags).done().out
    edit_key(script, trained, "exit_thres", 0.3).done()
    glue(trained, "--do_eval").done()
    script(push_to_hub.main, *flags).refused(card, "the numbers of an earlier evaluation")
    assert not hub.exists()  # nothing was sent
    card.write_text("# Mine\n")
    script(push_to_hub.main, *flags, "--hub_model_id", "me/rte").done()
    assert (hub / "README.md").read_text() == card.read_text() == "# Mine\n"
    weights = trained / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    card.unlink()
    script(push_to_hub.main, *flags).refused("other weights", "evaluate again")


@pytest.fixture(scope="module")
def evaluated_once(trained_once, albert_dir, rte, tmp_path_factory) -> Path:
    model = Path(shutil.copytree(trained_once, tmp_path_factory.mktemp("evaluated") / "RTE"))
    assert exit_status(run_glue.main, "--output_dir", model, "--do_eval", "--no_cuda") == 0
    return model


@pytest.mark.parametrize(
    ("name", "old", "new", "word"),
    [
        ("tokenizer.json", b"dog", b"god", "tokenizer"),
        ("config.json", b'"hidden_act": "gelu', b'"hidden_act": "relu', "configuration"),
        ("config.json", b'"pooler_input": "cls"', b'"pooler_input": "mean"', "configuration"),
        ("config.json", b'"0": "entailment"', b'"0": "Entailment"', "configuration"),
        ("eval_results.json", b"{", b'{"onnx": "a.onnx",', "of the ONNX file a.onnx"),
        ("eval_results.json", b'"acc": ', b'"acc": [], "b": ', "not as an evaluation writes it"),
        ("eval_results.json", b'"rule": ', b'"rule": 3, "b": ', "not as an evaluation writes it"),
    ],
)
def test_a_card_has_no_numbers_of_another_model(
    name, old, new, word, script, evaluated_once, tmp_path
):
    model = Path(shutil.copytree(evaluated_once, tmp_path / "RTE"))
    content = (model / name).read_bytes()
    assert old in content
    (model / name).write_bytes(content.replace(old, new, 1))
    script(push_to_hub.main, "--model_dir", model).refused(word, "evaluate again")
    assert not (model / "README.md").exists()


def test_data_in_a_task_s_layout_is_not_called_by_its_name(script, glue, trained):
    """And a hub that does not answer is an error of one line."""
    glue(trained, "--do_eval").done()
    edit_json(trained / "eval_results.json", dataset="a puzzle")
    flags = ("--model_dir", trained, "--hub_model_id", "me/rte")
    script(push_to_hub.main, *flags).refused("me/rte", "the upload failed")
    (result, *_) = ModelCard.load(trained / "README.md").data.eval_results
    assert (result.dataset_type, result.dataset_name) == ("custom", "a puzzle")
