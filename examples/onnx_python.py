"""Classify texts with an ONNX file of any mode. Neither PyTorch nor this project is needed.

    python examples/onnx_python.py sst2.onnx out/sst2/tokenizer.json "A moving, funny film."
    python examples/onnx_python.py rte.onnx out/rte/tokenizer.json "It rains." "It is wet." \\
        --set exit_thres=0.3

In a program of your own, copy this file and use its class:

    from onnx_python import FileClassifier

    classify = FileClassifier("sst2.onnx", "out/sst2/tokenizer.json", exit_thres=0.3)
    classify(["A moving, funny film.", "Not bad at all!"])  # a list of answers

Needs: pip install onnxruntime tokenizers. Where PyTorch is installed,
`elbert.Classifier(folder, onnx=FILE)` does the same, and more.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


class FileClassifier:
    """A classifier: an ONNX file and its tokenizer.

    Args:
        file: ONNX file that export_onnx.py has written.
        tokenizer: tokenizer.json in the folder of its model. A tokenizer_config.json beside it says
            at how many tokens a text is cut.
        settings: exit keys by name, for example exit_thres, in place of those in the file.

    Attributes:
        facts: what the file says about its model, by name: labels, problem_type, rule.
        settings: exit keys that are inputs of the file, by name; they may be changed.
    """

    def __init__(self, file: str | Path, tokenizer: str | Path, **settings: float) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of inputs that have defaults
        self.session = onnxruntime.InferenceSession(str(file), options)
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.facts = {name: json.loads(value) for name, value in metadata.items()}
        # A rule's numbers are inputs with defaults, or plain inputs (--no_defaults).
        inputs = [*self.session.get_inputs(), *self.session.get_overridable_initializers()]
        self.types = {
            value.name: np.int64 if value.type == "tensor(int64)" else np.float32
            for value in inputs
        }
        rule = self.facts["rule"]
        self.settings = {name: rule[name] for name in self.types if name in rule}
        unknown = settings.keys() - self.settings.keys()
        if unknown:
            raise ValueError(
                f"no inputs of {file}: {', '.join(sorted(unknown))}; it has "
                f"{', '.join(self.settings) or 'none'}. Export the model again for other keys"
            )
        self.settings |= settings

        self.repeats = self.facts["cls_tokens"] - 1  # a ponder model reads [CLS] twice
        length = self.facts.get("max_position_embeddings", 512)
        config_file = Path(tokenizer).with_name("tokenizer_config.json")
        if config_file.exists():
            length = min(
                length, json.loads(config_file.read_text()).get("model_max_length", length)
            )
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        self.tokenizer.enable_truncation(length - self.repeats)
        self.tokenizer.enable_padding()

    def __call__(self, texts: list[str | tuple[str, str]], batch_size: int = 8) -> list[dict]:
        """Classify texts, or pairs of texts.

        batch_size: number of texts that share a run, which takes as many layers as the deepest of
            them needs.

        Returns a dict for each text, with its `label` and `score`, a probability. A model of
        several labels gives `labels` and `scores`, those above 0.5. A model that predicts a value
        gives the `score` alone. Each dict has the `exit_layer`, or with adaptive depth `updates`,
        the mean over the tokens.
        """
        # Neighbours in length share a batch, which saves padding.
        order = sorted(range(len(texts)), key=lambda number: sum(map(len, texts[number])))
        answers = {}
        for start in range(0, len(texts), batch_size):
            numbers = order[start : start + batch_size]
            batch = self.classify_batch([texts[number] for number in numbers])
            answers.update(zip(numbers, batch, strict=True))
        return [answers[number] for number in range(len(texts))]

    def classify_batch(self, texts: list[str | tuple[str, str]]) -> list[dict]:
        """Classify texts, or pairs of texts, in one run."""
        encoded = self.tokenizer.encode_batch(texts)
        rows = {
            "input_ids": [text.ids for text in encoded],
            "attention_mask": [text.attention_mask for text in encoded],
            "token_type_ids": [text.type_ids for text in encoded],
        }
        feed = {
            name: np.array([row[:1] * self.repeats + row for row in values])
            for name, values in rows.items()
            if name in self.types
        }
        for name, value in self.settings.items():
            feed[name] = np.array(value, self.types[name])
        if "draws" in self.types:  # PonderNet halts by chance: a uniform number for each text
            feed["draws"] = np.random.default_rng().random(len(texts), np.float32)
        outputs = [value.name for value in self.session.get_outputs()]
        arrays = dict(zip(outputs, self.session.run(outputs, feed), strict=True))
        answers = []
        for row, logits in enumerate(arrays["logits"]):
            if "exit_layer" in arrays:
                depth = {"exit_layer": int(arrays["exit_layer"][row])}
            else:
                updates = arrays["updates"][row]  # 0 on padding
                depth = {"updates": float(updates[updates > 0].mean())}
            answers.append({**self.answer(logits), **depth})
        return answers

    def answer(self, logits: np.ndarray) -> dict:
        """Say what a text's logits, (labels,), mean."""
        labels = self.facts["labels"]
        if len(logits) == 1:
            return {"score": float(logits[0])}
        if self.facts["problem_type"] == "multi_label_classification":
            scores = 1 / (1 + np.exp(-logits))
            present = [number for number in scores.argsort()[::-1] if scores[number] > 0.5]
            return {
                "labels": [labels[number] for number in present],
                "scores": [float(scores[number]) for number in present],
            }
        powers = np.exp(logits - logits.max())
        best = int(logits.argmax())
        return {"label": labels[best], "score": float(powers[best] / powers.sum())}


def setting(text: str) -> tuple[str, float]:
    """Read a setting of the command line, name=number."""
    name, _, value = text.partition("=")
    return name, float(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="ONNX file that export_onnx.py has written")
    parser.add_argument("tokenizer", help="tokenizer.json in the folder of its model")
    parser.add_argument("text", help="text to classify")
    parser.add_argument("second_text", nargs="?", help="second text of a pair")
    parser.add_argument(
        "--set",
        type=setting,
        nargs="+",
        default=[],
        metavar="NAME=NUMBER",
        help="exit keys in place of those in the file, for example exit_thres=0.3",
    )
    args = parser.parse_args()
    try:
        classify = FileClassifier(args.file, args.tokenizer, **dict(args.set))
    except ValueError as error:
        parser.error(str(error))
    text = args.text if args.second_text is None else (args.text, args.second_text)
    (answer,) = classify([text])
    if "label" in answer:
        result = answer["label"]
    elif "labels" in answer:
        result = ", ".join(answer["labels"]) or "no label"
    else:
        result = f"{answer['score']:.4f}"
    if "exit_layer" in answer:
        print(f"{result}, after layer {answer['exit_layer']}")
    else:
        print(f"{result}, after {answer['updates']:.1f} updates of a token")


if __name__ == "__main__":
    main()
