"""A folder with any user's files in it keeps all of them, through every command."""

import os
import random
import shutil
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

import download_glue_data
import export_onnx
import push_to_hub
import run_glue
import run_parity
import run_pretraining
import share_layers
import sweep_exits
from evaluation import model_card, predict
from exit_lab import exit_file
from runs import hub_upload, job, processes
from runs.folder import RunFolder
from tests.berts import plain_text, save, sharing_flags, tiny_bert
from tests.commands import edit_key, exit_status, flags, pretraining_flags
from tests.conftest import contents
from tests.scripts.test_download_glue_data import RTE_FILES, make_zip

RESULTS = """eval_results.json exits.png predictions.tsv predictions.json RTE.tsv training.json
    results.json albert-rte/hp_search.csv sweep/sweep.csv sweep/all_logits.safetensors
    sweep/compare.md stat_out/elbert/rte/layers_all.csv ../glue/RTE/train.tsv
    ../glue/RTE/test.tsv""".split()
# What these and more are called here, where they are the user's.
NAMES = """{}.bak {}~ mine-{} {}.1 .mine.{} mine/{} .{}.partial/a best/{} best_model/mine-{} runs/{}
    .x.partial checkpoint-2/mine-{} checkpoint-7/{} checkpoint-best/{} ../RTE-MM/{}
    ../RTE-MM/sweep/{} {}.lock""".split()
TRAIN = ("--do_train", "--save_steps", 2, "--max_steps", 5, "--logging_steps", 2)
ANEW = ("--overwrite_output_dir",)


