"""Graphed copies against their models, with a recorder for the CPU in CUDA's place."""

import copy
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings, strategies as st

from elbert import UserError, graphed_copy
from modeling import graphs
from modeling.captures import do_nothing
from modeling.cpu_packing import cast_layers
from modeling.depth import iter_layers
from modeling.depth_batching import DepthBatcher
from modeling.encoder import attention_mask_of
from modeling.exits.rules import RULES
from modeling.ponder.rules import RULES as CRITERIA
from tests.conftest import tiny_model
from tests.cpu_recorder import CpuRecorder, graphs_on_cpu, record_all
from tests.modeling.exits.test_rules import CALIBRATIONS
from tests.modeling.test_depth_batching import answers_in_portions, random_examples, spread_model
from tests.models import assert_near, padded_batch, ponder_batch, tiny_act, tiny_ponder


@pytest.fixture
def recorder(monkeypatch) -> CpuRecorder:
    return graphs_on_cpu(monkeypatch)


def answers(model, batch) -> tuple[torch.Tensor, list[int]]:
    with torch.inference_mode():
        out = model.exit_early(**batch)
    return out.logits, out.exit_layer.tolist()


def assert_same(graphed, model, batch, tolerance=1e-5) -> None:
    logits, exit_layer = answers(model, batch)
    graphed_logits, graphed_exits = answers(graphed, batch)
    assert graphed_exits == exit_layer
    assert_near(graphed_logits, logits, tolerance)


KEYS = {
    "exit_thres": 0.5,
    "learnt_weights": [[-1.0, 0.8, 0.4]],
    "stopping_thresholds": [[0.0, 0.3, 0.5], [0.5, 0.6, 0.6]],
}


