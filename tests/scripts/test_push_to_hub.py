"""push_to_hub.py: a card that says what was measured, and a hub that is a folder."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects
from transformers import pipeline

import push_to_hub
from tests.commands import edit_key, report_of
from tests.conftest import edit_json, sentence


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Path:
    """A folder in place of the hub, with a folder for each repository."""

    class FolderHub:
        def create_repo(self, name: str, private: bool, exist_ok: bool) -> None:
            Path(tmp_path / "hub" / name).mkdir(parents=True, exist_ok=exist_ok)

        def upload_folder(self, repo_id: str, folder_path: Path, **patterns) -> str:
            files = [x.relative_to(folder_path) for x in folder_path.rglob("*") if x.is_file()]
            for name in filter_repo_objects(map(str, files), **patterns):
                shutil.copy(folder_path / name, tmp_path / "hub" / repo_id)
            return repo_id

    monkeypatch.setattr(push_to_hub, "HfApi", FolderHub)
    return tmp_path / "hub"


def test_a_model_is_sent_with_what_its_evaluation_found(script, glue, trained, hub):
    glue(trained, "--do_eval", "--do_predict", "--per_gpu_eval_batch_size", 4).done()
    (trained / "notes.json").write_text("{}")  # the user's own
    flags = ("--model_dir", trained, "--hub_model_id", "me/rte")
    assert "sent: me/rte" in script(push_to_hub.main, *flags).done().out
    sent = {path.name for path in (hub / "me/rte").iterdir()}
    assert sent == {
        *("README.md", "config.json", "exits.png", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    report = report_of(trained)
    card = ModelCard.load(hub / "me/rte/README.md")
    found = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert found == {
        **report["metrics"],
        **{name: report[name] for name in ("computation_cost", "flops_ratio")},
    }
    result = card.data.eval_results[0]
    about = (result.dataset_type, result.dataset_config, result.dataset_split, result.metric_type)
    assert about == ("nyu-mll/glue", "rte", "validation", "accuracy")
    assert card.data.model_name == "me/rte"
    for key, value in report["rule"].items():
        assert f"| {key} | {value} |" in card.text
    assert "| max_seq_length | 32 |" in card.text
    assert str(trained.parent) not in card.content
    (answer,) = pipeline("text-classification", str(hub / "me/rte"))(sentence(1))
    assert answer["exit_layer"] >= 1


def test_a_card_is_written_anew_but_never_over_one_s_own(script, glue, trained, hub):
    flags, card = ("--model_dir", trained), trained / "README.md"
    script(push_to_hub.main, *flags).refused("no evaluation", "--do_eval")
    glue(trained, "--do_eval").done()
    assert "written: " in script(push_to_hub.main, *flags).done().out
    edit_key(script, trained, "exit_thres", 0.4).done()
    script(push_to_hub.main, *flags).refused("other exit settings", "evaluate again")
    glue(trained, "--do_eval").done()
    assert "written: " in script(push_to_hub.main, *flags).done().out
    assert "| exit_thres | 0.4 |" in card.read_text()
    assert not hub.exists()  # nothing was sent
    card.write_text("# Mine\n")
    assert "your own" in script(push_to_hub.main, *flags, "--hub_model_id", "me/rte").done().out
    assert (hub / "me/rte/README.md").read_text() == card.read_text() == "# Mine\n"
    weights = trained / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    card.unlink()
    script(push_to_hub.main, *flags).refused("other weights", "evaluate again")


def test_a_hub_that_does_not_answer_is_an_error_of_one_line(script, glue, trained):
    """And data that has a GLUE task's layout only is not called by the task's name."""
    glue(trained, "--do_eval").done()
    edit_json(trained / "eval_results.json", dataset="a puzzle")
    flags = ("--model_dir", trained, "--hub_model_id", "me/rte")
    script(push_to_hub.main, *flags).refused("me/rte", "the hub does not take it")
    (result, *_) = ModelCard.load(trained / "README.md").data.eval_results
    assert (result.dataset_type, result.dataset_name) == ("custom", "a puzzle")
