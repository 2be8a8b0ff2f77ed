// Runs model.onnx in the browser and shows after which layer it stops.

const byId = (id) => document.getElementById(id);
const PAUSE = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 90; // ms between rows

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children); // strings become text, never markup
  return node;
}

async function load() {
  const json = async (name) => (await fetch(name)).json();
  const { env, InferenceSession, Tensor } = await import(
    "./node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs"
  );
  const { Tokenizer } = await import(
    "./node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs"
  );
  env.wasm.numThreads = 1; // more need headers that a plain server does not send
  const [about, vocabulary, options, session] = await Promise.all([
    json("about.json"),
    json("tokenizer.json"),
    json("tokenizer_config.json"),
    InferenceSession.create("model.onnx", { logSeverityLevel: 3 }),
  ]);
  const tokenizer = new Tokenizer(vocabulary, options);
  const { model } = tokenizer;
  const pieces = model._call.bind(model); // it would make one piece of neighbouring unknown words
  model._call = (words) => words.flatMap((word) => pieces([word]));
  return { about, session, Tensor, tokenizer };
}

function slider({ key, meaning, values, value }, changed) {
  const id = `slider-${key}`;
  const input = element("input", { id, type: "range", min: 0, max: values.length - 1, step: 1 });
  const output = element("output", { for: id });
  const now = () => values[input.value];
  const show = () => (output.textContent = now());
  input.value = values.indexOf(value);
  input.addEventListener("input", () => (show(), changed()));
  show();
  const label = element("label", { for: id }, key);
  const row = element("div", { class: "slider" }, label, output, input);
  row.append(element("p", { class: "soft" }, meaning));
  byId("sliders").append(row);
  return [key, now];
}

function textBoxes(examples, changed) {
  const names = examples[0].texts.length === 1 ? ["Text"] : ["First text", "Second text"];
  return names.map((name, i) => {
    const longest = Math.max(...examples.map(({ texts }) => texts[i].length));
    const rows = Math.min(6, Math.max(2, Math.ceil(longest / 38)));
    const box = element("textarea", { id: `text-${i}`, rows, spellcheck: "false" });
    box.addEventListener("input", changed);
    byId("texts").append(element("label", { for: box.id }, name), box);
    return box;
  });
}

// What a file reads: ids, mask and segments of shape (1, length), the rule's numbers of shape ().
function feedOf({ Tensor, about }, encoded, settings) {
  const row = (numbers) => new Tensor("int64", numbers, [1, numbers.length]);
  const feed = {
    input_ids: row(encoded.ids),
    attention_mask: row(encoded.attention_mask),
    token_type_ids: row(encoded.token_type_ids),
  };
  for (const [key, value] of Object.entries(settings)) {
    feed[key] = new Tensor(about.types[key], [value], []);
  }
  return feed;
}

function softmax(logits) {
  const powers = logits.map((x) => Math.exp(x - Math.max(...logits)));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((x) => x / sum);
}

function entropy(shares) {
  const nats = shares.map((p) => (p > 0 ? -p * Math.log(p) : 0)).reduce((a, b) => a + b);
  return nats / Math.log(shares.length);
}

function layerRow(number, labels, shares) {
  const percent = (share) => `${(100 * share).toFixed(share > 0.995 ? 1 : 0)}%`;
  const track = element("span", { class: "track" });
  const row = element("li", { "data-layer": number }, String(number), track);
  if (!shares) {
    row.className = "rest";
    row.append(element("span", { class: "name" }, "not computed"));
    return row;
  }
  const leader = shares.indexOf(Math.max(...shares));
  const ordered = [leader, ...shares.keys()].filter((k, i) => i === 0 || k !== leader);
  for (const k of ordered) {
    track.append(element("i", { style: `width: ${100 * shares[k]}%`, title: labels[k] }));
  }
  row.append(element("span", { class: "name", title: labels[leader] }, labels[leader]));
  row.append(element("span", { class: "number share" }, percent(shares[leader])));
  row.append(element("span", { class: "number" }, entropy(shares).toFixed(3)));
  row.dataset.share = shares[leader];
  return row;
}

const wait = (ms) => new Promise((done) => setTimeout(done, ms));
let newest = 0; // number of the last change: what answers an older one is no longer shown

function clear() {
  byId("answer").textContent = byId("cost").textContent = "";
  byId("layers").replaceChildren();
}

async function show(about, logits, exit, mine) {
  const { labels, layers } = about;
  const shares = (n) => softmax([...logits.slice((n - 1) * labels.length, n * labels.length)]);
  clear();
  for (let n = 1; n <= exit; n++) {
    if (PAUSE) await wait(PAUSE);
    if (mine !== newest) return;
    byId("layers").append(layerRow(n, labels, shares(n)));
  }
  byId("layers").lastChild.className = "stops";
  const answer = byId("layers").lastChild.querySelector(".name").textContent;
  for (let n = exit + 1; n <= layers; n++) byId("layers").append(layerRow(n));
  byId("answer").textContent = `${answer}, after layer ${exit} of ${layers}`;
  const cost = (exit / layers).toFixed(2);
  byId("cost").textContent = `Computation cost ${cost}: the share of layers that were run.`;
  document.body.dataset.ready = "yes";
}

async function start() {
  const parts = await load();
  const { about, session, tokenizer } = parts;
  const boxes = textBoxes(about.examples, changed);
  const sliders = about.sliders.map((row) => slider(row, changed));
  let example = -1;
  let running = Promise.resolve();
  byId("intro").textContent = about.intro;
  byId("rule").textContent = about.rule;
  byId("exits-when").textContent = `The text exits after a layer when ${about.exits_when}.`;

  async function answer(mine) {
    const [text, text_pair] = boxes.map((box) => box.value);
    const encoded = tokenizer.encode(text, { text_pair, return_token_type_ids: true });
    const strange = encoded.tokens.filter((_, i) => encoded.ids[i] === about.unknown_id);
    const words = new Set(strange.join(" ").split(/[▁\s]+/).filter(Boolean));
    byId("unknown").textContent = words.size
      ? `Words that this model never saw: ${[...words].join(" ")}`
      : "";
    if (encoded.ids.length > about.longest) {
      throw new Error(`${encoded.ids.length} tokens: the model reads at most ${about.longest}`);
    }
    const chosen = sliders.map(([key, now]) => [key, now()]);
    const settings = { ...about.settings, ...Object.fromEntries(chosen) };
    const out = await session.run(feedOf(parts, encoded, settings));
    byId("trouble").textContent = "";
    show(about, out.layer_logits.data, Number(out.exit_layer.data[0]), mine).catch(complain);
  }

  // A session runs one text at a time. Of what changes meanwhile, only the last is answered.
  function changed() {
    document.body.dataset.ready = "";
    const { texts, label } = about.examples[example];
    const untouched = boxes.every((box, i) => box.value === texts[i]);
    byId("label").textContent = untouched ? `The right answer: ${about.labels[label]}` : "";
    const mine = ++newest;
    running = running.then(() => mine === newest && answer(mine)).catch(complain);
  }

  function nextExample() {
    example = (example + 1) % about.examples.length;
    boxes.forEach((box, i) => (box.value = about.examples[example].texts[i]));
    changed();
  }

  byId("next").addEventListener("click", nextExample);
  document.querySelector("main").hidden = false;
  nextExample();
}

function complain(error) {
  clear();
  byId("trouble").textContent = String(error.message ?? error);
}

start().catch((error) => {
  complain(`${error.message}. Were the packages installed? npm install --prefix docs/demo`);
});
