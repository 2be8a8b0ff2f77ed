"""TensorFlow and the script that reads its checkpoints."""

import pytest

import convert_albert_original_tf_checkpoint_to_pytorch as converter


@pytest.fixture(scope="session")
def tf():
    return pytest.importorskip("tensorflow", reason="needs pip install -r requirements-tf.txt")


@pytest.fixture
def convert(script):
    """(checkpoint, configuration, target) -> what the script ended with."""

    def run(checkpoint, config, target):
        flags = ("--tf_checkpoint_path", "--albert_config_file", "--pytorch_dump_path")
        given = zip(flags, (checkpoint, config, target), strict=True)
        return script(converter.main, *(word for pair in given for word in pair))

    return run
