"""Answer a text, or a pair, with an exported file: nothing of this project is needed.

python examples/onnx_python.py elbert.onnx out/sample/RTE/tokenizer.json "A man runs." "He ran."
"""

import json
import sys

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

file, tokenizer, *texts = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.log_severity_level = 3  # it warns of inputs that have defaults
session = onnxruntime.InferenceSession(file, options)
text = Tokenizer.from_file(tokenizer).encode(*texts)
inputs = (("input_ids", text.ids), ("attention_mask", text.attention_mask))
feed = {name: np.array([ids]) for name, ids in (*inputs, ("token_type_ids", text.type_ids))}
feed["exit_thres"] = np.array(0.1, np.float32)  # may be left out: the model's own
logits, exit_layer, layers_run = session.run(None, feed)
label = json.loads(session.get_modelmeta().custom_metadata_map["labels"])[logits[0].argmax()]
print(f"{label}, after layer {exit_layer[0]}")
