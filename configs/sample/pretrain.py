"""Pre-train the bundled sample's weights: one pass of the shared layer takes one step of inference.

    python configs/sample/pretrain.py            writes model.safetensors beside this file

The premises are new ones of make_sample.py's kind. The targets are the answers of all people after
every pass: yes, no, or not known yet. A person in the premise who needs n steps knows after pass n,
the person in the hypothesis one pass later. Training begins with two passes and goes on with more,
since all are the same layer. It takes about two minutes of one core. Whether the hypothesis
follows, and when to exit, is left to fine-tuning.
"""

import random
import sys
from pathlib import Path

import torch
from make_sample import ANSWERS, PEOPLE, make_premise
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerBase

sys.path.insert(0, str(Path(__file__).parents[2]))

from modeling import ElbertForSequenceClassification, load_config, load_tokenizer
from modeling.depth import layer_states

HERE = Path(__file__).parent
STAGES = ((2, 250), (4, 200), (8, 200), (12, 50))  # (passes, optimiser steps)
BATCH, LEARNING_RATE, WARMUP, DECAY = 64, 2e-3, 100, 710  # the last two in steps
UNKNOWN = len(ANSWERS)  # the class of an answer that is not known yet
# Where answers are to be known: at whom or what each sentence of four pieces names, at the
# hypothesis' person.
PLACES = [*(3 + 4 * i for i in range(len(PEOPLE))), 2 + 4 * len(PEOPLE)]


def make_batch(tokenizer: PreTrainedTokenizerBase, draw: random.Random) -> tuple:
    """Inputs; answers (batch, places), an index of ANSWERS; passes after which each is known."""
    texts, answers, steps = [], [], []
    for _ in range(BATCH):
        (premise, said, needed), who = make_premise(draw), draw.choice(PEOPLE)
        texts.append((premise, f"{who} says {draw.choice(ANSWERS)}."))
        answers.append([ANSWERS.index(said[name]) for name in (*PEOPLE, who)])
        steps.append([*(needed[name] for name in PEOPLE), 1 + needed[who]])
    inputs = tokenizer(texts, return_token_type_ids=True, return_tensors="pt")
    del inputs["attention_mask"]  # all texts are of one length
    return inputs, torch.tensor(answers), torch.tensor(steps)


torch.manual_seed(0)
draw, tokenizer = random.Random(0), load_tokenizer(HERE)
model = ElbertForSequenceClassification(load_config(HERE)).train()
head = nn.Linear(model.config.hidden_size, len(ANSWERS) + 1)
parameters = [*model.albert.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
schedule = LambdaLR(optimizer, lambda n: min(1, (n + 1) / WARMUP) * max(0.02, 1 - n / DECAY))
for passes, steps in STAGES:
    model.config.num_hidden_layers = passes
    for number in range(1, steps + 1):
        inputs, answers, known = make_batch(tokenizer, draw)
        states = layer_states(model, model.embed(**inputs), None)
        logits = head(torch.stack([state[:, PLACES] for state in states]))
        after = torch.arange(1, passes + 1)[:, None, None]
        target = torch.where(known <= after, answers, UNKNOWN)
        loss = F.cross_entropy(logits.flatten(0, 2), target.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if number % 50 == 0:
            right = (logits.argmax(-1) == target).float().mean((1, 2))
            shown = " ".join(f"{100 * share:.1f}" for share in right)
            print(f"{passes} passes, step {number}: % right after each: {shown}", flush=True)
# The exit classifier, which was not trained, lies within ALBERT's encoder.
weights = model.albert.state_dict()
tensors = {f"albert.{name}": x for name, x in weights.items() if "exit" not in name}
save_file(tensors, HERE / "model.safetensors", {"format": "pt"})
