"""Depth batching gives the batch-size-1 answers, each once, whatever the slots and the order."""

import random
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from elbert import ElbertConfig, ElbertForSequenceClassification
from modeling.cpu_packing import packed_copy
from modeling.depth_batching import DepthBatcher
from modeling.errors import UserError
from modeling.exits.rules import RULES
from modeling.graphs import graphed_copy
from tests.conftest import tiny_model
from tests.cpu_recorder import graphs_on_cpu
from tests.modeling.exits.test_rules import CALIBRATIONS
from tests.models import SMALL, assert_near

LONGEST = SMALL["max_position_embeddings"]


def spread_model(**keys) -> ElbertForSequenceClassification:
    """Make a model whose exits spread over the layers."""
    return tiny_model(**{**SMALL, "exit_thres": 0.6, "cnt_thres": 2, **keys})


def published_twin(model: ElbertForSequenceClassification) -> ElbertForSequenceClassification:
    """Make a model of the same weights that runs the published operations in their order."""
    config = ElbertConfig(**{**model.config.to_dict(), "attn_implementation": "eager"})
    twin = ElbertForSequenceClassification(config).eval().to(model.dtype)
    twin.load_state_dict(model.state_dict())
    return twin


def random_examples(count: int, seed: int = 0, longest: int = LONGEST):
    draw = random.Random(seed)
    examples = []
    for _ in range(count):
        ids = [draw.randrange(5, 40) for _ in range(draw.randrange(2, longest))]
        cut = draw.randrange(len(ids))
        examples.append((ids, [0] * cut + [1] * (len(ids) - cut)))
    return examples


@torch.inference_mode()
def one_at_a_time(model, examples):
    """Answer each example alone, without padding: (logits, exit layer)."""
    outs = [
        model(torch.tensor([ids]), token_type_ids=torch.tensor([types])) for ids, types in examples
    ]
    return [(out.logits[0], int(out.exit_layer)) for out in outs]


def assert_same_answers(model, examples, answers, tolerance=1e-5):
    assert sorted(answer.row for answer in answers) == list(range(len(examples)))
    alone = one_at_a_time(published_twin(model), examples)
    for answer in answers:
        logits, exit_layer = alone[answer.row]
        assert answer.exit_layer == exit_layer
        assert_near(answer.logits, logits, tolerance)


def answers_in_portions(batcher: DepthBatcher, examples: list, portions: list[int]) -> list:
    """Submit the examples a portion at a time, taking as many answers after each."""
    answers = []
    remaining = iter(examples)
    for size in portions:
        batcher.submit(list(islice(remaining, size)))
        answers += islice(batcher.answers(), size // 2)
    batcher.submit(list(remaining))
    return answers + list(batcher.answers())


@pytest.mark.parametrize(("dtype", "spread"), [(torch.float64, 0.3), (torch.float32, 0.05)])
# Derandomised: an example within rounding of a threshold is not a failure of depth batching.
@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    rule=st.sampled_from(list(RULES)),
    slots=st.integers(1, 32),
    window=st.integers(1, 20),
    groups=st.sampled_from([1, 2, 3, 6]),
    exits=st.sampled_from([1, 3, 6]),
    keeps_head=st.booleans(),
    labels=st.sampled_from([1, 2, 3]),
    skips_padding=st.booleans(),
    is_recalibrated=st.booleans(),
    has_some_exits=st.booleans(),
    portions=st.lists(st.integers(0, 10), max_size=3),
    count=st.integers(1, 20),
    seed=st.integers(0, 10**6),
)
def test_answers_are_those_of_batch_size_one(
    dtype,
    spread,
    rule,
    slots,
    window,
    groups,
    exits,
    keeps_head,
    labels,
    skips_padding,
    is_recalibrated,
    has_some_exits,
    portions,
    count,
    seed,
):
    """Weights as wide as 0.3 amplify float32's rounding beyond 1e-5; float64's they do not."""
    model = spread_model(
        seed=seed,
        initializer_range=spread,
        thres_name=rule,
        exit_thres=0.5,
        learnt_weights=[[-1.0, 0.8, 0.4]],
        stopping_thresholds=[[0.0, 0.3, 0.5], [0.5, 0.6, 0.6]],
        exit_calibration=CALIBRATIONS[labels] if is_recalibrated else [],
        num_hidden_groups=groups,
        exit_layers=[1, 4, 6] if has_some_exits else [],
        num_exit_layers=min(exits, (2 if keeps_head else 3) if has_some_exits else 6 - keeps_head),
        keep_head=keeps_head,
        num_labels=labels,
        pooler_input="cls-mean",
        positions_skip_padding=skips_padding,
        relative_attention_num_buckets=32 if skips_padding else None,
    ).to(dtype)
    examples = random_examples(count, seed)
    batcher = DepthBatcher(packed_copy(model), slots, window)
    answers = answers_in_portions(batcher, examples, portions)
    assert_same_answers(model, examples, answers, 1e-5 if dtype is torch.float32 else 1e-6)