def users_files(out: Path, seed: int) -> dict[Path, str]:
    """Write files and links of many names into `out`, and around it; what each holds."""
    draw, mine = random.Random(seed), {}
    others = "config.json model.safetensors checkpoint-2 spiece.model sweep runs notes".split()
    names = [draw.choice(NAMES).format(Path(draw.choice(RESULTS + others)).name) for _ in range(30)]
    names += [str(Path(name).parent / f"my {Path(name).name}") for name in RESULTS]
    for number, name in enumerate(dict.fromkeys(RESULTS + names)):
        path, elsewhere = out / name, out / f"../outside/{number}"
        for folder in (path.parent, elsewhere.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            continue
        mine[path] = f"mine {number}"
        if draw.random() < 0.3:
            elsewhere.write_text(mine[path])
            draw.choice([os.symlink, os.link])(elsewhere, path)
        else:
            path.write_text(mine[path])
    for name in ("linked", "stat_out/sample", "best_model/linked"):
        (out / name).symlink_to(out.parent / "outside")
    return mine


def is_kept(path: Path, text: str) -> bool:
    """Whether it is there, or beside itself where a result has its name."""
    places = [path, *(path.with_name(f"{path.name}.{number}") for number in (1, 2))]
    return text in [place.read_text(errors="replace") for place in places if place.is_file()]


@pytest.fixture
def commands(glue, script, rte, albert_dir, corpus, spiece, tmp_path, monkeypatch) -> dict:
    """What is run in turn on place/RTE, by name; a search's runs are in this process."""
    bert, text, archive = save(tiny_bert(), tmp_path / "bert"), plain_text(tmp_path), tmp_path / "z"
    archive.write_bytes(make_zip(RTE_FILES))
    monkeypatch.setattr(
        download_glue_data, "fetch_file", lambda _, to, url: shutil.copy(archive, to)
    )
    monkeypatch.setattr(processes, "call", lambda _, words, log: exit_status(run_glue.main, *words))
    out = tmp_path / "place/RTE"
    run, given = partial(glue, out), flags(albert_dir, rte, out)
    for flag in ("--per_gpu_train_batch_size", "--learning_rate", "--num_train_epochs"):
        del given[(place := given.index(flag)) : place + 2]
    lists = "--hp_search --hp_learning_rates 2e-5 --hp_batch_sizes 8 --hp_epochs 1 --hp_seeds 0"
    swept = f"--data_dir {rte} --task_name RTE --max_seq_length 32 --no_cuda --model_dir {out}"
    sweep = partial(script, sweep_exits.main, *swept.split())
    parity = f"--epochs 1 --n_batches 2 --batch_size 4 --output_dir {out}"
    sharing = sharing_flags(bert, text, out, "--do_eval", "--max_steps", 3, *ANEW)
    pretraining = pretraining_flags(corpus, spiece, out, "--do_eval", *ANEW)
    download = ("--data_dir", tmp_path / "place/glue", "--tasks", "rte")
    return {
        "train": partial(run, *TRAIN, *ANEW, "--load_best_model_at_end"),
        "evaluate": partial(run, "--do_eval"),
        "predict": partial(run, "--do_predict"),
        "sweep": partial(sweep, "--tables_only", "--compare"),
        "edit": partial(edit_key, script, out, "exit_thres", 0.2),
        "evaluate alone": partial(run, "--do_eval", "--skip_full_depth", "--out_mode", "one"),
        "sweep again": partial(sweep, "--tables_only", "--rules", "entropy"),
        "train again": partial(run, *TRAIN, *ANEW, "--save_total_limit", 1),
        "go on": partial(run, *TRAIN, "--resume_from_checkpoint"),
        "search": partial(script, run_glue.main, *given, *lists.split(), "--max_steps", 1),
        "export": partial(
            script, export_onnx.main, "--model_dir", out, "--output", out / "model.onnx"
        ),
        "parity": partial(script, run_parity.main, *parity.split()),
        "pre-train": partial(script, run_pretraining.main, *pretraining),
        "share": partial(script, share_layers.main, *sharing),
        "download": partial(script, download_glue_data.main, *download),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_commands_in_turn_keep_what_is_not_theirs(seed, commands, tmp_path):
    out = tmp_path / "place/RTE"
    mine = users_files(out, seed)
    outside = contents(tmp_path / "place/outside")
    if seed == 0 or not find_spec("onnxscript"):
        del commands["export"]  # takes as long as all others
    for name in (*commands, "parity", "pre-train", "share"):  # these write over their own
        commands[name]().done()
        assert [path for path, text in mine.items() if not is_kept(path, text)] == [], name
        assert contents(tmp_path / "place/outside") == outside, name
        if name == "train":  # a copy, and another run's by a link
            for kept in ("checkpoint-2-keep", "../other/checkpoint-2"):
                shutil.copytree(out / "checkpoint-2", out / kept)
            before = contents(out / "checkpoint-2")
            shutil.rmtree(out / "checkpoint-4")
            (out / "checkpoint-4").symlink_to(tmp_path / "place/other/checkpoint-2")
        for kept in ("checkpoint-2-keep", "../other/checkpoint-2"):
            assert before.items() <= contents(out / kept).items(), name
        if name == "train again":
            assert not (out / "eval_results.json").exists()  # of the weights before
            assert not (out / "sweep/sweep.csv").exists()
    assert not list(out.glob("*.[3-9]"))  # of its own files none was put aside


def test_no_link_in_a_models_folder_leads_out(trained, glue, script, rte, tmp_path, monkeypatch):
    """Of a foreign model, say: nothing outside is written, removed or sent."""
    monkeypatch.setattr(hub_upload, "HfApi", lambda: pytest.fail("it was sent"))
    outside = tmp_path / "outside"
    shutil.copytree(trained, outside / "checkpoint-2")
    for name in ("sweep", "stat_out", "runs"):
        RunFolder(outside / name).write_text("sweep.csv", "mine")
    for name in (*RESULTS[:5], "eval_results.txt", "confusion.png", "README.md"):
        (outside / name).write_text("mine")
    shutil.move(trained / "tokenizer_config.json", outside)
    for path in outside.iterdir():
        shutil.rmtree(trained / path.name, ignore_errors=True)
        (trained / path.name).unlink(missing_ok=True)
        (trained / path.name).symlink_to(path)
    before = contents(outside)
    sweep = ("--model_dir", trained, "--data_dir", rte, "--task_name", "RTE", "--tables_only")
    evaluate = partial(glue, trained, "--do_eval", "--do_predict", "--out_mode", "one")
    evaluate().done()
    script(sweep_exits.main, *sweep).refused(trained / "sweep", "leads out", "--output_dir")
    push = ("--model_dir", trained, "--hub_model_id", "me/rte")
    script(push_to_hub.main, *push).refused("is a link that leads out")
    (trained / "exit_config.json").symlink_to(outside / "README.md")
    glue(trained, "--do_eval").refused("exit_config.json leads out")
    glue(trained, *TRAIN, *ANEW).refused("runs is a link that leads out")
    (trained / "runs").unlink()
    glue(trained, *TRAIN, *ANEW)
    assert contents(outside) == before


def test_what_was_changed_since_is_not_removed(tmp_path):
    names = ["a", "b", "sub/c", "sub/d"]
    for name in names:
        RunFolder(tmp_path).write_text(name, name)
    (tmp_path / "b").write_text("mine")
    (tmp_path / "sub/d").unlink()
    (tmp_path / "sub/d").symlink_to(tmp_path / "a")
    assert sorted(RunFolder(tmp_path).read_list()) == names
    assert sorted(RunFolder(tmp_path).remove()) == ["a", "sub/c"]
    assert contents(tmp_path) == {"b": b"mine"}


def test_a_starting_model_is_not_trained_in_its_own_folder(trained, glue, tmp_path):
    model = shutil.copytree(trained, tmp_path / "RTE")
    before = contents(model)
    glue(model, *TRAIN, "--overwrite_output_dir", weights=model).refused("holds the starting")
    assert contents(model) == before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "training.json", "../RTE"])
