"""Ponder models: the halting distribution, the criteria, loading, and what the model refuses."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.nn import functional as F
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForSequenceClassification,
    AlbertModel,
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
)

from modeling import (
    ElbertConfig,
    ElbertForSequenceClassification,
    GeneralizedGeometricDist,
    HaltingRule,
    PonderAlbertClassifier,
    PonderAlbertConfig,
    PonderClassificationLoss,
    RegularizationLoss,
    UserError,
    scan_halting,
    with_halting_token,
)
from modeling.depth import layer_states
from modeling.depth_batching import DepthBatcher
from modeling.keys import PONDER_KEYS
from modeling.loading.configs import load_config
from modeling.ponder.distribution import prior

SIZES = {
    "vocab_size": 40,
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
}
WORDS = "the cat sat on mat a dog ran my cool new text".split()
PROBABILITIES = st.lists(
    st.one_of(st.sampled_from([0.0, 1.0, 1e-30, 1e-7, 1 - 6e-8]), st.floats(0, 1, width=32)),
    min_size=1,
    max_size=12,
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=24,
    )


def tiny_model(seed: int = 0, spread: float = 1.0, **keys) -> PonderAlbertClassifier:
    """Random weights with halting probabilities that differ between examples and layers."""
    torch.manual_seed(seed)
    model = PonderAlbertClassifier(PonderAlbertConfig(**{**SIZES, **keys}), tiny_tokenizer())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and "LayerNorm" not in name and "layer_norm" not in name:
                parameter.normal_(std=0.3)
        model.ponder[-1].weight.mul_(spread)
    return model.eval()


def random_batch(lengths: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Token ids with the second [CLS], padded to the longest of `lengths`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    ids = torch.randint(4, 40, shape, generator=generator)
    ids[:, :2] = 2
    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    segments = torch.randint(0, 2, shape, generator=generator) * mask
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": segments}


def one_of(batch: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    """Example `row` alone, without padding."""
    length = int(batch["attention_mask"][row].sum())
    return {name: tensor[row : row + 1, :length] for name, tensor in batch.items()}


def direct_pmf(stops: list[float]) -> list[float]:
    """p_n = λ_n Π (1 − λ_j), multiplied out in Python's double precision."""
    alive, pmf = 1.0, []
    for stop in stops:
        pmf.append(alive * stop)
        alive *= 1 - stop
    return pmf


# --- the distribution


@given(PROBABILITIES)
def test_pmf_is_the_product_formula_for_every_lambda_0_and_1_included(stops):
    dist = GeneralizedGeometricDist(torch.tensor([stops]))
    expected = torch.tensor([direct_pmf(torch.tensor(stops).tolist())])
    torch.testing.assert_close(dist.pmf(normalize=False), expected, atol=1e-6, rtol=1e-5)


@given(PROBABILITIES)
def test_normalised_pmf_sums_to_one_and_keeps_the_proportions(stops):
    pmf = GeneralizedGeometricDist(torch.tensor([stops])).pmf()
    assert pmf.sum().item() == pytest.approx(1, abs=1e-5)
    expected = direct_pmf(torch.tensor(stops).tolist())
    total = sum(expected)
    if total > 1e-20:
        expected = torch.tensor([[p / total for p in expected]])
        torch.testing.assert_close(pmf, expected, atol=1e-5, rtol=1e-4)


def test_one_lambda_for_all_is_scipys_geometric_distribution():
    pmf = GeneralizedGeometricDist(0.3, max_steps=9, batch_size=2).pmf(normalize=False)
    expected = torch.from_numpy(stats.geom(0.3).pmf(range(1, 10))).float()
    torch.testing.assert_close(pmf, expected.expand(2, 9))


