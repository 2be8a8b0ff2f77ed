"""The comparison on twelve layers: its rows, its costs and its thresholds."""

import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import AutoModel, AutoTokenizer

from experiments.twelve_layers import prepare, report, rows, trainings
from experiments.twelve_layers.words import main as time_words, record_words
from glue.tasks import get_task
from modeling.errors import UserError
from tests.berts import save, tiny_encoder
from tests.conftest import WORDS, write


def test_no_training_row_is_a_phrase_of_a_held_out_sentence():
    sentences = [f"s{n} is a film that {word} me" for n, word in enumerate("abcdefgh")]
    phrases = ["a film", "film that a", *(f"that {word} me" for word in "abcdefgh")]
    table = [f"{text} \t{n % 2}" for n, text in enumerate([*sentences, *phrases])]
    train, held_out = rows.split_sst2(table, rows.Rows(2, 3))
    assert len(held_out) == 5
    assert all(row.split(" \t")[0] in sentences for row in held_out)
    for row in train:
        text = row.split(" \t")[0]
        assert not any(f" {text} " in f" {held.split(' ' + chr(9))[0]} " for held in held_out)
    assert "a film \t0" not in train
    assert len(train) == 3 + 3 + ("film that a \t1" in train)


def test_a_threshold_reaches_its_cost_on_the_rows_that_choose():
    rng = np.random.default_rng(0)
    entropy = np.sort(rng.random((12, 4000)), axis=0)[::-1]  # surer with every layer
    costs = np.arange(1, 13) / 12
    for target in (0.25, 0.5, 0.8):
        threshold = report.threshold_for(entropy, costs, target)
        first = [
            next((n for n, x in enumerate(column) if x < threshold), 11) for column in entropy.T
        ]
        assert np.mean(costs[first]) == pytest.approx(target, abs=0.01)


def test_two_networks_share_the_examples_at_random_between_their_costs():
    """The pair is the best on the first 50 examples; the last 50 report."""
    choosing, rows = slice(0, 50), slice(50, 100)
    networks = [
        (0.25, answers_of(right_while_choosing=40, right=42)),
        (0.5, answers_of(right_while_choosing=45, right=44)),
        (0.6, answers_of(right_while_choosing=41, right=50)),  # does not look good while choosing
        (1.0, answers_of(right_while_choosing=46, right=48)),
    ]
    for target, expected, expected_cost in (
        (0.25, 42 / 50, 0.25),
        (0.375, 43 / 50, 0.375),
        (0.75, 46 / 50, 0.75),
    ):
        mixture, cost = report.best_mixture(networks, choosing, target, report.accuracy)
        right = sum(share * answers.right[-1, rows].mean() for share, answers in mixture)
        assert right == pytest.approx(expected)
        assert cost == pytest.approx(expected_cost)
    assert report.best_mixture(networks, choosing, 0.1, report.accuracy) is None


def answers_of(right_while_choosing: int, right: int) -> report.Answers:
    """Answers of one layer to 50 examples that choose, and to 50 that report, all of class 1."""
    is_right = np.arange(50) < np.array([[right_while_choosing], [right]])
    logits = np.where(is_right.reshape(1, 100, 1), [0.0, 1.0], [1.0, 0.0])
    return report.Answers(logits, np.ones(100))


def test_a_check_costs_a_small_share_of_a_wide_layer():
    """By hand: a check multiplies 768 · 768 + 768 · 2 numbers, a layer 12 · 768² for each token."""
    steps = np.diff(report.exit_costs("mpnet"))
    layer = 25 * (12 * 768**2 + 2 * 25 * 768)
    check = 768 * 768 + 768 * 2
    unit = 12 * layer + 25 * 768**2 + check
    assert steps == pytest.approx(np.full(11, (layer + check) / unit), rel=1e-6)
    every_second = np.diff(report.exit_costs("mpnet", 2))
    assert every_second[::2] == pytest.approx(np.full(6, (layer + check) / unit), rel=1e-6)
    assert every_second[1::2] == pytest.approx(np.full(5, layer / unit), rel=1e-6)