def test_an_export_does_not_write_over_a_models_files(name, trained, script):
    before = contents(trained)
    export = ("--model_dir", trained, "--output", trained / name)
    script(export_onnx.main, *export).refused(trained / name, "is no .onnx file: choose another")
    assert contents(trained) == before


MOMENTS = {
    "its model is loaded": (job, "load_trained_model"),
    "its data are tokenised": (job, "encode"),
    "it has the answers": (predict.Predictions, "put"),
    "it chose a setting": (exit_file, "held_out_report"),
    "it made the file": (export_onnx, "provenance"),
    "it made the card": (model_card, "model_card"),
}


def swap_when(monkeypatch, moment: str, path: Path, content: bytes) -> None:
    """Let another process write `path` at a moment of the next command."""
    place, name = MOMENTS[moment]
    call = getattr(place, name)

    def swapped(*given, **more):
        found = call(*given, **more)
        path.write_bytes(content)
        return found

    monkeypatch.setattr(place, name, swapped)


@pytest.mark.parametrize(
    ("command", "moment"),
    [
        *(("evaluate", moment) for moment in [*MOMENTS][:3]),
        *(("predict", moment) for moment in [*MOMENTS][:3]),
        *(("sweep", moment) for moment in [*MOMENTS][:4]),
        ("card", "it made the card"),
        pytest.param("export", "it made the file", marks=[pytest.mark.onnx, pytest.mark.slow]),
    ],
)
def test_a_result_belongs_to_the_model_the_data_and_the_rule_that_gave_it(
    command, moment, trained, rte, glue, script, monkeypatch, tmp_path
):
    """What another process changes in between is said, and nothing is written."""
    data = Path(shutil.copytree(rte, tmp_path / "RTE data"))
    sweep = partial(script, sweep_exits.main, "--model_dir", trained, "--data_dir", data)
    sweep = partial(sweep, "--task_name", "RTE", "--max_seq_length", 32, "--tables_only")
    run = {
        "evaluate": partial(glue, trained, "--do_eval", "--data_dir", data),
        "predict": partial(glue, trained, "--do_predict", "--data_dir", data),
        "sweep": partial(sweep, "--rules", "entropy", "--pick", "max_cost=0.9"),
        "card": partial(script, push_to_hub.main, "--model_dir", trained),
        "export": partial(
            script, export_onnx.main, "--model_dir", trained, "--output", trained / "own.onnx"
        ),
    }[command]
    if command == "card":
        glue(trained, "--do_eval", "--data_dir", data).done()
    used = {trained / name: None for name in ("model.safetensors", "config.json")}
    used |= {trained / "exit_config.json": b'{"exit_thres": 0.3}'}
    if command not in ("card", "export"):
        used[data / f"{'test' if command == 'predict' else 'dev'}.tsv"] = None
    before = contents(trained)
    for path, new in used.items():
        old = path.read_bytes() if path.exists() else None
        with monkeypatch.context() as patch:
            swap_when(patch, moment, path, new or old[:-1] + b" ")
            run().refused(f"{path} was changed while", "give the command again")
        path.unlink() if old is None else path.write_bytes(old)
        found = contents(trained)
        if moment == "it chose a setting":  # after the sweep, whose files are true
            found = {name: held for name, held in found.items() if not name.startswith("sweep")}
        assert found == before
        shutil.rmtree(trained / "sweep", ignore_errors=True)


def test_a_file_given_by_its_path_lands_there_from_any_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RunFolder("out").write_text(Path("out/a.txt"), "by its path")
    RunFolder("out").write_text("b.txt", "by its name")
    assert (tmp_path / "out/a.txt").read_text() == "by its path"
    assert (tmp_path / "out/b.txt").read_text() == "by its name"
    assert sorted(RunFolder("out").read_list()) == ["a.txt", "b.txt"]