@given(PROBABILITIES, st.integers(0, 99))
def test_kl_is_the_direct_sum_never_negative_and_zero_for_equals(stops, seed):
    stops = torch.tensor([stops])
    others = torch.rand(stops.shape, generator=torch.Generator().manual_seed(seed))
    other = GeneralizedGeometricDist(others.clamp(0.05, 0.95))
    dist = GeneralizedGeometricDist(stops)
    assert dist.kl_div(dist).item() == pytest.approx(0, abs=1e-6)
    # kl_div(target) is KL(target ‖ self), summed here in double precision with 0 · log 0 = 0.
    p, q = dist.pmf().double(), other.pmf().double()
    direct = (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum().item()
    assert other.kl_div(dist).item() == pytest.approx(direct, abs=1e-4)
    assert other.kl_div(dist).item() >= -1e-6


@given(PROBABILITIES)
def test_gradients_are_finite_for_every_lambda_0_and_1_included(stops):
    stops = torch.tensor([stops], requires_grad=True)
    dist = GeneralizedGeometricDist(stops)
    target = GeneralizedGeometricDist(0.2, stops.shape[1], 1)
    (target.kl_div(dist) + dist.pmf()[0, 0] + dist.expected_steps().sum()).backward()
    assert stops.grad.isfinite().all()


@pytest.mark.parametrize("logit", [-300.0, -90.0, 0.0, 90.0, 300.0])
def test_a_saturated_halting_head_still_gets_a_finite_gradient(logit):
    logits = torch.full((2, 5), logit, requires_grad=True)
    dist = GeneralizedGeometricDist.from_logits(logits)
    loss = GeneralizedGeometricDist(0.2, 5, 2).kl_div(dist)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    torch.testing.assert_close(dist.pmf().sum(1), torch.ones(2))


def test_expected_steps_of_a_long_geometric_distribution_are_one_over_lambda():
    dist = GeneralizedGeometricDist(0.25, max_steps=200, batch_size=3)
    torch.testing.assert_close(dist.expected_steps(), torch.full((3,), 4.0))


@pytest.mark.parametrize("layers", [6, 43])
def test_the_normal_prior_is_palberts_density_far_into_its_tail(layers):
    config = PonderAlbertConfig(
        **{**SIZES, "num_hidden_layers": layers}, prior_type="normal", target_halt_probability=0.25
    )
    dist = prior(config, 2, layers, torch.device("cpu"))
    log_density = -((torch.arange(1, layers + 1).double() - 4) ** 2)
    expected = (log_density - log_density.logsumexp(0)).float().expand(2, layers)
    torch.testing.assert_close(dist.log_pmf(), expected, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("prior_type", ["geometric", "normal"])
@pytest.mark.parametrize("halt_normalization", ["renormalise", "last_layer"])
def test_both_distributions_sum_to_one_unnormalised_only_where_the_last_layer_takes_the_rest(
    halt_normalization, prior_type
):
    model = tiny_model(halt_normalization=halt_normalization, prior_type=prior_type).train()
    out = model(**random_batch([7, 9]))
    for dist in (out.model_halt_dist, out.target_halt_dist):
        torch.testing.assert_close(dist.pmf().sum(1), torch.ones(2))
    left = 1 - out.model_halt_dist.pmf(normalize=False).sum(1)
    if halt_normalization == "last_layer":
        torch.testing.assert_close(left, torch.zeros(2), atol=1e-6, rtol=0)
        assert (out.halt_probabilities[:, -1] == 1).all()
    else:
        assert (left > 1e-4).all()


# --- the losses


def test_classification_loss_is_the_mean_over_layers_and_batch_weighted_by_p():
    out = tiny_model(num_labels=3).train()(**random_batch([5, 9, 7, 8]))
    labels = [0, 2, 1, 2]
    losses = PonderClassificationLoss(kl_penalty_factor=0.1)(out, labels)
    pmf, total = out.model_halt_dist.pmf(), 0.0
    for layer in range(6):
        for row in range(4):
            log_p = out.logits[layer, row].log_softmax(0)[labels[row]]
            total += -log_p.item() * pmf[row, layer].item() / 24
    assert losses["weighted_ce_loss"].item() == pytest.approx(total, rel=1e-4)
    kl = out.target_halt_dist.kl_div(out.model_halt_dist).item()
    assert losses["kl_loss"].item() == pytest.approx(0.1 * kl, rel=1e-4)
    assert losses["total_loss"].item() == pytest.approx(total + 0.1 * kl, rel=1e-4)


def test_regression_weighs_squared_errors():
    out = tiny_model(num_labels=1).train()(**random_batch([5, 9]))
    labels = torch.tensor([0.5, 3.0])
    loss = PonderClassificationLoss(0.0)(out, labels)["total_loss"]
    errors = (out.logits[..., 0] - labels) ** 2  # (layers, batch)
    torch.testing.assert_close(loss, (errors * out.model_halt_dist.pmf().T).mean())


def test_the_regularisation_of_the_parity_model_survives_a_probability_of_zero():
    p = torch.tensor([[1.0], [0.0], [0.0]], requires_grad=True)
    loss = RegularizationLoss(lambda_p=0.2, max_steps=3)(p)
    loss.backward()
    assert loss.isfinite()
    assert p.grad.isfinite().all()


def test_a_new_model_halts_as_its_prior_does():
    torch.manual_seed(0)
    model = PonderAlbertClassifier(AlbertConfig(**SIZES), target_halt_probability=0.1).train()
    out = model(**random_batch([6, 9, 12]))
    assert out.target_halt_dist.kl_div(out.model_halt_dist) < 1e-3


# --- calling it


def test_the_published_snippets_run_as_written(tmp_path):
    checkpoint = save_albert(tmp_path, AlbertModel)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(checkpoint)

    config = AlbertConfig(**SIZES)
    model = PonderAlbertClassifier(config, tokenizer, target_halt_probability=0.2)
    model = PonderAlbertClassifier.from_pretrained(
        checkpoint, num_hidden_layers=43, target_halt_probability=0.2
    )
    texts = ["The cat sat on the mat"]
    labels = [0]
    optimizer = torch.optim.Adam(model.parameters())
    criterion = PonderClassificationLoss(kl_penalty_factor=1e-2)
    model.train()
    prediction = model(texts)
    loss = criterion(prediction, labels)["total_loss"]
    loss.backward()
    optimizer.step()
    assert prediction["logits"].shape == (43, 1, 2)

    model.eval()
    torch.manual_seed(0)
    passes = {model(["My cool new text"])["passes"] for _ in range(30)}
    assert len(passes) > 3  # stochastic
    assert passes <= set(range(1, 44))


def test_texts_are_tokenised_with_a_second_cls():
    model = tiny_model(exit_criteria="threshold", exit_thres=1.0)
    ids, mask, segments = model.tokenize(["the cat", "a dog ran on the mat"])
    assert ids.tolist() == [[2, 2, 4, 5, 3, 0, 0, 0, 0], [2, 2, 9, 10, 11, 7, 4, 8, 3]]
    assert mask.sum(1).tolist() == [5, 9]
    assert segments.sum() == 0
    torch.testing.assert_close(
        model(["the cat", "a dog ran on the mat"]).answer, model(ids, mask, segments).answer
    )


@pytest.mark.parametrize("pair", [tuple, list])
def test_a_pair_of_lists_is_one_text_with_two_segments(pair):
    ids, mask, segments = tiny_model().tokenize(pair([["the cat", "a"], ["sat", "on mat"]]))
    assert ids.tolist() == [[2, 2, 4, 5, 3, 6, 3], [2, 2, 9, 3, 7, 8, 3]]
    assert segments.tolist() == [[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1]]
    assert mask.all()


def test_a_long_text_is_cut_to_the_positions_that_the_model_has():
    ids, _, _ = tiny_model().tokenize(["cat " * 100])
    assert ids.shape == (1, 24)
    assert ids[0, [0, 1, -1]].tolist() == [2, 2, 3]


def test_the_halting_token_is_inserted_in_lists_and_tensors():
    assert with_halting_token([2, 7, 3]) == [2, 2, 7, 3]
    assert with_halting_token(torch.tensor([[2, 7, 3], [2, 3, 0]])).tolist() == [
        [2, 2, 7, 3],
        [2, 2, 3, 0],
    ]


def test_criterion_accepts_an_answer_of_early_exit():
    """Examples that halted earlier have their last answer and no probability in later layers."""
    model = tiny_model(exit_criteria="threshold", exit_thres=0.3)
    out = model(**random_batch([5, 9, 12, 7, 6]))
    assert out.exit_layer.unique().numel() > 1
    assert out.passes == out.exit_layer.max() == len(out.logits) == out.halt_probabilities.shape[1]
    for row, layer in enumerate(out.exit_layer.tolist()):
        assert (out.logits[layer - 1 :, row] == out.answer[row]).all()
        assert out.model_halt_dist.pmf()[row, layer:].sum() < 1e-6
    assert PonderClassificationLoss()(out, [0, 1, 0, 1, 1])["total_loss"].isfinite()


# --- the criteria


def test_sampled_halting_layers_follow_the_pmf():
    """20,000 draws for one text: chi-square against p_n, the last layer taking what is left."""
    model = tiny_model(seed=6, halt_normalization="last_layer")
    example = random_batch([8], seed=5)
    full = model(**example, output_all_exits=True)
    expected = torch.tensor(direct_pmf(full.halt_probabilities[0].tolist()))
    assert expected.sum().item() == pytest.approx(1, abs=1e-5)
    assert (expected * 20_000 > 5).all()
    model.generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        out = model(**{name: tensor.expand(20_000, -1) for name, tensor in example.items()})
    counts = torch.bincount(out.exit_layer, minlength=7)[1:]
    frequencies = expected.double() / expected.double().sum() * 20_000
    assert stats.chisquare(counts.numpy(), frequencies.numpy()).pvalue > 0.01


def test_a_seeded_generator_makes_sampling_repeatable():
    model, batch = tiny_model(), random_batch([8] * 20)
    runs = []
    for seed in (0, 0, 1):
        model.generator = torch.Generator().manual_seed(seed)
        runs.append(model(**batch).exit_layer)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_examples_draw_the_same_numbers_in_whatever_portions():
    model = tiny_model()
    model.generator = torch.Generator().manual_seed(7)
    whole = model.draw(50)
    model.generator = torch.Generator().manual_seed(7)
    assert torch.equal(whole, torch.cat([model.draw(n) for n in (1, 16, 30, 3)]))


@pytest.mark.parametrize("exit_thres", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_threshold_exits_at_the_first_layer_whose_cdf_exceeds_it(exit_thres):
    model = tiny_model(exit_criteria="threshold", exit_thres=exit_thres)
    batch = random_batch([6, 9, 12, 5, 20, 11])
    halts = model(**batch, output_all_exits=True).halt_probabilities.tolist()
    out = model(**batch)
    for row, stops in enumerate(halts):
        cdf = torch.tensor(direct_pmf(stops)).double().cumsum(0)
        above = [layer for layer, mass in enumerate(cdf.tolist(), 1) if mass > exit_thres]
        assert out.exit_layer[row] == (above or [6])[0]
    assert torch.equal(out.exit_layer, model(**batch).exit_layer)


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("halt_normalization", ["renormalise", "last_layer"])
def test_expectation_is_the_mean_of_all_layers_answers_under_p(halt_normalization, num_labels):
    keys = {"halt_normalization": halt_normalization, "num_labels": num_labels}
    model = tiny_model(exit_criteria="expectation", **keys)
    out = model(**random_batch([6, 9, 12]))
    pmf = out.model_halt_dist.pmf().T[..., None]  # (layers, batch, 1)
    if num_labels == 1:
        expected = (pmf * out.logits).sum(0)
    else:
        expected = (pmf * out.logits.softmax(-1)).sum(0).log()
    torch.testing.assert_close(out.answer, expected, atol=1e-5, rtol=1e-5)
    assert (out.exit_layer == 6).all()


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(2, 24), min_size=1, max_size=9),
    criterion=st.sampled_from(["sample", "threshold", "expectation"]),
    arch=st.sampled_from(["mlp", "linear", "linear_cat", "linear_diff"]),
    seed=st.integers(0, 1000),
)
def test_an_examples_answer_does_not_depend_on_its_batch(lengths, criterion, arch, seed):
    model = tiny_model(seed, exit_criteria=criterion, lambda_layer_arch=arch)
    batch = random_batch(lengths, seed)
    draws = torch.rand(len(lengths), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        together = model(**batch, draws=draws)
        for row in range(len(lengths)):
            alone = model(**one_of(batch, row), draws=draws[row : row + 1])
            assert alone.exit_layer.item() == together.exit_layer[row].item()
            torch.testing.assert_close(alone.answer[0], together.answer[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("arch", ["mlp", "linear_cat"])
@pytest.mark.parametrize("criterion", ["sample", "threshold", "expectation"])
def test_slots_at_different_depths_may_share_a_step(criterion, arch):
    """Example B enters two steps after A; both get the answers that they get alone."""
    model = tiny_model(exit_criteria=criterion, lambda_layer_arch=arch, exit_thres=0.9)
    batch, draws = random_batch([8, 8]), torch.tensor([0.95, 0.6])
    rule, found = model.exit_rule(), {}
    with torch.no_grad():
        embedded = model.embed(batch["input_ids"], batch["token_type_ids"])
        hidden, state = embedded[:1], model.start(1, draws[:1])
        for number in range(8):
            if number == 2:
                hidden = torch.cat((hidden, embedded[1:]))
                state = {k: torch.cat((state[k], v)) for k, v in model.start(1, draws[1:]).items()}
            hidden = model.layer_pass(hidden, None, 0)
            answer, done, state = model.check_exit(rule, hidden, None, 0, state)
            for row in done.nonzero()[:, 0].tolist():
                found.setdefault(row, (state["depth"][row].item(), answer[row]))
        alone = model(**batch, draws=draws)
    for row in (0, 1):
        assert found[row][0] == alone.exit_layer[row]
        torch.testing.assert_close(found[row][1], alone.answer[row], atol=1e-5, rtol=1e-5)


def test_halted_examples_take_no_more_layer_passes():
    model, rows = tiny_model(exit_criteria="threshold", exit_thres=0.3), []
    model.albert_layer.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    out = model(**random_batch([5, 9, 12, 7, 6]))
    assert sum(rows) == out.exit_layer.sum() < 5 * 6


@pytest.mark.parametrize("arch", ["mlp", "linear_cat"])
@pytest.mark.parametrize("criterion", ["sample", "threshold", "expectation"])
@pytest.mark.parametrize("slots", [1, 3, 16])
def test_depth_batching_gives_the_answers_of_one_at_a_time(slots, criterion, arch):
    model = tiny_model(exit_criteria=criterion, exit_thres=0.3, lambda_layer_arch=arch)
    batch, rows = random_batch([6, 9, 12, 5, 20, 11, 8, 7]), []
    hook = model.albert_layer.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    examples = [one_of(batch, row) for row in range(8)]
    draws = torch.linspace(0.95, 0.05, 8)
    batcher = DepthBatcher(model, slots=slots, window=4)
    batcher.submit(
        (x["input_ids"][0].tolist(), x["token_type_ids"][0].tolist(), draw)
        for x, draw in zip(examples, draws.tolist(), strict=True)
    )
    answers = list(batcher.in_order())
    hook.remove()
    assert sum(rows) == sum(answer.exit_layer for answer in answers)
    with torch.no_grad():
        for answer, example, draw in zip(answers, examples, draws, strict=True):
            alone = model(**example, draws=draw[None])
            assert answer.exit_layer == alone.exit_layer.item()
            torch.testing.assert_close(answer.logits, alone.answer[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("criterion", ["sample", "threshold", "expectation"])
def test_a_scan_of_recorded_layers_gives_what_stepping_gives(criterion):
    model = tiny_model(exit_criteria=criterion)
    batch, draws = random_batch([6, 9, 12, 5, 20]), torch.linspace(0.05, 0.95, 5)
    record = model(**batch, output_all_exits=True, draws=draws)
    for exit_thres in (0.1, 0.5, 0.8):
        model.config.exit_thres = exit_thres
        stepped = model(**batch, draws=draws)
        rule = HaltingRule(criterion, exit_thres)
        answer, exit_layer = scan_halting(rule, record.logits, record.halt_probabilities, draws)
        assert torch.equal(exit_layer, stepped.exit_layer)
        torch.testing.assert_close(answer, stepped.answer, atol=1e-5, rtol=1e-5)


def test_many_thresholds_scan_at_once():
    model, thresholds = tiny_model(exit_criteria="threshold"), [0.0, 0.25, 0.5, 0.75, 1.0]
    record = model(**random_batch([6, 9, 12, 5]), output_all_exits=True)
    recorded = record.logits, record.halt_probabilities
    rule = HaltingRule("threshold", torch.tensor(thresholds)[:, None])
    answers, exit_layers = scan_halting(rule, *recorded)
    assert answers.shape == (5, 4, 2)
    for k, threshold in enumerate(thresholds):
        answer, exit_layer = scan_halting(HaltingRule("threshold", threshold), *recorded)
        assert torch.equal(exit_layers[k], exit_layer)
        assert torch.equal(answers[k], answer)


# --- the halting head


@pytest.mark.parametrize("arch", ["linear", "linear_cat", "linear_diff"])
def test_palberts_head_sees_this_and_the_previous_layer_as_its_name_says(arch):
    """Recomputed layer by layer with plain functions; the state before the first layer is 0."""
    model = tiny_model(lambda_layer_arch=arch, num_lambda_layers=3)
    batch = random_batch([9, 9])
    linears = [module for module in model.ponder if isinstance(module, torch.nn.Linear)]
    assert len(linears) == 4  # three tanh layers and the output
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    previous, expected = torch.zeros(2, 16), []
    for state in layer_states(model, hidden, None):
        now = state[:, 1]
        features = {"linear": now, "linear_diff": now - previous}.get(
            arch, torch.cat((now, previous), 1)
        )
        for linear in linears[:-1]:
            features = torch.tanh(F.linear(features, linear.weight, linear.bias))
        expected.append(F.linear(features, linears[-1].weight, linears[-1].bias)[:, 0].sigmoid())
        previous = now
    found = model(**batch, output_all_exits=True).halt_probabilities
    torch.testing.assert_close(found, torch.stack(expected, 1), atol=1e-5, rtol=1e-5)


def test_the_classifier_reads_the_first_cls_and_the_halting_head_the_second():
    model, batch = tiny_model(), random_batch([7, 7])
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    state = model.start(2)
    moved = hidden.clone()
    moved[:, 1] += 1.0
    first = model.check_exit(model.exit_rule(), hidden, None, 0, state)
    second = model.check_exit(model.exit_rule(), moved, None, 0, state)
    assert torch.equal(first.answer, second.answer)
    assert not torch.equal(first.state["halt_probability"], second.state["halt_probability"])


# --- weights and files


def save_albert(path, kind, **keys):
    torch.manual_seed(0)
    kind(AlbertConfig(**{**SIZES, **keys})).save_pretrained(path / "albert")
    return path / "albert"


@pytest.mark.parametrize("kind", [AlbertModel, AlbertForMaskedLM, AlbertForSequenceClassification])
def test_layers_of_an_hf_checkpoint_compute_what_hf_computes_at_any_depth(tmp_path, kind):
    checkpoint = save_albert(tmp_path, kind)
    model = PonderAlbertClassifier.from_pretrained(checkpoint, num_hidden_layers=9)
    hf = AlbertModel.from_pretrained(checkpoint, num_hidden_layers=9).eval()
    batch = random_batch([9, 14])
    with torch.no_grad():
        expected = hf(**batch, output_hidden_states=True).hidden_states
        hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
        mask = batch["attention_mask"].bool()[:, None, None]
        real = batch["attention_mask"].bool()
        for state, theirs in zip(layer_states(model, hidden, mask), expected[1:], strict=True):
            torch.testing.assert_close(state[real], theirs[real], atol=1e-5, rtol=1e-5)


def test_an_elbert_checkpoint_gives_its_encoder_and_not_its_entropy_threshold(tmp_path):
    torch.manual_seed(0)
    elbert = ElbertForSequenceClassification(ElbertConfig(**SIZES, exit_thres=0.05, cnt_thres=2))
    elbert.save_pretrained(tmp_path)
    model = PonderAlbertClassifier.from_pretrained(tmp_path)
    layer = elbert.albert.encoder.albert_layer_groups[0].albert_layers[0]
    assert torch.equal(model.albert_layer.ffn.weight, layer.ffn.weight)
    assert model.config.exit_thres == 0.5


def test_a_saved_model_comes_back_with_its_tokenizer_and_settings(tmp_path):
    model = tiny_model(exit_criteria="threshold", exit_thres=0.7, lambda_layer_arch="linear_cat")
    model.config.target_halt_probability = 0.15
    model.save_pretrained(tmp_path)
    for loaded in (
        PonderAlbertClassifier.from_pretrained(tmp_path),
        AutoModelForSequenceClassification.from_pretrained(tmp_path),
    ):
        assert isinstance(loaded, PonderAlbertClassifier)
        assert loaded.config.exit_keys() == {"exit_criteria": "threshold", "exit_thres": 0.7}
        assert loaded.config.target_halt_probability == 0.15
        texts = ["the cat sat", "a dog"]
        assert torch.equal(loaded(texts).answer, model(texts).answer)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, loaded.state_dict()[name])
    assert isinstance(AutoConfig.from_pretrained(tmp_path), PonderAlbertConfig)


def test_state_dict_names_are_the_published_ones():
    names = set(tiny_model().state_dict())
    heads = {
        f"{head}.{i}.{part}"
        for head in ("classifier", "ponder")
        for i in (0, 2)
        for part in ("weight", "bias")
    }
    assert heads <= names
    rest = {name.split(".")[0] for name in names - heads}
    assert rest == {"embeddings", "embedding_hidden_mapping_in", "albert_layer"}
    assert tiny_model().ponder[0].out_features == 128


def test_the_configuration_file_holds_every_key_with_its_default():
    path = Path(__file__).parents[2] / "configs" / "ponder_albert_base.json"
    values = json.loads(path.read_text())
    defaults = {name: key.default for name, key in PONDER_KEYS.items()}
    assert {name: values[name] for name in PONDER_KEYS} == {
        **defaults,
        "model_name": "ponder_albert_base",
    }
    config = load_config(path, None, PonderAlbertConfig, num_hidden_layers=43)
    assert (config.hidden_size, config.num_hidden_layers) == (768, 43)


def test_the_configuration_is_read_at_every_call():
    model, batch = tiny_model(exit_criteria="threshold", exit_thres=0.0), random_batch([9, 9])
    assert (model(**batch).exit_layer == 1).all()
    model.config.exit_thres = 1.0
    assert (model(**batch).exit_layer == 6).all()


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
def test_gradient_checkpointing_changes_no_gradient():
    gradients = []
    for checkpointing in (False, True):
        model = tiny_model().train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**random_batch([9, 5]), labels=torch.tensor([0, 1])).loss.backward()
        gradients.append(model.albert_layer.ffn.weight.grad)
    torch.testing.assert_close(*gradients)


def test_a_model_can_be_copied():
    model = tiny_model()
    model.generator = torch.Generator().manual_seed(0)
    twin, batch = copy.deepcopy(model), random_batch([9])
    draws = torch.tensor([0.5])
    assert torch.equal(twin(**batch, draws=draws).answer, model(**batch, draws=draws).answer)


@pytest.mark.parametrize("normalization", ["renormalise", "last_layer"])
def test_training_reduces_the_loss_and_gives_every_parameter_a_gradient(normalization):
    model = tiny_model(halt_normalization=normalization, kl_penalty_factor=0.01).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batch, labels = random_batch([9] * 16), torch.arange(16) % 2
    losses = []
    for _ in range(40):
        loss = model(**batch, labels=labels).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]


# --- what is refused


@pytest.mark.parametrize("value", [0, -0.1, 1.5, math.nan, "0.2", True])
def test_target_halt_probability_outside_0_to_1_is_an_error(value):
    for make in (
        lambda: PonderAlbertClassifier(AlbertConfig(**SIZES), None, value),
        lambda: PonderAlbertConfig(**SIZES, target_halt_probability=value),
    ):
        with pytest.raises(UserError, match="target_halt_probability = "):
            make()


def test_target_halt_probability_of_one_is_allowed():
    model = PonderAlbertClassifier(AlbertConfig(**SIZES), None, 1).train()
    out = model(**random_batch([5, 6]), labels=torch.tensor([0, 1]))
    out.loss.backward()
    assert out.loss.isfinite()


def test_a_negative_kl_penalty_factor_is_an_error():
    with pytest.raises(UserError, match=r"kl_penalty_factor = -0\.1: allowed is a number of"):
        PonderClassificationLoss(kl_penalty_factor=-0.1)
    with pytest.raises(UserError, match="kl_penalty_factor"):
        PonderAlbertConfig(**SIZES, kl_penalty_factor=-1)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "list of texts is empty"),
        (([], []), "list of texts is empty"),
        ((["the cat"], ["sat", "ran"]), "1 first texts and 2 second"),
        ("the cat", r"write \['the cat'\]"),
        ((["the cat"],), "pair of lists, got 1 parts"),
        (("the cat", "a dog"), "pair of lists"),
    ],
)
def test_texts_that_are_no_batch_are_an_error(texts, message):
    with pytest.raises(UserError, match=message):
        tiny_model()(texts)


