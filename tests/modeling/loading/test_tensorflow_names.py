"""Names of TensorFlow's variables, and where each goes."""

import pytest

from modeling import UserError
from modeling.loading.tensorflow_names import IGNORED, find_ignored, find_rule, place
from tests.tf_albert import CLASSIFIER, MLM, SOP, adaptive, albert


@pytest.mark.parametrize(
    "names",
    [
        albert(MLM, SOP, groups=2, inner=2),
        albert(CLASSIFIER),
        adaptive(MLM, SOP),
        adaptive(MLM, SOP, tensorflow_2=True),
    ],
)
def test_every_published_name_has_its_place(names):
    placed, ignored = place({name: (name,) for name in names})
    assert {name: key for name, (key, _) in placed.items()} == {
        target: name for name, (target, _) in names.items()
    }
    assert ignored == {}
    for name, rule in placed.values():
        assert rule.transposed == name.endswith("kernel")
        assert len(rule.sizes) == len(names[name][1])


def test_outer_scopes_do_not_matter():
    for name, (target, _) in albert(MLM, SOP).items():
        assert find_rule(f"module/{name}")[0] == target
        assert find_rule(f"tower_0/model/{name}")[0] == target


@pytest.mark.parametrize(
    ("variable", "rule"),
    [
        ("bert/pooler/dense/kernel/adam_m", "moments of Adam and LAMB"),
        ("bert/pooler/dense/kernel/adam_v", "moments of Adam and LAMB"),
        ("bert/pooler/dense/kernel/Adam_1", "moments of Adam and LAMB"),
        ("beta1_power", "powers of Adam's decay rates"),
        ("global_step", "training step"),
        ("bert/pooler/dense/kernel/accum", "accumulated gradients"),
        ("local_step", "accumulated gradients"),
        ("batch_finite", "accumulated gradients"),
        ("bert/pooler/dense/bias/ExponentialMovingAverage", "moving averages"),
        ("optimizer/learning_rate/.ATTRIBUTES/VARIABLE_VALUE", "object-based optimizer"),
        (
            "model/pooler/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE",
            "object-based optimizer",
        ),
        ("_CHECKPOINTABLE_OBJECT_GRAPH", "object-based bookkeeping"),
        ("save_counter/.ATTRIBUTES/VARIABLE_VALUE", "object-based bookkeeping"),
        ("layer/.ATTRIBUTES/OBJECT_CONFIG_JSON", "object-based bookkeeping"),
        ("bert/pooler/dense/kernel", None),
        ("bert/optimizer_kernel", None),
    ],
)
def test_what_is_no_weight_is_left_out_by_a_named_rule(variable, rule):
    assert find_ignored(variable) == rule
    assert rule is None or (rule in IGNORED and find_rule(variable) is None)


@pytest.mark.parametrize(
    "variable",
    [
        "cls/squad/output_weights",
        "bert/encoder/layer_0/output/dense/kernel",
        "xbert/pooler/dense/bias",
    ],
)
def test_variables_of_other_models_have_no_place(variable):
    with pytest.raises(UserError, match=rf"1 variables: {variable}\. Nothing is converted"):
        place({variable: (variable,)})


def test_two_variables_for_one_tensor_are_an_error():
    names = ("bert/pooler/dense/bias", "module/bert/pooler/dense/bias")
    with pytest.raises(UserError, match=r"(?s)bert/pooler.* and module/bert.*albert\.pooler\.bias"):
        place({name: (name,) for name in names})
