// Answer a text, or a pair, with an exported file: nothing of this project is needed.
//
// npm install onnxruntime-web @huggingface/tokenizers
// node examples/onnx_javascript.mjs sst2.onnx out/sst2 "A moving, funny film."

import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";
import { InferenceSession, Tensor } from "onnxruntime-web";

const [file, folder, text, text_pair] = process.argv.slice(2);
const read = (name) => JSON.parse(readFileSync(`${folder}/${name}`));
const tokenizer = new Tokenizer(read("tokenizer.json"), read("tokenizer_config.json"));
const { model } = tokenizer;
const pieces = model._call.bind(model); // it would make one piece of neighbouring unknown words
model._call = (words) => words.flatMap((word) => pieces([word]));
const encoded = tokenizer.encode(text, { text_pair, return_token_type_ids: true });
const row = (numbers) => new Tensor("int64", numbers, [1, numbers.length]);
const feed = {
  input_ids: row(encoded.ids),
  attention_mask: row(encoded.attention_mask),
  token_type_ids: row(encoded.token_type_ids),
};
const session = await InferenceSession.create(file, { logSeverityLevel: 3 });
const { logits, exit_layer } = await session.run(feed);
const label = read("config.json").id2label[logits.data.indexOf(Math.max(...logits.data))];
console.log(`${label}, after layer ${exit_layer.data[0]}`);