def test_texts_without_a_tokenizer_are_an_error():
    model = PonderAlbertClassifier(AlbertConfig(**SIZES))
    with pytest.raises(UserError, match="no tokenizer"):
        model(["the cat"])


def test_ids_too_short_for_the_second_cls_are_an_error():
    with pytest.raises(UserError, match="with_halting_token"):
        tiny_model()(torch.tensor([[2]]))


@pytest.mark.parametrize("key", ["num_hidden_groups", "inner_group_num"])
def test_a_checkpoint_of_several_different_layers_is_an_error(tmp_path, key):
    checkpoint = save_albert(tmp_path, AlbertModel, **{key: 2})
    with pytest.raises(
        UserError, match=rf"config.json: {key} = 2: allowed is 1, since a ponder model applies one"
    ):
        PonderAlbertClassifier.from_pretrained(checkpoint)


def test_a_bert_checkpoint_is_an_error_that_says_why(tmp_path):
    sizes = {k: v for k, v in SIZES.items() if k != "embedding_size"}
    BertModel(BertConfig(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="model_type = 'bert': a ponder model applies one layer"):
        PonderAlbertClassifier.from_pretrained(tmp_path)


def test_weights_of_another_shape_are_an_error(tmp_path):
    checkpoint = save_albert(tmp_path, AlbertModel)
    config = checkpoint / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "intermediate_size": 64}))
    with pytest.raises(UserError, match=r"albert_layer\.ffn.*shape"):
        PonderAlbertClassifier.from_pretrained(checkpoint)


def test_a_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"holds no config\.json"):
        PonderAlbertClassifier.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("exit_criteria", "median"),
        ("exit_thres", 1.2),
        ("prior_type", "uniform"),
        ("halt_normalization", "none"),
        ("lambda_layer_arch", "rnn"),
        ("num_lambda_layers", 0),
    ],
)
def test_a_setting_out_of_range_names_the_key_and_what_is_allowed(key, value):
    with pytest.raises(UserError, match=rf"{key} = .*: allowed is "):
        PonderAlbertConfig(**SIZES, **{key: value})
