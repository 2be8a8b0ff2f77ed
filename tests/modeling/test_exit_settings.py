"""Which exit keys are in force, and where each is written: flag, exit_config.json, config.json."""

import json

import pytest
import transformers
from transformers import AutoModelForSequenceClassification

import elbert
from elbert import ElbertConfig, UserError
from modeling.exit_settings import KeyValues, resolve
from modeling.keys import ELBERT, EXIT_KEYS, SHARED_EXIT_KEYS
from tests.conftest import edit_json, tiny_model
from tests.golden_vectors import load_golden

HF_WAYS = (AutoModelForSequenceClassification, elbert.ElbertForSequenceClassification)


def folder_of(path, overrides: str | None, **config):
    """Make a folder with this config.json and, beside it, this text as exit_config.json."""
    config = {"num_hidden_layers": 4, "exit_config_path": "exit_config.json", **config}
    (path / "config.json").write_text(json.dumps(config))
    if overrides is not None:
        (path / "exit_config.json").write_text(overrides)
    return path


def test_each_value_has_the_source_that_wins(tmp_path):
    folder = folder_of(
        tmp_path, '{"exit_thres": 0.7, "margin": 0.1}', exit_thres=0.4, range_tmp=0.5
    )
    flags = KeyValues.from_source({"margin": 0.2, "pooler_input": "mean"}, "--set")
    resolved = resolve(folder, ELBERT, flags)
    expected = {name: (key.default, "default") for name, key in EXIT_KEYS.items()}
    expected["exit_thres"] = (0.7, "exit_config.json")
    expected["margin"] = (0.2, "--set")
    expected["range_tmp"] = (0.5, "config.json")
    expected["cnt_thres"] = (4, "default")  # 8, in a model of 4 layers
    for name, pair in expected.items():
        assert (resolved.values[name], resolved.sources[name]) == pair
    assert resolved.values.keys() == resolved.sources.keys() == expected.keys()
    assert "exit_thres = 0.7 (exit_config.json)" in resolved.line()


@pytest.mark.parametrize(
    ("content", "path", "warnings"),
    [
        ("", "exit_config.json", 0),
        ("  \n", "exit_config.json", 0),
        (None, "", 0),
        *((None, path, 1) for path in ("gone.json", "/home/author/exit_config.json", "a" * 300)),
    ],
)
def test_nothing_and_a_path_to_nothing_override_nothing(content, path, warnings, tmp_path, caplog):
    folder = folder_of(tmp_path, content, exit_thres=0.4, exit_config_path=path)
    assert resolve(folder, ELBERT).values["exit_thres"] == 0.4
    assert len(caplog.records) == warnings
    assert path in caplog.text or not warnings


def test_a_key_that_stands_twice_is_told_once(tmp_path, caplog):
    """As after an edit that adds a line: the last one counts."""
    content = '{"exit_thres": 0.3,\n "margin": 0.1,\n "exit_thres": 0.6}'
    folder = folder_of(tmp_path, content, exit_thres=0.4)
    for _ in range(2):
        assert resolve(folder, ELBERT).values["exit_thres"] == 0.6
    (warning,) = caplog.messages
    assert "exit_config.json: the key exit_thres stands there more than once" in warning
    assert "the last value, 0.6, counts" in warning


@pytest.mark.parametrize("content", ["", " \n", "{}\n"])
def test_a_blank_file_overrides_nothing_wherever_it_is(content, tmp_path, caplog):
    """ELBERT's README asks for one at an absolute path."""
    blank = tmp_path / "blank.json"
    blank.write_text(content)
    (tmp_path / "model").mkdir()
    folder = folder_of(tmp_path / "model", None, exit_thres=0.4, exit_config_path=str(blank))
    resolved = resolve(folder, ELBERT)
    assert (resolved.values["exit_thres"], resolved.sources["exit_thres"]) == (0.4, "config.json")
    assert not caplog.text


def test_a_flag_names_a_file_in_place_of_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "mine.json").write_text('{"exit_thres": 0.2, "margin": 0.3}')
    (tmp_path / "model").mkdir()
    folder = folder_of(tmp_path / "model", '{"exit_thres": 0.9}')
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path / "mine.json"), "../mine.json", "mine.json"):
        flags = KeyValues.from_source({"exit_config_path": name, "margin": 0.1}, "--set")
        resolved = resolve(folder, ELBERT, flags)
        assert resolved.values["exit_thres"] == 0.2
        assert resolved.sources["exit_thres"].endswith("mine.json")
        assert (resolved.values["margin"], resolved.sources["margin"]) == (0.1, "--set")
    typo = KeyValues.from_source({"exit_config_path": "typo.json"}, "--set")
    with pytest.raises(UserError, match=r"typo\.json does not exist"):
        resolve(folder, ELBERT, typo)


