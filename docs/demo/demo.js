// Runs model.onnx in the browser and shows after which layer each of two texts exits.

const byId = (id) => document.getElementById(id);
const PAUSE = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 160; // ms a layer
const TYPING = 300; // ms without a key until a text is answered
const CHART = { width: 380, height: 190, left: 34, right: 22, top: 16, bottom: 34 };

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children); // strings become text, never markup
  return node;
}

function drawing(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// The site's scheme, where a reader has chosen one there.
function followScheme() {
  const site = new URL("..", location.href).pathname;
  const chosen = JSON.parse(localStorage.getItem(`${site}.__palette`) ?? "null")?.color?.scheme;
  if (chosen) document.documentElement.dataset.scheme = chosen === "slate" ? "dark" : "light";
}

async function fetched(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return answer;
}

async function load() {
  const json = async (name) => (await fetched(name)).json();
  const file = await fetched("model.onnx");
  const bytes = Number(file.headers.get("content-length"));
  if (bytes) complain(`Loading the model, ${(bytes / 1e6).toFixed(1)} MB, and its runtime…`);
  const { env, InferenceSession, Tensor } = await import("./lib/ort.wasm.bundle.min.mjs");
  const { Tokenizer } = await import("./lib/tokenizers.min.mjs");
  env.wasm.numThreads = 1; // more need headers that a plain server does not send
  const [about, vocabulary, options, session] = await Promise.all([
    json("about.json"),
    json("tokenizer.json"),
    json("tokenizer_config.json"),
    file.arrayBuffer().then((buffer) => InferenceSession.create(buffer, { logSeverityLevel: 3 })),
  ]);
  const tokenizer = new Tokenizer(vocabulary, options);
  const { model } = tokenizer;
  const pieces = model._call.bind(model); // it would make one piece of neighbouring unknown words
  model._call = (words) => words.flatMap((word) => pieces([word]));
  return { about, session, Tensor, tokenizer };
}

// What the model says.

function softmax(logits) {
  const powers = logits.map((x) => Math.exp(x - Math.max(...logits)));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((x) => x / sum);
}

function entropy(shares) {
  const nats = shares.map((p) => (p > 0 ? -p * Math.log(p) : 0)).reduce((a, b) => a + b);
  return nats / Math.log(shares.length);
}

function layerAnswers(logits, classes, exit) {
  return Array.from({ length: exit }, (_, n) => {
    const shares = softmax([...logits.slice(n * classes, (n + 1) * classes)]);
    const leader = shares.indexOf(Math.max(...shares));
    return { leader, share: shares[leader], entropy: entropy(shares) };
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

function tokenize({ about, tokenizer }, [text, text_pair]) {
  const encoded = tokenizer.encode(text, { text_pair, return_token_type_ids: true });
  if (encoded.ids.length > about.longest) {
    return { refused: `It has ${encoded.ids.length} tokens; the model reads ${about.longest}.` };
  }
  const words = [text, text_pair ?? ""].flatMap((part) => part.split(/\s+/)).filter(Boolean);
  const unread = (word) => tokenizer.encode(word).ids.includes(about.unknown_id);
  const unknown = words.filter(unread);
  let refused = words.length ? "" : "Type a text.";
  if (words.length && 3 * unknown.length >= words.length) {
    refused = "The model cannot read a third of the words or more.";
  }
  return { encoded, unknown: [...new Set(unknown)], refused };
}

// Which condition ended it, from what the file gives: the entropy at the exit, and the layers.
function reasonOf(about, answers, settings) {
  const [last, n, key] = [answers.at(-1), answers.length, about.entropy_key];
  const number = (value) => Number(value.toFixed(3)).toString();
  if (key && last.entropy < settings[key]) {
    return `because it is sure: entropy ${number(last.entropy)} is below ${number(settings[key])}.`;
  }
  if (n === about.layers) return "the last one: no condition held earlier.";
  const window = settings.cnt_thres;
  return window
    ? `because the last ${window} layers agree (the confidence window).`
    : "because the rule's condition held.";
}

// Settings under which a text goes through all layers.
function patient(about, settings) {
  const never = { exit_thres: 0, cnt_thres: about.layers };
  const read = Object.entries(never).filter(([key]) => key in settings);
  return { ...settings, ...Object.fromEntries(read) };
}

// What the layers after the exit would have said.
function verdictOf(about, answers, all) {
  const [exit, end, saved] = [answers.at(-1), all.at(-1), all.length - answers.length];
  if (!saved) {
    const flip = all.findLastIndex((row, i) => i && row.leader !== all[i - 1].leader);
    return flip > 0 ? `It changed its mind after layer ${flip}.` : "";
  }
  const layers = saved === 1 ? "1 layer" : `${saved} layers`;
  if (exit.leader === end.leader) return `All ${all.length} layers would have said the same: ${layers} saved.`;
  const said = `${about.labels[end.leader]}, ${Math.round(100 * end.share)}%`;
  return `${layers} saved, but all ${all.length} layers would have said ${said}.`;
}

// The rule's numbers in words, by key.
const WORDS = {
  exit_thres: ["How unsure an answer may be", "entropy: 0 is certain, 1 is no idea"],
  cnt_thres: ["How many layers in a row must agree", "the confidence window"],
  margin: ["How clearly they must agree", "half the lead that the first class needs"],
};

// One text, its chart and its answer.

class Side {
  constructor(name, about, changed) {
    this.about = about;
    this.root = byId(`side-${name}`);
    this.number = 0; // of the last text: what answers an older one is not shown
    const next = element("button", { type: "button", class: "next" }, "Another example");
    next.addEventListener("click", () => (this.nextExample(), changed(this)));
    this.boxes = this.textBoxes(name, next, changed);
    const part = (tag, css) => this.root.appendChild(element(tag, { class: css }));
    this.label = part("p", "soft label");
    this.answer = part("p", "answer");
    this.why = part("p", "soft why");
    this.verdict = part("p", "verdict");
    this.answer.setAttribute("aria-live", "polite");
    this.chart = this.root.appendChild(drawing("svg", { role: "img" }));
    this.chart.setAttribute("viewBox", `0 0 ${CHART.width} ${CHART.height}`);
    this.keys = part("div", "keys soft");
    about.labels.forEach((label, k) => {
      const dot = element("i", { style: `background: var(--class-${k % 4})` });
      this.keys.append(element("span", {}, dot, label));
    });
    this.unknown = part("p", "soft unknown");
  }

  textBoxes(name, next, changed) {
    const { texts } = this.about.examples[0];
    const names = texts.length === 1 ? [`Text ${name.toUpperCase()}`] : ["First text", "Second text"];
    let timer = 0;
    return names.map((title, i) => {
      const longest = Math.max(...this.about.examples.map((row) => row.texts[i].length));
      const rows = Math.min(4, Math.max(2, Math.ceil(longest / 55)));
      const box = element("textarea", { id: `text-${name}-${i}`, rows, spellcheck: "false" });
      box.addEventListener("input", () => {
        document.body.dataset.ready = "";
        clearTimeout(timer);
        timer = setTimeout(() => changed(this), TYPING);
      });
      const label = element("label", { for: box.id }, title);
      this.root.append(element("div", { class: "top" }, label, ...(i ? [] : [next])), box);
      return box;
    });
  }

  get texts() {
    return this.boxes.map((box) => box.value);
  }

  set texts(texts) {
    this.boxes.forEach((box, i) => (box.value = texts[i] ?? ""));
  }

  nextExample(step = 1) {
    const { examples } = this.about;
    this.example = ((this.example ?? 0) + step) % examples.length;
    this.texts = examples[this.example].texts;
  }

  note(unknown) {
    const row = this.about.examples[this.example];
    const untouched = row && this.texts.every((text, i) => text === row.texts[i]);
    const label = untouched && this.about.labels[row.label];
    this.label.textContent = label ? `Label in the data: ${label}` : "";
    this.unknown.textContent = unknown.length
      ? `Words that this model cannot read: ${unknown.join(" ")}`
      : "";
  }

  refuse(why) {
    this.answers = this.all = null;
    this.number++;
    this.answer.textContent = "No answer";
    this.why.textContent = why;
    this.verdict.textContent = "";
    this.draw(0);
  }

  // A new text appears layer by layer; a moved slider moves the stop at once.
  async show(answers, settings, isNew) {
    const mine = isNew ? ++this.number : this.number;
    [this.answers, this.settings] = [answers, settings];
    for (let n = 1; isNew && PAUSE && n < answers.length; n++) {
      this.draw(n);
      await new Promise((done) => setTimeout(done, PAUSE));
      if (mine !== this.number || this.answers !== answers) return;
    }
    const { labels, layers } = this.about;
    const last = answers.at(-1);
    this.answer.textContent = `${labels[last.leader]}, ${Math.round(100 * last.share)}%`;
    const why = reasonOf(this.about, answers, settings);
    this.why.textContent = `Exits at layer ${answers.length} of ${layers}, ${why}`;
    this.verdict.textContent = verdictOf(this.about, answers, this.all);
    this.draw(answers.length, true);
  }

  draw(shown, done = false) {
    const { layers, entropy_key: key, labels } = this.about;
    const { width, height, left, right, top, bottom } = CHART;
    const x = (n) => left + ((width - left - right) * (n - 0.5)) / layers;
    const y = (value) => top + (height - top - bottom) * (1 - value);
    const answers = (this.answers ?? []).slice(0, shown);
    const parts = [];
    const text = (at, on, words, more = {}) =>
      parts.push(drawing("text", { x: at, y: on, "text-anchor": "middle", ...more }, words));
    if (done && shown < layers) {
      const from = (x(shown) + x(shown + 1)) / 2;
      const box = { x: from, y: top, width: width - right - from, height: height - top - bottom };
      parts.push(drawing("rect", { class: "after", ...box }));
      if (layers - shown > 1) text((from + width - right) / 2, top + 14, "not computed");
    }
    for (const value of [0, 0.5, 1]) {
      const ends = { x1: left, x2: width - right, y1: y(value), y2: y(value) };
      parts.push(drawing("line", { class: "grid-line", ...ends }));
      text(left - 6, y(value) + 4, String(value), { "text-anchor": "end" });
    }
    text(9, (top + height - bottom) / 2, "entropy", {
      transform: `rotate(-90 9 ${(top + height - bottom) / 2})`,
    });
    const pointsOf = (rows) => rows.map((row, i) => `${x(i + 1)},${y(row.entropy)}`).join(" ");
    const ghosts = done ? (this.all ?? []) : [];
    parts.push(drawing("polyline", { class: "curve ghost", points: pointsOf(ghosts) }));
    parts.push(drawing("polyline", { class: "curve", points: pointsOf(answers) }));
    const flips = (done ? ghosts : answers).map((row, i, rows) => i && row.leader !== rows[i - 1].leader);
    for (let n = 1; n <= layers; n++) {
      text(x(n), height - 18, String(n));
      const [row, ghost] = [answers[n - 1] ?? ghosts[n - 1], n > answers.length];
      if (!row) continue;
      if (flips[n - 1]) {
        const at = (x(n - 1) + x(n)) / 2;
        parts.push(drawing("line", { class: "flip", x1: at, x2: at, y1: top, y2: height - bottom }));
        const css = { class: ghost ? "ghost-label" : "flip-label" };
        text(at, height - bottom - 4, `${labels[row.leader]} now`, css);
      }
      const stops = done && n === shown;
      const dot = { cx: x(n), cy: y(row.entropy), r: stops ? 8 : 5.5 };
      dot.class = ghost ? "ghost" : stops ? "stop" : "";
      const would = ghost ? " would say" : ":";
      const said = `layer ${n}${would} ${labels[row.leader]}, ${(100 * row.share).toFixed(1)}%`;
      const title = drawing("title", {}, `${said}, entropy ${row.entropy.toFixed(3)}`);
      const style = `fill: var(--class-${row.leader % 4})`;
      const data = ghost ? {} : { "data-share": row.share };
      parts.push(drawing("circle", { ...dot, style, ...data }, title));
    }
    text((left + width - right) / 2, height - 4, "layer");
    if (key && this.settings) parts.push(...this.thresholdLine(key, y));
    const list = answers.map((r, i) => `layer ${i + 1} ${labels[r.leader]} ${r.entropy.toFixed(2)}`);
    this.chart.setAttribute("aria-label", `Entropy of every layer's answer: ${list.join(", ")}`);
    this.chart.replaceChildren(...parts);
  }

  thresholdLine(key, y) {
    const [at, { width, left, right }] = [y(this.settings[key]), CHART];
    const ends = { x1: left, x2: width - right, y1: at, y2: at };
    const title = drawing("title", {}, "how unsure an answer may be: drag to change it");
    const handle = { class: "handle", x: left, width: width - left, y: at - 12, height: 24 };
    return [
      drawing("line", { class: "threshold", ...ends }),
      drawing("circle", { class: "grip", cx: width - right, cy: at, r: 6 }),
      drawing("rect", handle, title),
    ];
  }

  // The pointer's place on the chart, as an entropy.
  entropyAt({ clientY }) {
    const box = this.chart.getBoundingClientRect();
    const { height, top, bottom } = CHART;
    const on = ((clientY - box.top) / box.height) * height;
    return 1 - (on - top) / (height - top - bottom);
  }
}

class Slider {
  constructor({ key, meaning, values, value }, changed) {
    const id = `slider-${key}`;
    [this.key, this.values] = [key, values];
    const range = { id, type: "range", min: 0, max: values.length - 1, step: 1 };
    this.input = element("input", range);
    this.output = element("output", { for: id });
    this.input.addEventListener("input", () => (this.show(), changed()));
    const [name, about] = WORDS[key] ?? [meaning, ""];
    const label = element("label", { for: id }, name);
    const row = element("div", { class: "slider" }, label, this.output, this.input);
    row.append(element("p", { class: "soft" }, about, about && "; ", element("code", {}, key)));
    byId("sliders").append(row);
    this.value = value;
  }

  get value() {
    return this.values[this.input.value];
  }

  set value(wanted) {
    const gap = (i) => Math.abs(this.values[i] - wanted);
    this.input.value = [...this.values.keys()].reduce((a, b) => (gap(b) < gap(a) ? b : a));
    this.show();
  }

  show() {
    this.output.textContent = this.value;
  }
}

async function start() {
  const parts = await load();
  const { about, session } = parts;
  const link = new URLSearchParams(location.hash.slice(1));
  let [computed, possible, texts, waiting, running] = [0, 0, 0, 0, Promise.resolve()];
  const sliders = about.sliders.map((row) => new Slider(row, () => sides.forEach((s) => run(s))));
  const sides = ["a", "b"].map((name) => new Side(name, about, (side) => run(side, true)));
  const settings = () => ({
    ...about.settings,
    ...Object.fromEntries(sliders.map(({ key, value }) => [key, value])),
  });

  // A text counts once, with the layers that the rule of the moment lets it take.
  function count(side, layers, isNew) {
    if (isNew) [possible, texts, side.counted] = [possible + about.layers, texts + 1, 0];
    [computed, side.counted] = [computed + layers - side.counted, layers];
    byId("share").textContent = `${Math.round(100 * (1 - computed / possible))}% of layers saved`;
    byId("layers").textContent = `${computed} of ${possible} layers computed for ${texts} texts`;
  }

  function remember() {
    const words = new URLSearchParams(sliders.map(({ key, value }) => [key, value]));
    sides.forEach((side, i) => side.texts.forEach((t) => words.append("ab"[i], t)));
    history.replaceState(null, "", `#${words}`);
  }

  async function answer(side, isNew) {
    const { encoded, unknown = [], refused } = tokenize(parts, side.texts);
    side.note(unknown);
    byId("trouble").textContent = "";
    if (refused) return side.refuse(refused);
    const now = settings();
    const layers = async (numbers) => {
      const out = await session.run(feedOf(parts, encoded, numbers));
      const exit = Number(out.exit_layer.data[0]);
      return layerAnswers(out.layer_logits.data, about.labels.length, exit);
    };
    if (isNew) side.all = await layers(patient(about, now));
    const answers = await layers(now);
    count(side, answers.length, isNew);
    side.show(answers, now, isNew).catch(complain);
  }

  // A session runs one text at a time. Of a side's changes, only the last is answered.
  function run(side, isNew = false) {
    document.body.dataset.ready = "";
    const mine = (side.asked = (side.asked ?? 0) + 1);
    side.isNew ||= isNew;
    waiting++;
    running = running
      .then(() => {
        if (mine !== side.asked) return;
        [isNew, side.isNew] = [side.isNew, false];
        return answer(side, isNew);
      })
      .catch(complain)
      .then(() => {
        remember();
        if (--waiting === 0) document.body.dataset.ready = "yes";
      });
  }

  function drag(side) {
    const threshold = sliders.find(({ key }) => key === about.entropy_key);
    if (!threshold) return;
    let dragging = false;
    side.chart.addEventListener("pointerdown", (event) => {
      if (!event.target.classList.contains("handle")) return;
      side.chart.setPointerCapture(event.pointerId);
      dragging = true;
    });
    side.chart.addEventListener("pointermove", (event) => {
      if (!dragging) return;
      threshold.value = side.entropyAt(event);
      sides.forEach((each) => run(each));
    });
    for (const end of ["pointerup", "pointercancel"]) {
      side.chart.addEventListener(end, () => (dragging = false));
    }
  }

  const now = settings();
  byId("intro").textContent = about.intro;
  byId("rule-name").textContent = about.rule;
  byId("exits-when").textContent = about.entropy_key
    ? "A text exits after the first layer that is sure enough: its entropy is below the dashed line" +
      ("cnt_thres" in now ? ", or once enough layers in a row agree." : ".")
    : `A text exits after a layer when ${about.exits_when}.`;
  byId("link").addEventListener("click", async ({ target }) => {
    await navigator.clipboard.writeText(location.href);
    target.textContent = "Copied";
  });
  document.querySelector("main").hidden = false;
  byId("trouble").textContent = "";
  for (const slider of sliders) if (link.has(slider.key)) slider.value = Number(link.get(slider.key));
  sides.forEach((side, i) => {
    side.nextExample(i);
    if (link.has("ab"[i])) side.texts = link.getAll("ab"[i]);
    drag(side);
    run(side, true);
  });
}

function complain(error) {
  byId("trouble").textContent = String(error.message ?? error);
}

followScheme();
start().catch((error) => {
  const missing = /import|module/.test(error.message);
  complain(error.message + (missing ? ". Build the page with its libraries: make docs/demo/lib" : ""));
});
