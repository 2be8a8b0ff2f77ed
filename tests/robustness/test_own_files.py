"""A folder with any user's files in it keeps all of them, through every command."""

import shutil
from pathlib import Path

import pytest

import run_parity
import run_pretraining
import share_layers
import sweep_exits
from tests.berts import plain_text, save, sharing_flags, tiny_bert
from tests.commands import pretraining_flags
from tests.conftest import contents
from training.written import note, read_list, remove

MINE = """best/a best/config.json best_model/notes .mine.partial/a .x.partial runs/events.out.me
    runs/notes sweep/notes sweep/mine/sweep.csv predictions-mine.tsv custom.tsv.bak exits-mine.png
    checkpoint-2/notes checkpoint-best/config.json checkpoint-7/config.json stat_out/mine/a.csv
    training-mine.json eval_results-mine.json ../RTE-MM/exits.png ../RTE-MM/eval_results.json
    ../outside/layers_all.csv ../outside/sweep.csv""".split()
TRAIN = ("--do_train", "--save_steps", 2, "--max_steps", 5, "--logging_steps", 2)
COMMANDS = {
    "train": (*TRAIN, "--overwrite_output_dir", "--load_best_model_at_end"),
    "evaluate": ("--do_eval", "--eval_all_checkpoints"),
    "predict": ("--do_predict",),
    "sweep": ("--tables_only",),
    "evaluate without the full depth": ("--do_eval", "--skip_full_depth", "--out_mode", "one"),
    "sweep again": ("--tables_only", "--rules", "entropy"),
    "train again": (*TRAIN, "--overwrite_output_dir", "--save_total_limit", 1),
    "go on": (*TRAIN, "--resume_from_checkpoint"),
}


@pytest.fixture
def folder(tmp_path) -> Path:
    """RTE, with the user's files in and around it, and links out of it."""
    out = tmp_path / "place/RTE"
    for number, name in enumerate(MINE):
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"mine {number}")
    (out / "linked").symlink_to(tmp_path / "place/outside")
    (out / "stat_out/sample").symlink_to(tmp_path / "place/outside")
    return out


def test_all_commands_in_turn_keep_what_is_not_theirs(folder, glue, rte, script):
    before = {name: (folder / name).read_bytes() for name in MINE}
    for name, flags in COMMANDS.items():
        if name.startswith("sweep"):
            data = ("--data_dir", rte, "--task_name", "RTE", "--max_seq_length", 32, "--no_cuda")
            script(sweep_exits.main, "--model_dir", folder, *data, *flags).done()
        else:
            glue(folder, *flags).done()
        kept = {x: (folder / x).read_bytes() if (folder / x).exists() else None for x in MINE}
        assert kept == before, name
        assert sorted(x.name for x in (folder / "../outside").iterdir()) == [
            "layers_all.csv",
            "sweep.csv",
        ]
    assert not (folder / "eval_results.json").exists()  # of the weights before
    assert not (folder / "sweep/sweep.csv").exists()


def test_the_other_scripts_keep_what_is_not_theirs(folder, corpus, spiece, script, tmp_path):
    """Pre-training, sharing and the parity run, each twice in a folder with the user's files."""
    bert, text = save(tiny_bert(), tmp_path / "bert"), plain_text(tmp_path)
    scripts = {
        run_pretraining.main: pretraining_flags(corpus, spiece, folder, "--do_eval"),
        share_layers.main: sharing_flags(bert, text, folder, "--do_eval", "--max_steps", 3),
        run_parity.main: f"--epochs 1 --n_batches 2 --batch_size 4 --output_dir {folder}".split(),
    }
    before = {name: (folder / name).read_bytes() for name in MINE}
    for main, flags in scripts.items():
        anew = [] if main is run_parity.main else ["--overwrite_output_dir"]
        for _ in range(2):
            script(main, *flags, *anew).done()
            kept = {x: (folder / x).read_bytes() if (folder / x).exists() else None for x in MINE}
            assert kept == before, main.__module__


def test_what_was_changed_since_is_not_removed(tmp_path):
    names = ["a", "b", "sub/c", "sub/d"]
    (tmp_path / "sub").mkdir()
    for name in names:
        (tmp_path / name).write_text(name)
    note(tmp_path, (tmp_path / name for name in names))
    (tmp_path / "b").write_text("mine")
    (tmp_path / "sub/d").unlink()
    (tmp_path / "sub/d").symlink_to(tmp_path / "a")
    assert sorted(read_list(tmp_path)) == names
    assert sorted(remove(tmp_path)) == ["a", "sub/c"]
    assert contents(tmp_path) == {"b": b"mine"}


def test_what_has_a_results_name_but_is_no_result_is_put_aside(trained, glue, tmp_path):
    out = shutil.copytree(trained, tmp_path / "RTE")
    mine = ("predictions.tsv", "RTE.tsv", "exits.png", "eval_results.json")
    for name in mine:
        (out / name).write_text(f"my {name}")
    for _ in range(2):  # the second run writes over the first one's
        glue(out, "--do_eval", "--do_predict", weights=out).done()
    for name in mine:
        assert (out / f"{name}.1").read_text() == f"my {name}"
        assert not (out / f"{name}.2").exists()


@pytest.mark.parametrize("name", ["custom.tsv", "predictions.tsv", "eval_results.txt"])
def test_an_input_that_is_also_a_result_is_refused(name, trained, glue, rte):
    glue(trained, "--do_eval", weights=trained).done()
    path = trained / name
    if not path.exists():
        path.write_bytes((rte / "dev.tsv").read_bytes())
    before = path.read_bytes()
    glue(trained, "--do_predict", "--test_file", path).refused(f"--test_file {path}", "result")
    assert path.read_bytes() == before


def test_a_starting_model_is_not_trained_in_its_own_folder(trained, glue, tmp_path):
    model = shutil.copytree(trained, tmp_path / "RTE")
    before = contents(model)
    glue(model, *TRAIN, "--overwrite_output_dir", weights=model).refused("folder of the starting")
    assert contents(model) == before