def test_a_layer_whose_exit_is_left_out_is_never_sure():
    logits = np.tile([9.0, -9.0], (4, 5, 1))
    left = report.Answers(logits, np.zeros(5)).at_every(2)
    assert left.entropy == pytest.approx(np.tile([[1], [0], [1], [0]], 5), abs=1e-6)
    assert report.by_entropy(left.entropy, 1.0).tolist() == [1] * 5


def test_every_run_has_a_name_of_its_own_and_a_teacher_that_is_a_run():
    listed = list(trainings.runs())
    assert len({run.name for run in listed}) == len(listed)
    for run in listed:
        assert run.teacher is None or run.teacher in listed


def test_the_recordings_are_of_the_flags_and_rows_that_the_trainings_have_now():
    """`is_recorded` refuses others."""
    assert sum(run.is_recorded for run in trainings.runs()) > 40


@pytest.fixture
def few_rows(monkeypatch):
    """Fewer rows than the experiment has, which take less time."""
    monkeypatch.setitem(rows.ROWS, "SST-2-8k", rows.Rows(200, 1000, dev=100))


def save_answers(run: trainings.Run, share_right: float) -> None:
    """Record answers that are right for the first examples, sure from the third layer on."""
    total = rows.ROWS[run.task].count
    labels = np.arange(total) % 2
    is_right = np.arange(total) % 100 < 100 * share_right
    sign = np.where((labels == 1) == is_right, 1.0, -1.0)
    sureness = np.array([0.1, 0.1, *[9.0] * 10]) if run.depth == 0 else np.array([9.0])
    scores = sureness[:, None] * sign
    tensors = {"all_logits": np.stack([-scores, scores], -1).astype(np.float16), "labels": labels}
    save_file(tensors, run.recording, {"run": json.dumps({"flags": run.flags})})


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize(
    ("ordinary", "verdicts"),
    [(0.80, ["holds", "holds", "holds"]), (0.97, ["refuted", "refuted", "refuted"])],
)
def test_hypotheses_are_judged_by_their_bounds(ordinary, verdicts, monkeypatch, tmp_path):
    """Exits are right for 90%: 10 points above ordinary networks, or 7 below them."""
    monkeypatch.setattr(trainings, "RECORDED", tmp_path)
    for seed in (11, 12, 13):
        save_answers(trainings.Run("SST-2-8k", 0, seed), 0.9)
        for depth, is_taught in ((6, False), (12, False), (4, True)):
            save_answers(trainings.Run("SST-2-8k", depth, seed, is_taught), ordinary)
    table = report.Table("SST-2-8k", "reporting")
    lines = table.hypotheses().splitlines()[2:]
    assert [line.split("|")[-2].strip() for line in lines] == verdicts
    assert "90.0 (at 0.26)" in table.at_costs().splitlines()[2]
    rows_of_steps = table.with_fewer_exits().splitlines()[2:]
    # Examples are sure from the third layer on, so with every second exit they exit at the fourth.
    assert ["(at 0.26)" in row for row in rows_of_steps] == [True, False, True]
    assert "90.0 (at 0.34)" in rows_of_steps[1]
    assert table.by_layer().count("90.0") == 12


@pytest.mark.usefixtures("few_rows")
def test_what_self_distillation_adds_is_the_difference_of_both(monkeypatch, tmp_path):
    """Exits are right for 90% with it, and for 85% without."""
    monkeypatch.setattr(trainings, "RECORDED", tmp_path)
    table = report.Table("SST-2-8k", "reporting")
    for seed in (11, 12, 13):
        save_answers(trainings.Run("SST-2-8k", 0, seed), 0.9)
        assert "once all seeds of both are recorded" in table.gains_by_teaching()
        save_answers(trainings.Run("SST-2-8k", 0, seed, is_self_taught=False), 0.85)
    lines = table.gains_by_teaching().splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["0.25", "0.33", "0.5"]
    for line in lines:
        taught, untaught, difference = line.split("|")[2:5]
        assert (taught.split()[0], untaught.split()[0]) == ("90.0", "85.0")
        assert difference.strip().startswith("**+5.0 [")


