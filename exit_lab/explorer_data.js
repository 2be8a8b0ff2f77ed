// The sweep's numbers: settings are numbered as in sweep.csv.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { setting: 0, rule: 0, lostOnly: false, shown: 30 };
const columns = {};
const cost = (setting) => columns.compute_ratio[setting];
const metric = (setting) => columns[data.metric][setting];

async function unpack(text, Kind) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Kind(await new Response(stream).arrayBuffer());
}

async function unpackAll() {
  for (const [name, text] of Object.entries(data.settings)) {
    columns[name] = await unpack(text, name === "exits" ? Uint32Array : Float64Array);
  }
  columns.exit_layer = await unpack(data.exit_layer, Uint8Array);
  const kind = data.regression ? Float32Array : Uint16Array;
  columns.predictions = await unpack(data.predictions, kind);
  columns.labels = await unpack(data.labels, kind);
  if (data.confidence) columns.confidence = await unpack(data.confidence, Uint8Array);
}

// Settings of a rule are numbered like the digits of a number, the last key fastest.
function choiceOf(rule, setting) {
  let rest = setting - rule.first;
  return rule.keys.map((key) => key.values.length).reverse().map((length) => {
    const digit = rest % length;
    rest = (rest - digit) / length;
    return digit;
  }).reverse();
}

function settingOf(rule, choice) {
  return rule.first + rule.keys.reduce((sum, key, i) => sum * key.values.length + choice[i], 0);
}

function ruleOf(setting) {
  return data.rules.findIndex((rule) => setting < rule.first + rule.count);
}

// { thres_name: "bias_1", exit_thres: 0.3, … }
function keysOf(setting) {
  const rule = data.rules[ruleOf(setting)];
  const values = choiceOf(rule, setting).map((digit, i) =>
    [rule.keys[i].name, rule.keys[i].values[digit]]);
  return { [data.rule_key]: rule.name, ...Object.fromEntries(values) };
}

function describe(setting) {
  const { [data.rule_key]: name, ...keys } = keysOf(setting);
  return [name, ...Object.entries(keys).map((pair) => pair.join("\u00a0"))].join(", ");
}

// Of a rule the best setting whose cost is nearest, of several the one with the best metric.
function nearestCost(rule, wanted) {
  const apart = (setting) => Math.abs(cost(setting) - wanted);
  return rule.frontier.reduce((best, setting) =>
    apart(setting) < apart(best) || (apart(setting) === apart(best) && metric(setting) > metric(best))
      ? setting : best);
}

// The setting that the address names: #thres_name=bias_1&exit_thres=0.3; null if it is not here.
function settingInAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const rule = data.rules.find((one) => one.name === wanted.get(data.rule_key));
  if (!rule) return null;
  const choice = rule.keys.map((key) => key.values.indexOf(Number(wanted.get(key.name))));
  return choice.includes(-1) ? null : settingOf(rule, choice);
}

// What a baseline has at a cost: on the line between its points, flat beyond the last.
function baselineAt(points, wanted) {
  const above = points.findIndex((one) => one.cost > wanted);
  if (above < 1) return points.at(above).value;
  const [a, b] = [points[above - 1], points[above]];
  return a.value + (b.value - a.value) * (wanted - a.cost) / (b.cost - a.cost);
}

// How much worse the answer taken is than full depth's; what counts as wrong has badness > 0.
function wrongExamples() {
  const last = (data.layers - 1) * data.listed;
  const found = [];
  for (let i = 0; i < data.listed; i++) {
    const layer = columns.exit_layer[state.setting * data.listed + i];
    const at = (layer - 1) * data.listed + i;
    const answer = columns.predictions[at];
    const label = columns.labels[i];
    const full = columns.predictions[last + i];
    const error = data.regression ? Math.abs(answer - label) : Number(answer !== label);
    const fullError = data.regression ? Math.abs(full - label) : Number(full !== label);
    const lost = error - fullError;
    const wrong = data.regression ? lost > 1e-6 : error > 0;
    if (wrong && (!state.lostOnly || lost > 0)) {
      found.push({ i, layer, answer, label, full, lost, confidence: columns.confidence?.[at] });
    }
  }
  return found.sort((a, b) => b.lost - a.lost || b.confidence - a.confidence || a.i - b.i);
}