def test_ids_may_be_of_any_kind_of_whole_numbers():
    """Lists, tuples, arrays, also views of others, tensors of 16 bits, and whole floats."""
    model = spread_model()
    ids, types = [7, 9, 5, 12], [0, 0, 1, 1]
    backwards = np.array(ids[::-1])[::-1], np.array(types[::-1])[::-1]
    kinds = [
        (ids, types),
        (tuple(ids), tuple(types)),
        backwards,
        (torch.tensor(ids, dtype=torch.int16), torch.tensor(types, dtype=torch.int8)),
        (np.array(ids, np.float32), torch.tensor(types).float()),
    ]
    batcher = DepthBatcher(model, slots=2)
    batcher.submit(kinds)
    assert_same_answers(model, [(ids, types)] * len(kinds), list(batcher.answers()))
    batcher.submit([([7.5, 9.0], [0, 0])])
    with pytest.raises(UserError, match="example 5: input_ids hold numbers with a fraction"):
        list(batcher.answers())


def test_without_a_gpu_an_answer_does_not_wait_for_further_texts():
    model = spread_model(exit_thres=1.0)
    read = []
    examples = random_examples(6)

    def stream():
        for row, example in enumerate(examples):
            read.append(row)
            yield example

    batcher = DepthBatcher(model, slots=1, window=1)
    batcher.submit(stream())
    for count, answer in enumerate(batcher.answers(), start=1):
        assert answer.exit_layer == 1
        assert len(read) == count


@pytest.mark.parametrize("is_graphed", [False, True])
def test_a_source_may_drop_examples(is_graphed, monkeypatch):
    if is_graphed:
        graphs_on_cpu(monkeypatch)
    model = spread_model(initializer_range=0.3)
    examples = random_examples(12)
    batcher = DepthBatcher(graphed_copy(model) if is_graphed else model, slots=2, window=4)

    def stream():
        for row, example in enumerate(examples):
            if row == 6:
                batcher.drop({0, 1, 2, 3, 4, 5})
            yield example

    batcher.submit(stream())
    rows = [answer.row for answer in batcher.answers()]
    assert len(rows) == len(set(rows))
    assert {*rows} >= {*range(6, 12)}


def test_ids_without_an_embedding_are_refused_by_their_row_and_others_answered():
    model = tiny_model()
    vocabulary = model.config.vocab_size
    examples = [
        ([2, 7, 3], [0, 0, 0]),
        ([2, vocabulary, 3], [0, 0, 0]),
        ([2, 7, 3], [0, 2, 0]),
        ([2, -1, 3], [0, 0, 0]),
        ([2, 7, 3], [0, 0]),
        ([2, 8, 3], [0, 0, 0]),
    ]
    batcher = DepthBatcher(model, slots=2)
    batcher.submit(examples)
    rows = []
    for message in (
        f"example 1: input_ids hold {vocabulary}: allowed are 0 to {vocabulary - 1}",
        "example 2: token_type_ids hold 2: allowed are 0 to 1",
        "example 3: input_ids hold -1",
        "example 4 has 2 token_type_ids for 3 tokens",
    ):
        with pytest.raises(UserError, match=message):
            rows += [answer.row for answer in batcher.answers()]
    rows += [answer.row for answer in batcher.answers()]
    assert sorted(rows) == [0, 5]


@pytest.mark.parametrize("groups", [1, 3])
@settings(max_examples=20)
@given(
    slots=st.integers(1, 5),
    window=st.integers(1, 8),
    answered=st.integers(0, 12),
    dropped=st.sets(st.integers(0, 30)),
)
def test_examples_that_are_dropped_get_no_answer_and_the_others_theirs(
    groups, slots, window, answered, dropped
):
    """Those that were read: the others are not known yet."""
    model = spread_model(initializer_range=0.3, num_hidden_groups=groups, num_exit_layers=groups)
    examples = random_examples(20, seed=window)
    batcher = DepthBatcher(model, slots, window)
    batcher.submit(examples)
    answers = list(islice(batcher.answers(), answered))
    is_read = {row for row in dropped if row < batcher.submitted}
    batcher.drop(is_read)
    later = list(batcher.answers())
    assert is_read.isdisjoint(answer.row for answer in later)
    rows = {answer.row for answer in answers} | is_read
    assert {answer.row for answer in later} == {*range(20)} - rows
    alone = one_at_a_time(model, examples)
    for answer in later:
        logits, exit_layer = alone[answer.row]
        assert answer.exit_layer == exit_layer
        assert_near(answer.logits, logits, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 3])
@settings(deadline=None, max_examples=20, derandomize=True)
@given(
    common=st.integers(0, 39),
    rare=st.lists(st.tuples(st.integers(0, 140), st.integers(0, 39)), max_size=4),
    slots=st.integers(1, 4),
    window=st.integers(1, 8),
)
def test_a_place_among_the_answers_is_bounded(groups, common, rare, slots, window):
    """One kind of text keeps coming, and some of another length or depth are among them."""
    layers = 3
    keys = {"num_hidden_layers": layers, "num_hidden_groups": groups, "num_exit_layers": groups}
    model = spread_model(initializer_range=0.3, exit_thres=0.8, cnt_thres=1, **keys)
    kinds = random_examples(40)
    stream = [kinds[common]] * 300
    for row, kind in rare:
        stream[row] = kinds[kind]
    batcher = DepthBatcher(model, slots, window)
    batcher.submit(stream)
    places = {answer.row: place for place, answer in enumerate(batcher.answers())}
    steps = layers if groups == 1 else 2 * layers * groups
    assert all(place <= row + 2 * window + slots * steps for row, place in places.items())