@pytest.mark.usefixtures("few_rows")
def test_what_exits_gain_over_two_networks_is_the_difference_of_both(monkeypatch, tmp_path):
    """Networks of 4 and 12 layers are right for 60% and 80%. Costs of 0.34 and 1: at 0.5, a quarter
    of the examples goes to the larger one, so 65% are right."""
    monkeypatch.setattr(trainings, "RECORDED", tmp_path)
    table = report.Table("SST-2-8k", "reporting")
    for seed in (11, 12, 13):
        save_answers(trainings.Run("SST-2-8k", 0, seed), 0.9)
        save_answers(trainings.Run("SST-2-8k", 4, seed), 0.6)
        assert "once all seeds of both are recorded" in table.gains_over_two()
        with pytest.raises(UserError, match="not all seeds"):
            table.panel()
        save_answers(trainings.Run("SST-2-8k", 12, seed), 0.8)
    lines = table.gains_over_two().splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["0.4", "0.5", "0.6"]
    four = report.ordinary_cost("mpnet", 4)
    for target, line in zip((0.4, 0.5, 0.6), lines, strict=True):
        exits, _, mix, _, difference = (cell.strip() for cell in line.split("|")[2:7])
        expected = 60 + 20 * (target - four) / (1 - four)
        assert (exits.split()[0], mix) == ("90.0", f"{expected:.1f} at {target:.2f}")
        assert difference.startswith(f"**+{90 - expected:.1f} [")
    panel = table.panel()  # of the figure
    assert {depth: round(dot.accuracy) for depth, dot in panel.fixed_depths.items()} == {
        12: 80,
        4: 60,
    }
    exits, by_entropy, _, mix = panel.curves.values()
    assert (exits.accuracy == 90).all()
    assert (by_entropy.accuracy == 90).all()
    assert exits.cost[0] < four < mix.cost[0]
    assert np.allclose(mix.accuracy.mean(1), 60 + 20 * (mix.cost - four) / (1 - four))


@pytest.mark.usefixtures("few_rows")
def test_what_exits_gain_over_fewer_layers_is_the_difference_of_both(monkeypatch, tmp_path):
    """12, 6, 4 and 3 layers are right for 95, 80, 60 and 50%, exits, by either rule, for 90%."""
    monkeypatch.setattr(trainings, "RECORDED", tmp_path)
    table = report.Table("SST-2-8k", "reporting")
    for seed in (11, 12, 13):
        save_answers(trainings.Run("SST-2-8k", 0, seed), 0.9)
        save_answers(trainings.Run("SST-2-8k", 12, seed), 0.95)
        save_answers(trainings.Run("SST-2-8k", 6, seed), 0.8)
        save_answers(trainings.Run("SST-2-8k", 4, seed), 0.6)
        assert "once all seeds of all are recorded" in table.gains_over_depths()
        save_answers(trainings.Run("SST-2-8k", 3, seed), 0.5)
    by_rule = table.gains_over_depths().split("\n\n")
    assert [text.splitlines()[0].split("|")[2].strip() for text in by_rule] == [
        "exits: entropy",
        "exits: optimal_stopping",
    ]
    for text in by_rule:
        header, _, *lines = text.splitlines()
        assert header.endswith(" | − 12 layers | − 6 layers | − 4 layers | − 3 layers |")
        assert header.count("|") == 7
        costs = ("8,000 rows, 0.25", "8,000 rows, 0.33", "8,000 rows, 0.5")
        for cost, line in zip(costs, lines, strict=True):
            name, exits, *differences = (cell.strip() for cell in line.strip("|").split("|"))
            assert name == cost
            assert exits.startswith("90.0 at 0.")
            assert differences[0].startswith("**-5.0 [")
            assert differences[1].startswith("**+10.0 [")
            assert differences[2].startswith("**+30.0 [")
            assert differences[3].startswith("**+40.0 [")
    accuracies = {
        name.strip(): accuracy.strip()
        for _, name, accuracy, *_ in (line.split("|") for line in table.with_times().splitlines())
    }
    assert accuracies["twelve layers"] == "95.0"
    assert accuracies["three layers"] == "50.0"
    assert accuracies["exits, a quarter"] == "90.0"