@pytest.mark.parametrize("path", ["", None, "/home/author/exit_config.json"])
def test_the_folder_s_file_is_read_whoever_wrote_it(path, tmp_path, caplog):
    """Unless another one is named that is there."""
    folder = folder_of(tmp_path, '{"exit_thres": 0.9}', exit_thres=0.4, exit_config_path=path)
    resolved = resolve(folder, ELBERT)
    assert resolved.values["exit_thres"] == 0.9
    assert resolved.sources["exit_thres"] == "exit_config.json"
    assert not caplog.text or str(folder / "exit_config.json") in caplog.text
    (folder / "other.json").write_text('{"exit_thres": 0.2}')
    edit_json(folder / "config.json", exit_config_path="other.json")
    assert resolve(folder, ELBERT).sources["exit_thres"] == "other.json"


def test_the_keys_of_a_published_config_may_stand_in_exit_config_json(tmp_path):
    published = load_golden("elbert_cls")[0]["config"]
    plain = vars(transformers.AlbertConfig())
    notes = ("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor")
    keys = {k: v for k, v in published.items() if k not in (*plain, *notes, "num_labels")}
    assert {"exit_thres", "kd_T_idx_s", "thres_lst", "use_fc2"} <= set(keys)
    values = resolve(folder_of(tmp_path, json.dumps({**keys, "cnt_thres": 4})), ELBERT).values
    assert (values["thres_name"], values["exit_thres"], values["cnt_thres"]) == ("bias_1", 0.1, 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"exit_thresh": 0.3}', ["exit_thresh", "0.3", "exit_thres"]),
        ('{"exit_thres": 1.5}', ["exit_thres = 1.5", "0 to 1"]),
        ('{"cnt_thres": 5}', ["cnt_thres = 5", "num_hidden_layers = 4"]),
        ('{"thres_name": "bias_9"}', ["thres_name = 'bias_9'", "bias_1", "patience"]),
        ('{"margin": NaN}', ["margin = nan"]),
        ('{"exit_thres": 0.3', ["line 1"]),
    ],
)
def test_a_bad_value_names_its_file_or_flag(content, words, tmp_path):
    """Key, value and what is allowed."""
    with pytest.raises(UserError) as caught:
        resolve(folder_of(tmp_path, content), ELBERT)
    for word in [str(tmp_path / "exit_config.json"), *words]:
        assert word in str(caught.value)
    folder = folder_of(tmp_path, "{}")
    with pytest.raises(UserError, match=r"--set: cnt_thres = 9: allowed is 1 to num_hidden_layers"):
        resolve(folder, ELBERT, KeyValues.from_source({"cnt_thres": 9}, "--set"))
    with pytest.raises(UserError, match=r"/config\.json: exit_thres = 2"):
        resolve(folder_of(tmp_path, None, exit_thres=2), ELBERT)


def test_a_model_loaded_in_python_has_the_rule_of_its_folder(tmp_path, caplog):
    tiny_model(exit_thres=0.4, cnt_thres=3).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", exit_config_path="exit_config.json")
    (tmp_path / "exit_config.json").write_text('{"exit_thres": 0.7, "thres_name": "patience"}')
    model, _ = elbert.load_pretrained(tmp_path)
    models = [model, *(kind.from_pretrained(tmp_path) for kind in HF_WAYS)]
    for model in models:
        assert model.config.exit_keys() == resolve(tmp_path, ELBERT).values
        keys_read = model.config.keys_read()
        assert keys_read.keys() - SHARED_EXIT_KEYS.keys() == {"thres_name", "cnt_thres"}
        assert (keys_read["thres_name"], keys_read["cnt_thres"]) == ("patience", 3)
        assert model.config.exit_rule().cnt_thres == 3
    models[-1].save_pretrained(tmp_path / "copy")
    assert resolve(tmp_path / "copy", ELBERT).values == resolve(tmp_path, ELBERT).values
    assert not caplog.text  # of a file that is not there
    assert ElbertConfig.from_pretrained(tmp_path, exit_thres=0.2).exit_thres == 0.2
    assert elbert.load_config(tmp_path, exit_thres=0.2).exit_thres == 0.2
