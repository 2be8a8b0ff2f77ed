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
truncate(encoded, read("tokenizer.json").truncation);
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

// Cut a text, or of a pair the longer first, as tokenizer.json says: the library does not.
function truncate(encoded, truncation) {
  const count = (words) => tokenizer.encode(words, { add_special_tokens: false }).ids.length;
  const lengths = [text, text_pair].filter((words) => words !== undefined).map(count);
  const total = encoded.ids.length;
  const sum = lengths.reduce((a, b) => a + b);
  if (!truncation || total <= truncation.max_length) return;
  const room = truncation.max_length - (total - sum);
  const shorter = Math.min(...lengths, Math.floor(room / 2));
  const isFirstShorter = lengths.length === 2 && lengths[0] <= lengths[1];
  const kept = isFirstShorter ? [shorter, room - shorter] : [room - shorter, shorter];
  if (lengths.length === 1) kept[0] = room;
  // The first text begins after [CLS], the second ends before the last [SEP].
  const starts = [1, total - 1 - (lengths[1] ?? 0)];
  const isCut = (place) =>
    lengths.some((length, i) => {
      const offset = place - starts[i];
      if (offset < 0 || offset >= length) return false;
      return truncation.direction === "Left" ? offset < length - kept[i] : offset >= kept[i];
    });
  for (const name of ["ids", "attention_mask", "token_type_ids"]) {
    encoded[name] = encoded[name].filter((_, place) => !isCut(place));
  }
}