@pytest.mark.parametrize("labels", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_exits_as_the_model(rule, labels, recorder):
    """The first batch captures; the second, of other lengths, replays."""
    model = spread_model(
        **KEYS, thres_name=rule, num_labels=labels, exit_calibration=CALIBRATIONS[labels]
    )
    graphed = graphed_copy(model)
    for lengths in ([9, 5, 12], [14, 16, 3, 9], [11, 7, 1, 2], [16], [6]):
        assert_same(graphed, model, padded_batch(lengths, seed=len(lengths)))
    assert recorder.replays > 10


def test_segments_that_are_not_given_are_found_as_the_model_finds_them(recorder):
    model = spread_model()
    graphed = graphed_copy(model)
    batch = padded_batch([9, 5, 12])
    batch["input_ids"][:, 2] = model.config.eos_token_id  # what stands behind it is the second one
    with_random_segments, _ = answers(graphed, batch)
    del batch["token_type_ids"]
    assert_same(graphed, model, batch)
    with_found_segments, _ = answers(graphed, batch)
    assert not torch.equal(with_found_segments, with_random_segments)


SHAPES = {
    "groups": {"num_hidden_groups": 3},
    "own exits": {"num_exit_layers": 6, "use_out_pooler": False},
    "kept head": {"keep_head": True, "num_exit_layers": 5},
    "several labels": {"problem_type": "multi_label_classification", "num_labels": 3},
    "MPNet's": {"positions_skip_padding": True, "relative_attention_num_buckets": 32},
    "means": {"pooler_input": "cls-mean"},
    "maxima": {"pooler_input": "max"},
    "eager": {"attn_implementation": "eager"},
    "fewer exits": {"exit_layers": [2, 3, 6]},
    "low rank": {"num_hidden_groups": 6, "correction_rank": 2},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_architecture_answers_as_the_model(shape, recorder):
    model = spread_model(**SHAPES[shape])
    graphed = graphed_copy(model)
    for lengths in ([9, 5, 12], [14, 16, 3, 9], [6]):
        assert_same(graphed, model, padded_batch(lengths))
    passes = {model.layer_weights(layer) for layer in range(6)}
    entry = next(iter(graphed.graphs.entries.values()))
    assert all(len(run.replays) == len(passes) for run in entry.runs.values())


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("keys", [{}, {"pooler_input": "cls", "lambda_layer_arch": "linear_cat"}])
def test_a_ponder_model_halts_as_it_does(criterion, keys, recorder):
    model = tiny_ponder(exit_criteria=criterion, halt_normalization="last_layer", **keys)
    model.double()  # the padded shape's products have other last digits, which its sums enlarge
    graphed = graphed_copy(model)
    for lengths in ([9, 5, 12], [14, 16, 3, 9], [6]):
        batch = ponder_batch(lengths)
        draws = torch.rand(len(lengths))
        if criterion == "sample":
            batch["draws"] = draws
        assert_same(graphed, model, batch)
        with torch.inference_mode():
            out, expected = graphed(**batch), model(**batch)
        assert out.exit_layer.tolist() == expected.exit_layer.tolist()
        assert_near(out.halt_probabilities, expected.halt_probabilities)


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_a_graph_can_hold_every_rule(rule, labels, monkeypatch):
    """No captured operation waits for the device, or reads the CPU's memory."""
    model = spread_model(
        **KEYS, thres_name=rule, num_labels=labels, exit_calibration=CALIBRATIONS[labels]
    )
    assert record_all(model, (), monkeypatch) >= 7


@pytest.mark.parametrize("shape", SHAPES)
def test_a_graph_can_hold_every_architecture(shape, monkeypatch):
    assert record_all(spread_model(**SHAPES[shape]), (), monkeypatch) >= 7


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("keys", [{}, {"pooler_input": "cls", "lambda_layer_arch": "linear_cat"}])
def test_a_graph_can_hold_a_ponder_model(criterion, keys, monkeypatch):
    model = tiny_ponder(exit_criteria=criterion, halt_normalization="last_layer", **keys)
    layout = (("draws", torch.float),) if criterion == "sample" else ()
    assert record_all(model, layout, monkeypatch) >= 7


def test_what_a_graph_cannot_hold_is_found(monkeypatch):
    model = spread_model()
    check = model.check_exit

    def waiting_check(*args):
        decision = check(*args)
        return decision._replace(answer=decision.answer * float(decision.answer.sum()))

    monkeypatch.setattr(model, "check_exit", waiting_check)
    with pytest.raises((AssertionError, RuntimeError)):
        record_all(model, (), monkeypatch)


def test_a_batch_of_a_captured_shape_is_equal_in_every_bit(recorder):
    """The model's own arithmetic: only how it is started differs."""
    model = spread_model(thres_name="max_prob")
    batch = padded_batch([16, 9, 12, 16])
    batch["attention_mask"][2, 5:] = 0
    logits, exit_layer = answers(model, batch)
    graphed_logits, graphed_exits = answers(graphed_copy(model), batch)
    alike = [row for row, exit_ in enumerate(exit_layer) if exit_ == min(exit_layer)]
    assert graphed_exits == exit_layer
    assert torch.equal(graphed_logits[alike], logits[alike])


@pytest.mark.parametrize("keys", [{}, {"exit_layers": [2, 3, 6]}])
def test_recorded_layers_are_the_models(keys, recorder):
    """Of a layer without an exit they are 0."""
    model = spread_model(**keys)
    graphed = graphed_copy(model)
    batch = padded_batch([9, 5, 12])
    mask = attention_mask_of(batch["attention_mask"])

    @torch.inference_mode()
    def layers(of) -> torch.Tensor:
        hidden = of.first_states(batch["input_ids"], batch["token_type_ids"])
        steps = iter_layers(of, hidden, mask, {}, allow_exit=False)
        return torch.stack([step.decision.seen.logits.clone() for step in steps])

    assert_near(layers(graphed), layers(model))
    recorder.replays = 0
    layers(graphed)
    assert recorder.replays == 8  # an embedding, a start, six layers


# What a graph has copied.

EDITS = {
    "threshold": lambda model: setattr(model.config, "exit_thres", 0.9),
    "another rule": lambda model: setattr(model.config, "thres_name", "patience"),
    "a list in place": lambda model: model.config.learnt_weights[0].__setitem__(0, 3.0),
    "pooling": lambda model: setattr(model.config, "pooler_input", "max"),
    "a weight in place": lambda model: layer_of(model).ffn.weight.data.mul_(0.5),
    "a weight's data": lambda model: replace_data(layer_of(model).ffn.weight),
    "a new weight": lambda model: new_weight(layer_of(model).ffn),
    "loaded weights": lambda model: model.load_state_dict(spread_model(seed=1).state_dict()),
    "assigned weights": lambda model: model.load_state_dict(
        spread_model(seed=1).state_dict(), assign=True
    ),
    "another type": lambda model: model.double(),
}


def layer_of(model):
    return model.albert.encoder.albert_layer_groups[0].albert_layers[0]


def replace_data(weight) -> None:
    weight.data = weight.data * 0.5


def new_weight(linear) -> None:
    linear.weight = torch.nn.Parameter(linear.weight.detach() * 0.5)


@pytest.mark.parametrize("of", ["the copy", "the model"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_holds_at_the_next_call(edit, of, recorder):
    model = spread_model(thres_name="learnt", learnt_weights=[[-1.0, 0.8, 0.4]])
    graphed = graphed_copy(model)
    batch = padded_batch([9, 5, 12])
    assert_same(graphed, model, batch)
    before = recorder.replays
    twin = copy.deepcopy(model)
    EDITS[edit](graphed if of == "the copy" else model)
    EDITS[edit](twin)
    assert_same(graphed, twin, batch)
    assert_same(graphed, twin, padded_batch([3]))
    assert recorder.replays > before


@pytest.mark.parametrize(
    ("switch", "value", "default"),
    [
        (torch.set_float32_matmul_precision, "high", "highest"),
        (torch.backends.cuda.enable_flash_sdp, False, True),
        (torch.use_deterministic_algorithms, True, False),
    ],
)
def test_kernels_that_torch_would_not_choose_any_more_are_captured_again(
    switch, value, default, recorder
):
    graphed, batch = graphed_copy(spread_model()), padded_batch([9, 5, 12])
    answers(graphed, batch)
    before = recorder.records
    answers(graphed, batch)
    assert recorder.records == before
    switch(value)
    try:
        answers(graphed, batch)
    finally:
        switch(default)
    assert recorder.records > before


def test_a_key_out_of_range_is_refused_at_every_call(recorder):
    graphed = graphed_copy(spread_model())
    graphed.config.exit_thres = "low"
    for _ in range(2):
        with pytest.raises(UserError, match="exit_thres"):
            answers(graphed, padded_batch([3]))


# Where graphs do not serve.


class Adapter(torch.nn.Module):
    """A linear map with something beside it, under the name that PEFT's adapters have for it."""

    def __init__(self, base_layer: torch.nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.weight = base_layer.weight

    def forward(self, states):
        return self.base_layer(states) + 0.1


def with_adapter(graphed) -> None:
    layer_of(graphed).ffn = Adapter(layer_of(graphed).ffn)


SURROUNDINGS = {
    "train()": lambda graphed: graphed.train(),
    "a part in train()": lambda graphed: graphed.albert.train(),
    "a hook": lambda graphed: layer_of(graphed).register_forward_hook(lambda *_: None),
    "an adapter": with_adapter,
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_elsewhere_the_model_runs_as_it_is(surroundings, recorder):
    graphed = graphed_copy(spread_model())
    answers(graphed, padded_batch([9, 5]))
    replays = recorder.replays
    SURROUNDINGS[surroundings](graphed)
    answers(graphed, padded_batch([9, 5]))
    assert recorder.replays == replays


def test_gradients_and_autocast_leave_graphs_out(recorder):
    graphed, batch = graphed_copy(spread_model()), padded_batch([9, 5])
    graphed.exit_early(**batch)
    with torch.autocast("cpu", torch.bfloat16):
        answers(graphed, batch)
    assert recorder.records == recorder.replays == 0
    answers(graphed, batch)
    assert recorder.replays > 0


@pytest.mark.parametrize("make", [tiny_act, tiny_model, tiny_ponder])
def test_without_cuda_a_copy_answers_as_the_model(make):
    model = make()
    graphed = graphed_copy(model)
    ids = ponder_batch([7, 7])["input_ids"]
    with torch.inference_mode():
        expected, out = model(ids), graphed(ids)
    assert torch.equal(expected[0], out[0])
    assert getattr(graphed, "graphs", None) is None or not graphed.graphs.entries


def test_copies_and_pickles_capture_anew(recorder):
    graphed, batch = graphed_copy(spread_model()), padded_batch([9, 5])
    expected, _ = answers(graphed, batch)
    for twin in (copy.deepcopy(graphed), pickle.loads(pickle.dumps(graphed))):
        assert not twin.graphs.entries
        assert torch.equal(answers(twin, batch)[0], expected)
        assert twin.graphs.entries
        assert twin.graphs.model is twin


# What is kept.


def test_shapes_are_rounded_up_to_a_few():
    lengths = {graphs.rounded_length(length, 500) for length in range(1, 501)}
    assert sorted(lengths) == [16, 32, 48, 64, 96, 128, 192, 256, 384, 500]
    assert {graphs.rounded_batch(count) for count in range(1, 65)} == {1, 2, 4, 8, 16, 32, 64}
    assert graphs.rounded_length(1030, 4096) == 1536


def test_the_shape_not_used_for_longest_goes_first(recorder, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_SHAPES", 2)
    model = spread_model(exit_thres=1.0)  # all exit at layer 1: no batch shrinks
    graphed = graphed_copy(model)
    for lengths in ([5], [20], [5], [5, 5]):
        assert_same(graphed, model, padded_batch(lengths))
    assert list(graphed.graphs.entries) == [("batch", 1, 16), ("batch", 2, 16)]
    monkeypatch.setattr(graphs, "MOST_BYTES", 1)
    assert_same(graphed, model, padded_batch([20]))
    assert list(graphed.graphs.entries) == [("batch", 1, 24)]


def test_a_batch_too_large_runs_as_it_is(recorder, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_TOKENS", 32)
    graphed = graphed_copy(spread_model())
    answers(graphed, padded_batch([9, 5, 3]))
    assert not recorder.records


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), RuntimeError("sync")])
def test_a_capture_that_fails_is_told_once_and_the_model_answers(error, recorder, caplog):
    model = spread_model()
    graphed = graphed_copy(model)
    recorder.failures = [error]
    for _ in range(2):
        assert_same(graphed, model, padded_batch([9, 5]))
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"2 texts of 16 tokens: not captured as CUDA graphs, run as it is: {error}"
    ]
    assert_same(graphed, model, padded_batch([9]))
    assert recorder.replays > 0


def test_a_replay_that_would_answer_otherwise_is_found_at_once_and_the_model_answers(
    recorder, caplog, monkeypatch
):
    record = recorder.record

    def record_wrongly(body):
        """Make a replay of a layer pass that writes nothing."""
        replay = record(body)
        return do_nothing if body.__qualname__.startswith("GraphedRun.body") else replay

    monkeypatch.setattr(recorder, "record", record_wrongly)
    model = spread_model()
    assert_same(graphed_copy(model), model, padded_batch([9, 5]))
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told.endswith("run as it is: a replay answers otherwise than the model")


def test_one_line_says_what_was_captured(recorder, caplog):
    caplog.set_level("INFO")
    graphed = graphed_copy(spread_model())
    for lengths in ([9], [20], [9, 9]):
        answers(graphed, padded_batch(lengths))
    (line,) = [r.message for r in caplog.records if "captured as CUDA graphs" in r.message]
    assert line.startswith("layer passes of 1 texts of 16 tokens are captured as CUDA graphs in ")


def test_threads_share_a_copy(recorder):
    model = spread_model()
    graphed = graphed_copy(model)
    batches = [padded_batch([9, 5 + number % 4], seed=number) for number in range(24)]
    expected = [answers(model, batch) for batch in batches]
    found: dict[int, tuple] = {}

    def run(numbers) -> None:
        for number in numbers:
            found[number] = answers(graphed, batches[number])

    threads = [threading.Thread(target=run, args=(range(k, 24, 4),)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (logits, exit_layer) in enumerate(expected):
        assert found[number][1] == exit_layer
        assert_near(found[number][0], logits)


def test_states_that_are_held_are_not_overwritten(recorder):
    graphed = graphed_copy(spread_model())
    first, second = padded_batch([9], seed=1), padded_batch([9], seed=2)
    with torch.inference_mode():
        held = graphed.first_states(first["input_ids"], first["token_type_ids"])
        kept = held.clone()
        graphed.exit_early(**second)
    assert torch.equal(held, kept)


def test_an_earlier_text_without_numbers_leaves_nothing(recorder):
    """Of a text whose states are NaN, what is left in the buffers is masked, and 0 · NaN is NaN."""
    model = spread_model()
    graphed = graphed_copy(model)
    nan = torch.full((1, 16, model.config.hidden_size), torch.nan)
    with torch.inference_mode():
        list(iter_layers(graphed, nan, None, {}))
        states = model.embed(*[torch.zeros(1, 5, dtype=torch.long)] * 2)
        (*_, step) = iter_layers(graphed, states, None, {}, allow_exit=False)
        assert step.decision.answer.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["bias_1", "learnt"])
def test_a_compiled_pass_answers_as_the_model(rule, recorder, monkeypatch):
    """By torch's tracer alone: inductor needs a compiler."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, **how: compile(run, backend="eager", **how))
    model = spread_model(**KEYS, thres_name=rule)
    graphed = graphed_copy(model, compile=True)
    for lengths in ([9, 5, 12], [14, 16, 3, 9], [6]):
        assert_same(graphed, model, padded_batch(lengths))
    assert recorder.replays > 0


# Slots.


@torch.inference_mode()
def batched(model, examples, slots, window=8) -> dict[int, tuple]:
    batcher = DepthBatcher(model, slots, window)
    batcher.submit(examples)
    return {x.row: (x.logits, x.exit_layer) for x in batcher.answers()}


def assert_same_answers(found: dict[int, tuple], expected: dict[int, tuple]) -> None:
    assert found.keys() == expected.keys()
    for row, (logits, exit_layer) in expected.items():
        assert found[row][1] == exit_layer
        assert_near(found[row][0], logits)


@pytest.mark.slow
@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    rule=st.sampled_from(list(RULES)),
    slots=st.integers(1, 9),
    window=st.integers(1, 12),
    groups=st.sampled_from([1, 3, 6]),
    labels=st.sampled_from([1, 2, 3]),
    skips_padding=st.booleans(),
    is_recalibrated=st.booleans(),
    portions=st.lists(st.integers(0, 10), max_size=3),
    count=st.integers(1, 24),
    seed=st.integers(0, 10**6),
)
def test_slots_answer_as_those_of_the_model(
    rule, slots, window, groups, labels, skips_padding, is_recalibrated, portions, count, seed
):
    model = spread_model(
        seed=seed,
        **KEYS,
        thres_name=rule,
        exit_calibration=CALIBRATIONS[labels] if is_recalibrated else [],
        num_hidden_groups=groups,
        num_labels=labels,
        pooler_input="cls-mean",
        positions_skip_padding=skips_padding,
        relative_attention_num_buckets=32 if skips_padding else None,
    ).double()
    examples = random_examples(count, seed)
    with pytest.MonkeyPatch.context() as patch:
        recorder = graphs_on_cpu(patch)
        batcher = DepthBatcher(graphed_copy(model), slots, window)
        answers = answers_in_portions(batcher, examples, portions)
    assert sorted(x.row for x in answers) == list(range(count))
    found = {x.row: (x.logits, x.exit_layer) for x in answers}
    assert_same_answers(found, batched(model, examples, slots, window))
    assert recorder.replays > 0


@pytest.mark.parametrize("criterion", ["threshold", "sample"])
def test_slots_of_a_ponder_model(criterion, recorder):
    model = tiny_ponder(exit_criteria=criterion)
    draw = random.Random(0)
    examples = [
        ([2, 2, *ids], [0, 0, *types], *([draw.random()] if criterion == "sample" else []))
        for ids, types in random_examples(20, longest=20)
    ]
    assert_same_answers(batched(graphed_copy(model), examples, 4), batched(model, examples, 4))


def test_slots_are_captured_once_for_all_batchers(recorder):
    graphed = graphed_copy(spread_model())
    examples = random_examples(12)
    first = batched(graphed, examples, 4)
    records = recorder.records
    assert_same_answers(batched(graphed, examples, 4), first)
    assert recorder.records == records


def test_a_step_of_a_shared_layer_is_one_replay(recorder):
    """All slots at their own depths."""
    graphed = graphed_copy(spread_model(initializer_range=0.3))
    batched(graphed, random_examples(12), 4)
    batcher = DepthBatcher(graphed, 4, window=8)
    batcher.submit(random_examples(12))
    with torch.inference_mode():
        batcher.fill_slots()
        while batcher.running:
            replays = recorder.replays
            batcher.start_step(batcher.running)
            assert recorder.replays == replays + 1
            batcher.finish_step()
            batcher.fill_slots()


@pytest.mark.parametrize(
    "keys", [{}, {"num_hidden_groups": 3}, {"exit_layers": [2, 3, 6]}, {"num_exit_layers": 6}]
)
def test_longer_examples_widen_the_slots(keys, recorder, monkeypatch):
    monkeypatch.setattr(graphs, "CAPACITIES", (8, 16, 24))
    model = spread_model(initializer_range=0.3, **keys)
    examples = sorted(random_examples(20), key=lambda example: len(example[0]))
    found = batched(graphed_copy(model), examples, 4, window=1)
    assert_same_answers(found, batched(model, examples, 4, window=1))
    assert recorder.replays > 0


@pytest.mark.parametrize("at", [1, 4, 5, 6])
def test_a_capture_that_fails_among_slots_loses_no_example(at, recorder, caplog):
    """The examples in the slots go on as the model runs, from the layer where they are."""
    model = spread_model(initializer_range=0.3)
    examples = random_examples(20)
    graphed = graphed_copy(model)
    record = recorder.record

    def failing(body):
        if recorder.records == at:
            recorder.failures = [torch.OutOfMemoryError("out of memory")]
        return record(body)

    recorder.record = failing
    assert_same_answers(batched(graphed, examples, 4), batched(model, examples, 4))
    assert "not captured as CUDA graphs" in caplog.text


EDITS_AMONG_SLOTS = ["a weight in place", "a weight's data", "a new weight", "loaded weights"]


@pytest.mark.parametrize("edit", EDITS_AMONG_SLOTS)
def test_weights_that_change_among_slots_hold_for_whoever_enters_next(edit, recorder):
    model = spread_model(initializer_range=0.3)
    examples = random_examples(20)
    graphed = graphed_copy(copy.deepcopy(model))
    batcher = DepthBatcher(graphed, 4, window=8)
    batcher.submit(examples)
    answered = batcher.answers()
    before = [next(answered).row for _ in range(5)]
    has_entered = {*range(batcher.submitted)} - {example.row for example in batcher.waiting}
    EDITS[edit](graphed)
    EDITS[edit](model)
    after = {x.row: (x.logits, x.exit_layer) for x in answered}
    assert {*before, *after} == {*range(20)}
    expected = batched(model, examples, 4)
    later = {*range(20)} - has_entered
    assert len(later) > 5
    assert_same_answers({row: after[row] for row in later}, {row: expected[row] for row in later})


def test_batchers_at_a_time_do_not_share_slots(recorder):
    model = spread_model(initializer_range=0.3)
    graphed = graphed_copy(model)
    examples = [random_examples(10, seed=1), random_examples(10, seed=2)]
    batchers = [DepthBatcher(graphed, 3, window=4) for _ in examples]
    found: list[dict] = [{}, {}]
    for batcher, texts in zip(batchers, examples, strict=True):
        batcher.submit(texts)
    streams = [batcher.answers() for batcher in batchers]
    for _ in range(10):
        for answered, stream in zip(found, streams, strict=True):
            x = next(stream)
            answered[x.row] = x.logits, x.exit_layer
    for answered, texts in zip(found, examples, strict=True):
        assert_same_answers(answered, batched(model, texts, 3, 4))


def test_dropped_examples_leave_slots(recorder):
    model = spread_model(initializer_range=0.3)
    examples = random_examples(12)
    batcher = DepthBatcher(graphed_copy(model), 4, window=4)
    batcher.submit(examples)
    stream = batcher.answers()
    found = {x.row: (x.logits, x.exit_layer) for x in (next(stream), next(stream))}
    dropped = {x.row for x in batcher.slots[:2]}
    batcher.drop(dropped)
    found.update({x.row: (x.logits, x.exit_layer) for x in batcher.answers()})
    expected = batched(model, examples, 4, 4)
    assert_same_answers(found, {row: x for row, x in expected.items() if row not in dropped})


# On a GPU itself.

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(lengths: list[int]) -> dict[str, torch.Tensor]:
    return {name: x.cuda() for name, x in padded_batch(lengths, seed=len(lengths)).items()}


def assert_captured(graphed) -> None:
    assert graphed.graphs.entries
    assert not graphed.graphs.refused


@needs_gpu
@pytest.mark.parametrize("rule", RULES)
def test_on_a_gpu_every_rule_exits_as_the_model(rule):
    model = spread_model(**KEYS, thres_name=rule).cuda()
    graphed = graphed_copy(model)
    for lengths in ([9, 5, 12], [14, 16, 3, 9], [11, 7, 1, 2], [16], [6]):
        assert_same(graphed, model, on_gpu(lengths))
    assert_captured(graphed)


@needs_gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_on_a_gpu_every_architecture_answers_as_the_model_also_in_slots(shape):
    model = spread_model(**SHAPES[shape]).cuda()
    graphed = graphed_copy(model)
    for lengths in ([9, 5, 12], [14, 16, 3, 9], [6]):
        assert_same(graphed, model, on_gpu(lengths))
    examples = random_examples(40)
    assert_same_answers(batched(graphed, examples, 8), batched(model, examples, 8))
    assert_captured(graphed)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu_answers_of_a_shape_that_is_captured_are_equal_in_every_bit(dtype):
    model = spread_model().cuda()
    cast_layers(model, dtype)
    graphed = graphed_copy(model)
    for lengths in ([16], [16, 16], [24, 7]):
        logits, exit_layer = answers(model, on_gpu(lengths))
        graphed_logits, graphed_exits = answers(graphed, on_gpu(lengths))
        assert graphed_exits == exit_layer
        assert torch.equal(graphed_logits, logits)
    assert_captured(graphed)


@needs_gpu
@pytest.mark.parametrize("rule", ["bias_1", "learnt"])
def test_on_a_gpu_a_compiled_pass_answers_as_the_model_also_in_slots(rule):
    model = spread_model(**KEYS, thres_name=rule).cuda()
    graphed = graphed_copy(model, compile=True)
    for lengths in ([9, 5, 12], [14, 16, 3, 9], [6]):
        assert_same(graphed, model, on_gpu(lengths))
    examples = random_examples(20)
    assert_same_answers(batched(graphed, examples, 8), batched(model, examples, 8))
    assert_captured(graphed)


@needs_gpu
def test_on_a_gpu_a_shape_that_goes_leaves_the_others_right():
    model = spread_model().cuda()
    graphed = graphed_copy(model)
    for lengths in ([9], [20, 12], [24]):
        assert_same(graphed, model, on_gpu(lengths))
    graphed.graphs.entries.pop(next(iter(graphed.graphs.entries))).close()
    torch.cuda.empty_cache()
    for lengths in ([20, 12], [24], [9]):
        assert_same(graphed, model, on_gpu(lengths))
    assert_captured(graphed)


@needs_gpu
def test_on_a_gpu_a_capture_that_fails_leaves_the_process_as_it_was(caplog):
    model = spread_model().cuda()
    graphed = graphed_copy(model)

    def waiting_check(*args):
        decision = model.check_exit(*args)
        return decision._replace(answer=decision.answer + 0 * decision.answer.sum().item())

    graphed.check_exit = waiting_check
    assert_same(graphed, model, on_gpu([9]))
    assert "not captured as CUDA graphs" in caplog.text
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    del graphed.check_exit
    assert_same(graphed, model, on_gpu([24]))
    assert graphed.graphs.entries


@needs_gpu
def test_on_a_gpu_models_in_threads_capture_one_after_another():
    def answer(seed: int) -> None:
        model = spread_model(num_labels=2 + seed).cuda()
        graphed = graphed_copy(model)
        for length in range(2, 24, 2):
            assert_same(graphed, model, on_gpu([length]))
        assert_captured(graphed)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(answer, range(3)))
