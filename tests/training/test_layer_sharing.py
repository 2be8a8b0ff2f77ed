"""Plain text as batches for a student that follows its teacher."""

import torch

from modeling import load_tokenizer
from tests.berts import plain_text, save, tiny_bert
from training.layer_sharing import TeacherText
from training.pretraining_settings import PlainText


def test_batches_hold_about_as_many_pieces_and_no_example_twice(tmp_path):
    text = plain_text(tmp_path)
    settings = PlainText(train_files=[text], max_seq_length=16)
    data = TeacherText(settings, load_tokenizer(save(tiny_bert(), tmp_path)), 3, 4)
    drafts = [draft for batch in data.training_drafts(0) for draft in batch]
    keys = {(draft.document, draft.number) for draft in drafts}
    assert len(keys) == len(drafts) > 50
    for batch in data.training_batches(0, 0):
        assert batch["input_ids"].numel() <= 4 * 16
        assert len(batch["input_ids"]) >= 4
        lengths = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).sum(1)
        ends = batch["input_ids"].gather(1, lengths[:, None] - 1)
        assert (ends == data.vocabulary.sep).all()
        assert (batch["input_ids"][:, 0] == data.vocabulary.cls).all()
