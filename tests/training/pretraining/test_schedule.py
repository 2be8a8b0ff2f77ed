"""The published schedule of pre-training."""

import sys
from dataclasses import replace

import pytest

import run_pretraining
from training.pretraining.schedule import Phase, phases_of, rate_at

SHORT, LONG = Phase(10, 128, 64, 64, 1.0, 4), Phase(4, 512, 16, 256, 0.5, 2)


@pytest.mark.parametrize(
    ("step", "share"),
    [(0, 0), (1, 0.25), (4, 1), (7, 0.5), (9, 1 / 6), (10, 0), (11, 0.25), (12, 0.5), (13, 0.25)],
)
def test_each_phase_warms_up_and_decays(step, share):
    assert rate_at([SHORT, LONG], step) == pytest.approx(share)


def test_the_defaults_are_the_published_schedule(monkeypatch):
    monkeypatch.setattr(sys, "argv", "x --do_train --train_files t --output_dir o".split())
    settings = run_pretraining.read_settings()
    schedule, length = settings.training, settings.text.max_seq_length
    short, long = phases_of(schedule, length, processes=1)
    assert short == (112_500, 128, 64, 64, 1.0, 3125)
    assert long[:4] == (12_500, 512, 16, 256)
    assert schedule.learning_rate * long.rate == pytest.approx(2.75e-4)
    assert long.warmup_steps == 312
    for processes in (2, 8):  # as many examples a step
        fewer = replace(schedule, gradient_accumulation_steps=64 // processes)
        for phase in phases_of(fewer, length, processes):
            assert phase.batch_size * phase.accumulation == 4096
    assert schedule.optimizer == "lamb"
    assert settings.text.max_predictions_per_seq == 20