def test_hypotheses_wait_for_all_seeds_of_all_three(monkeypatch, tmp_path):
    monkeypatch.setattr(trainings, "RECORDED", tmp_path)
    for seed in (11, 12, 13):
        save_answers(trainings.Run("SST-2-8k", 0, seed), 0.9)
        save_answers(trainings.Run("SST-2-8k", 6, seed), 0.8)
    assert (
        "once all seeds of all are recorded" in report.Table("SST-2-8k", "reporting").hypotheses()
    )


def test_a_recording_of_another_recipe_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(trainings, "RECORDED", tmp_path)
    monkeypatch.setattr(trainings, "RECIPES", tmp_path / "recipes.json")
    run = trainings.Run("SST-2-8k", 0, 11)
    save_answers(run, 0.9)
    assert run.is_recorded
    (tmp_path / "recipes.json").write_text('{"mpnet": {"exits": {"rate": 1e-5}}}')
    with pytest.raises(UserError, match=r"other flags.*remove it"):
        _ = run.is_recorded
    monkeypatch.setitem(rows.ROWS, "SST-2-8k", rows.Rows(1000, 2000, dev=872))
    with pytest.raises(UserError, match=r"has 6372 rows, and rows.py has 3872 now"):
        _ = run.is_recorded
    assert trainings.Run("SST-2-8k", 6, 11).recipe == trainings.Recipe()


@pytest.mark.usefixtures("few_rows")
def test_the_recipe_is_the_best_on_the_rows_that_choose(monkeypatch, tmp_path, script):
    """Rates and epochs, their decay, what is read, then the loss. A run that lacks is asked for."""
    monkeypatch.setattr(trainings, "RECORDED", tmp_path)
    for module in (trainings, report):
        monkeypatch.setattr(module, "RECIPES", tmp_path / "recipes.json")
    ordinary, exits = trainings.Recipe(1e-5, 2, 1.0), trainings.Recipe(2e-5, 1, 4.0)
    monkeypatch.setattr(trainings, "GRID", (ordinary, exits))
    script(report.main, "--choose", "rates").refused("12 runs that choose", "--choosing rates")
    for run in trainings.choosing_runs("mpnet", "rates"):
        best = ordinary if run.depth else exits
        save_answers(run, 0.9 if run.trial == best else 0.8)
    script(report.main, "--choose", "rates").done()
    assert trainings.Run("CoLA", 0, 11).recipe == exits
    assert trainings.Run("CoLA", 6, 11, is_taught=True).recipe == ordinary
    decayed = replace(exits, layer_decay=0.9)
    for run in trainings.choosing_runs("mpnet", "decay"):
        if not run.is_recorded:
            save_answers(run, 0.94 if run.trial == decayed else 0.7)
    script(report.main, "--choose", "decay").done()
    assert trainings.Run("CoLA", 0, 11).recipe == decayed
    assert "layer_lr_decay=0.9" in trainings.Run("CoLA", 0, 11).flags
    assert trainings.Run("CoLA", 6, 11).recipe == ordinary
    first_token = replace(decayed, pooling="cls")
    for run in trainings.choosing_runs("mpnet", "pooling"):
        if not run.is_recorded:
            save_answers(run, 0.95 if run.trial.pooling == "cls" and not run.depth else 0.7)
    script(report.main, "--choose", "pooling").done()
    assert trainings.Run("CoLA", 0, 11).recipe == first_token
    assert "pooler_input=cls" in trainings.Run("CoLA", 0, 11).flags
    assert trainings.Run("CoLA", 6, 11).recipe == ordinary
    tried = script(report.main, "--choose", "teaching")
    tried.refused("18 runs that choose")
    assert "mpnet, exits, 95.00" in tried.out  # the means of what is recorded
    taught = replace(first_token, share=0.75, teacher="next")
    for run in trainings.choosing_runs("mpnet", "teaching"):
        if not run.is_recorded:
            save_answers(run, 0.96 if run.trial == taught else 0.7)
    script(report.main, "--choose", "teaching").done()
    assert trainings.Run("CoLA", 0, 11).recipe == taught
    assert trainings.Run("CoLA", 0, 11, is_self_taught=False).recipe == replace(taught, share=0)
    assert trainings.Run("CoLA", 6, 11).recipe == ordinary
    assert all(run.is_recorded for run in trainings.choosing_runs("mpnet", "teaching"))
    script(report.main, "--choose", "teaching").done()  # what was chosen stays


