"""exit_config.json over config.json, and files of other shapes."""

import json
import re

import pytest
import transformers

from modeling import UserError, load_config
from modeling.loading.configs import apply_exit_config
from tests.conftest import edit_json, tiny_config
from tests.golden_vectors import load_golden


def overridden(tmp_path, content: str | None, path: str = "exit_config.json"):
    config = tiny_config(exit_config_path=path, exit_thres=0.4, thres_name="entropy")
    if content is not None:
        (tmp_path / "exit_config.json").write_text(content)
    return config, apply_exit_config(config, tmp_path)


@pytest.mark.parametrize(
    ("content", "path", "warnings"),
    [
        ("", "exit_config.json", 0),
        ("  \n", "exit_config.json", 0),
        ("{}", "exit_config.json", 0),
        ('{"exit_thres": 0.9}', "", 0),  # no path
        *((None, path, 1) for path in ("gone.json", "/home/author/exit_config.json", "a" * 300)),
    ],
)
def test_nothing_and_a_path_to_nothing_override_nothing(content, path, warnings, tmp_path, caplog):
    config, overrides = overridden(tmp_path, content, path)
    assert overrides == {}
    assert config.exit_thres == 0.4
    assert len(caplog.records) == warnings
    assert path in caplog.text or not warnings


def test_exit_keys_override_the_config(tmp_path):
    content = '{"exit_thres": 0.7, "cnt_thres": 3.0, "thres_name": "bias_2"}'
    config, overrides = overridden(tmp_path, content)
    assert overrides == {"exit_thres": 0.7, "cnt_thres": 3, "thres_name": "bias_2"}
    assert (config.exit_thres, config.cnt_thres, config.thres_name) == (0.7, 3, "bias_2")


def test_a_relative_path_is_relative_to_the_model_and_an_absolute_one_leads_into_it(tmp_path):
    (tmp_path / "elsewhere.json").write_text('{"exit_thres": 0.7}')
    config = tiny_config(exit_config_path=str(tmp_path / "elsewhere.json"))
    apply_exit_config(config, tmp_path)
    assert config.exit_thres == 0.7


def test_the_elbert_keys_of_a_published_config_are_accepted(tmp_path):
    published = load_golden("elbert_cls")[0]["config"]
    plain = vars(transformers.AlbertConfig())
    notes = ("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor")
    keys = {k: v for k, v in published.items() if k not in (*plain, *notes, "num_labels")}
    assert {"exit_thres", "kd_T_idx_s", "thres_lst", "use_fc2"} <= set(keys)
    config, _ = overridden(tmp_path, json.dumps({**keys, "cnt_thres": 4}))
    assert (config.thres_name, config.exit_thres, config.cnt_thres) == ("bias_1", 0.1, 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"exit_thresh": 0.3}', ["exit_thresh", "0.3", "exit_thres"]),
        ('{"exit_thres": 1.5}', ["exit_thres = 1.5", "0 to 1"]),
        ('{"exit_thres": null}', ["exit_thres = None"]),
        ('{"cnt_thres": 0}', ["cnt_thres = 0", "1"]),
        ('{"cnt_thres": 5}', ["cnt_thres = 5", "num_hidden_layers = 4"]),
        ('{"cnt_thres": 2.5}', ["cnt_thres = 2.5", "whole"]),
        ('{"thres_name": "bias_9"}', ["thres_name = 'bias_9'", "bias_1", "patience"]),
        ('{"margin": NaN}', ["margin = nan"]),
        ('{"exit_thres": 0.3', ["line 1"]),
        ("[1]", ["list"]),
    ],
)
def test_a_bad_exit_config_names_file_key_value_and_what_is_allowed(content, words, tmp_path):
    config = tiny_config(exit_config_path="exit_config.json", exit_thres=0.4)
    before = config.exit_keys()
    (tmp_path / "exit_config.json").write_text(content)
    with pytest.raises(UserError) as caught:
        apply_exit_config(config, tmp_path)
    for word in [str(tmp_path / "exit_config.json"), *words]:
        assert word in str(caught.value)
    assert config.exit_keys() == before


def test_config_files_of_other_shapes(albert_dir, tmp_path):
    assert load_config(albert_dir).thres_name == "bias_1"
    assert load_config(albert_dir / "config.json").cnt_thres == 4  # the default 8 shrinks
    text = (albert_dir / "config.json").read_text()
    (tmp_path / "config.json").write_text(text[: len(text) // 2])
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "config.json"))):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text(text)
    edit_json(tmp_path / "config.json", exit_thres=2)
    with pytest.raises(UserError, match=r"config\.json.*exit_thres = 2.*0 to 1"):
        load_config(tmp_path)
