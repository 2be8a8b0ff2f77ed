"""Answer a text, or a pair, with an exported file of any mode: nothing of this project is needed.

python examples/onnx_python.py sst2.onnx out/sst2/tokenizer.json "A moving, funny film."

Exits are those of the file's own rule. To set another threshold, change facts["rule"] below.
"""

import json
import sys

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

if len(sys.argv) not in (4, 5):
    sys.exit(__doc__)
file, tokenizer, *texts = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.log_severity_level = 3  # it warns of inputs that have defaults
session = onnxruntime.InferenceSession(file, options)
metadata = session.get_modelmeta().custom_metadata_map
facts = {name: json.loads(value) for name, value in metadata.items()}
text = Tokenizer.from_file(tokenizer).encode(texts[0], texts[1] if texts[1:] else None)
repeats = facts["cls_tokens"] - 1  # a ponder model reads [CLS] twice
feed = {
    "input_ids": np.array([text.ids[:1] * repeats + text.ids]),
    "attention_mask": np.array([text.attention_mask[:1] * repeats + text.attention_mask]),
    "token_type_ids": np.array([text.type_ids[:1] * repeats + text.type_ids]),
}
names = [value.name for value in session.get_inputs()]
for value in session.get_inputs():  # the rule's own numbers
    if value.name in facts["rule"]:
        kind = np.int64 if value.type == "tensor(int64)" else np.float32
        feed[value.name] = np.array(facts["rule"][value.name], kind)
if "draws" in names:  # PonderNet halts by chance: a uniform number for each text
    feed["draws"] = np.random.default_rng().random(1, np.float32)
outputs = [value.name for value in session.get_outputs()]
arrays = dict(zip(outputs, session.run(outputs, feed), strict=True))
logits = arrays["logits"][0]
label = facts["labels"][logits.argmax()]
if facts["problem_type"] == "multi_label_classification":
    labels = [name for name, logit in zip(facts["labels"], logits, strict=True) if logit > 0]
    label = ", ".join(labels) or "no label"
depth = arrays["exit_layer"] if "exit_layer" in arrays else arrays["layers_run"]
print(f"{label}, after layer {depth.max()}")