def test_a_bag_of_words_reads_each_text_of_a_pair(tmp_path):
    """The label of RTE is that of the second text alone, the score of STS-B that of both."""
    places = [("red", "wet"), ("red", "dry"), ("old", "wet"), ("old", "dry")] * 8
    lines = [f"{n}\tit is {a}\tit is {b}\t" for n, (a, b) in enumerate(places)]
    header = "index\tsentence1\tsentence2\t"
    labels = ["entailment" if b == "wet" else "not_entailment" for _, b in places]
    scores = [2.0 * (a == "red") + (b == "wet") for a, b in places]
    for name, column, values in (("RTE", "label", labels), ("STS-B", "score", scores)):
        folder = tmp_path / name
        folder.mkdir()
        rows_made = [f"{line}{value}" for line, value in zip(lines, values, strict=True)]
        for split in ("train", "dev"):
            write(folder / f"{split}.tsv", "\n".join([header + column, *rows_made, ""]))
        record_words(get_task(name), folder, tmp_path / f"{name}.safetensors")
    answers = report.load_file_of(tmp_path / "RTE.safetensors")
    assert answers.right.all()
    answers = report.load_file_of(tmp_path / "STS-B.safetensors")
    assert report.mean_correlation(answers.logits[0], answers.labels) > 0.99


def test_a_gpu_that_is_asked_for_is_there(script, tmp_path):
    if not torch.cuda.is_available():
        flags = ("--work", tmp_path, "--device", "cuda")
        script(trainings.main, *flags).refused("--device cuda: PyTorch finds no GPU here")


def test_a_bag_of_words_answers_before_the_exits_what_it_is_sure_of():
    """It is sure, and right, of even rows; exits are right of all after the last of two layers."""
    labels = np.arange(200) % 4 // 2
    sign = np.where(labels == 1, 1.0, -1.0)
    is_even = np.arange(200) % 2 == 0
    bag = np.where(is_even, 9.0, 0.1) * np.where(is_even, sign, -sign)
    first, last = -0.1 * sign, 9 * sign
    words = report.Answers(np.stack([-bag, bag], -1)[None], labels)
    exits = report.Answers(np.stack([np.stack([-x, x], -1) for x in (first, last)]), labels)
    costs = np.array([0.5, 1.0])
    choosing, rows = slice(0, 100), slice(100, 200)
    outcome = report.behind_words(words, exits, costs, choosing, rows, 0.5)
    assert report.accuracy(outcome.logits, labels[rows]) == 1
    assert outcome.cost == pytest.approx(0.5)


@pytest.fixture
def encoder(tmp_path):
    """A random MPNet of four layers, with a fast tokenizer."""
    model = tiny_encoder("mpnet", num_hidden_layers=4, max_position_embeddings=140)
    folder = save(model, tmp_path / "mpnet")
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


@torch.no_grad()
def test_a_carried_encoder_reads_texts_as_the_original_does(encoder, tmp_path, monkeypatch):
    """With the words of the tables alone, in half precision, in pieces that are joined."""
    monkeypatch.setattr(prepare, "PIECE_BYTES", 20_000)
    texts = ["a man runs", "the big dog sleeps"]
    (tmp_path / "data/RTE").mkdir(parents=True)
    write(tmp_path / "data/RTE/dev.tsv", "".join(f"{text}\t0\n" for text in texts))
    start = tmp_path / "start"
    prepare.save_encoder(encoder, start, tmp_path / "data")
    pieces = sorted(start.glob("model.safetensors.*"))
    assert len(pieces) > 3
    assert max(path.stat().st_size for path in pieces) <= 20_000
    content = pieces[1].read_bytes()
    for damaged, words in ((b"", "not those of pieces.json"), (None, "safetensors.01 is missing")):
        pieces[1].unlink() if damaged is None else pieces[1].write_bytes(damaged)
        with pytest.raises(UserError, match=words):
            prepare.join_weights(start)
    pieces[1].write_bytes(content)
    prepare.join_weights(start)
    states = []
    for folder in (encoder, start):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        assert tokenizer.convert_ids_to_tokens(batch["input_ids"][0])[1:4] == texts[0].split()
        model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        states.append(model(batch["input_ids"], batch["attention_mask"]).last_hidden_state)
    assert len(AutoTokenizer.from_pretrained(start)) < len(AutoTokenizer.from_pretrained(encoder))
    torch.testing.assert_close(*states, atol=2e-2, rtol=2e-2)


@pytest.mark.slow
def test_from_tables_to_a_report(encoder, tmp_path, monkeypatch, script):
    """Of a tiny encoder; a network that is there is not trained again."""
    draw = random.Random(0)
    rows_made = [
        f"{('small', 'big')[n % 2]} {' '.join(draw.choices(WORDS, k=6))} \t{n % 2}"
        for n in range(150)
    ]
    (tmp_path / "glue/SST-2").mkdir(parents=True)
    for name, lines in (("train", rows_made[:140]), ("dev", rows_made[140:])):
        write(tmp_path / f"glue/SST-2/{name}.tsv", "\n".join(["sentence\tlabel", *lines, ""]))
    for task in ("SST-2", "SST-2-8k"):
        monkeypatch.setitem(rows.ROWS, task, rows.Rows(20, 20, dev=10))
    monkeypatch.setitem(trainings.LAYERS, "mpnet", 4)
    monkeypatch.setattr(trainings, "RECORDED", tmp_path / "recorded")
    listed = [
        trainings.Run("SST-2-8k", 0, 11),
        trainings.Run("SST-2-8k", 2, 11, is_taught=True),
        trainings.Run("SST-2-8k", 4, 11),
    ]
    monkeypatch.setattr(trainings, "runs", lambda: iter(listed))
    monkeypatch.setattr(report, "runs", lambda: iter(listed))
    work = tmp_path / "work"
    flags = ("--glue_dir", tmp_path / "glue", "--encoder", encoder, "--work", work)
    script(prepare.main, *flags).done()
    assert [run.is_recorded for run in listed] == [False] * 3
    done = script(trainings.main, "--work", work).done()
    assert done.out.count("SST-2-8k-mpnet") == 3
    assert script(trainings.main, "--work", work).done().out == ""
    labels = [int(row[-1]) for row in rows.lines_of(work / "data/SST-2-8k/dev.tsv")[1:]]
    for run, layers in zip(listed, (4, 1, 1), strict=True):
        answers = report.load(run)
        assert answers.logits.shape == (layers, 50, 2)
        assert answers.labels.tolist() == labels
    done = script(report.main, "--task", "SST-2-8k").done()
    for line in ("exits (1 seed)", "exits: optimal_stopping (1 seed)", "bag of words, without"):
        assert f"| {line}" in done.out
    assert "Recorded: 3 of 3 runs" in done.out
    timed = script(time_words, "--data", work / "data/SST-2-8k", "--texts", 5).done()
    assert re.fullmatch(r"bag of words: mean \d+\.\d\d ms, p95 \d.* \(5 texts, .*\)\n", timed.out)
    flags = ("--task", "SICK", "--part", "dev")
    script(report.main, *flags).refused("--part dev", "SICK", "SST-2, SST-2-8k")
