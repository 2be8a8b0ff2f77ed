// The chart: every rule's best settings, the baselines, and the setting with its interval.

const COLOURS = matchMedia("(prefers-color-scheme: dark)").matches
  ? ["#4ba3dd", "#e69f00", "#2fc29a", "#dd96bd", "#8fd0f5", "#f0803c", "#ab8fe0", "#c4b34d"]
  : ["#0072b2", "#946500", "#00805d", "#ad4f86", "#1a7d96", "#bd5200", "#6a48b0", "#7a6b14"];
const byId = (id) => document.getElementById(id);
let scale = null;
let lines = [];

function element(tag, attributes = {}, ...children) {
  const node = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children); // strings become text, never markup
  return node;
}

function stroke(d, colour, width, more = {}) {
  return element("svg:path", { d, fill: "none", stroke: colour, "stroke-width": width, ...more });
}

// What is drawn: points { cost, value } by rising cost; rules with the same line are one.
function makeLines() {
  data.rules.forEach((rule, i) => {
    const points = rule.frontier.map((setting) =>
      ({ cost: cost(setting), value: metric(setting), setting }));
    const same = lines.find((line) => line.points.length === points.length
      && line.points.every((one, k) => one.cost === points[k].cost
        && one.value === points[k].value));
    if (same) {
      same.names.push(rule.name);
      same.rules.push(i);
    } else {
      lines.push({ names: [rule.name], rules: [i], points, colour: COLOURS[i % COLOURS.length] });
    }
  });
  lines.push({ names: ["random exits"], rules: [], points: data["random exits"], colour: "var(--soft)" });
  lines.push({ names: ["oracle"], rules: [], points: data.oracle, colour: "var(--ink)", dashes: "6 4" });
}

// Pixels of the longest name in the right margin.
function nameWidth() {
  const pen = element("canvas").getContext("2d");
  pen.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
  return Math.max(...lines.flatMap((line) => line.names).map((name) => pen.measureText(name).width));
}

function makeScale() {
  const width = Math.max(280, byId("chart-box").clientWidth);
  const height = width < 500 ? 235 : 430;
  const box = { left: 46, right: width - nameWidth() - 12, top: 18, bottom: height - 40 };
  let low = data.full[data.metric];
  let high = low;
  const see = (value) => { low = Math.min(low, value); high = Math.max(high, value); };
  columns.low.forEach(see);
  columns.high.forEach(see);
  data.truncation.forEach((one) => { see(one.low); see(one.high); });
  data.oracle.forEach((one) => see(one.value));
  const air = 0.05 * (high - low) || 0.01;
  low -= air;
  high += air;
  scale = {
    ...box, width, height, low, high,
    x: (c) => box.left + c * (box.right - box.left),
    y: (v) => box.bottom - (v - low) / (high - low) * (box.bottom - box.top),
  };
  byId("chart").setAttribute("viewBox", `0 0 ${width} ${height}`);
}

function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9; i++) found.push(i * step);
  return { found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

// A rule's line is steps; a baseline's goes straight from point to point.
function pathOf(line) {
  return line.points.map(({ cost: c, value }, i) => {
    const [x, y] = [scale.x(c).toFixed(1), scale.y(value).toFixed(1)];
    if (!i) return `M${x} ${y}`;
    return line.rules.length ? `H${x}V${y}` : `L${x} ${y}`;
  }).join("");
}

function dotsOf(rule) {
  const seen = new Set();
  for (let setting = rule.first; setting < rule.first + rule.count; setting++) {
    seen.add(`M${Math.round(scale.x(cost(setting)))} ${Math.round(scale.y(metric(setting)))}h0`);
  }
  return [...seen].join("");
}

function axes() {
  const nodes = [];
  const text = (x, y, anchor, words) =>
    nodes.push(element("svg:text", { x, y, "text-anchor": anchor }, words));
  const down = ticks(scale.low, scale.high, scale.height < 300 ? 4 : 7);
  for (const value of down.found) {
    const y = scale.y(value);
    nodes.push(stroke(`M${scale.left} ${y}H${scale.right}`, "var(--line)", 1));
    text(scale.left - 6, y + 4, "end", value.toFixed(down.digits));
  }
  for (const c of [0, .2, .4, .6, .8, 1]) {
    text(scale.x(c), scale.bottom + 16, "middle", c.toFixed(1));
  }
  text((scale.left + scale.right) / 2, scale.bottom + 34, "middle", "computation cost");
  text(0, 12, "start", data.metric);
  return nodes;
}

// Names in the right margin, at their line's end or as near as there is room.
function names(current) {
  const placed = [...lines, {
    names: ["full depth"], colour: "var(--ink)", points: [{ value: data.full[data.metric] }],
  }].flatMap((line) => line.names.map((words) => ({
    line, words, y: scale.y(line.points.at(-1).value),
  }))).sort((a, b) => a.y - b.y);
  const gap = 13;
  placed.forEach((one, i) => { one.y = Math.max(one.y, i ? placed[i - 1].y + gap : 12); });
  const over = placed.at(-1).y - scale.bottom;
  if (over > 0) {
    placed.reverse().forEach((one, i) => {
      one.y = Math.min(one.y, i ? placed[i - 1].y - gap : scale.bottom);
    });
  }
  return placed.map(({ line, words, y }) => element("svg:text", {
    x: scale.right + 6, y: y + 4, class: line === current ? "name" : "",
    style: `fill: ${line.colour}`,
  }, words));
}

function drawChart() {
  const rule = data.rules[state.rule];
  const current = lines.find((line) => line.rules.includes(state.rule));
  const nodes = axes();
  nodes.push(stroke(dotsOf(rule), "var(--dots)", 4, { "stroke-linecap": "round" }));
  const full = scale.y(data.full[data.metric]);
  nodes.push(stroke(`M${scale.left} ${full}H${scale.right}`, "var(--ink)", 1,
    { "stroke-dasharray": "2 4" }));
  for (const line of [...lines.filter((one) => one !== current), current]) {
    nodes.push(stroke(pathOf(line), line.colour, line === current ? 3 : 1.2,
      line.dashes ? { "stroke-dasharray": line.dashes } : {}));
  }
  const marks = data.truncation.map((one) => `M${scale.x(one.cost)} ${scale.y(one.value)}h0`);
  nodes.push(stroke(marks.join(""), "var(--soft)", 5, { "stroke-linecap": "round" }));
  const x = scale.x(cost(state.setting));
  const [low, high] = [columns.low[state.setting], columns.high[state.setting]].map(scale.y);
  nodes.push(stroke(`M${x} ${low}V${high}M${x - 5} ${low}h10M${x - 5} ${high}h10`,
    "var(--point)", 1.5, { id: "whisker" }));
  nodes.push(element("svg:circle", {
    id: "point", cx: x, cy: scale.y(metric(state.setting)), r: 7, fill: "var(--point)",
    stroke: "var(--card)", "stroke-width": 2,
  }));
  nodes.push(...names(current));
  byId("chart-title").textContent = `${rule.name}: ${data.metric} `
    + `${metric(state.setting).toFixed(3)} at cost ${cost(state.setting).toFixed(3)}`;
  const here = rule.frontier.indexOf(nearestCost(rule, cost(state.setting)));
  const chart = byId("chart");
  chart.setAttribute("aria-valuemin", 1);
  chart.setAttribute("aria-valuemax", rule.frontier.length);
  chart.setAttribute("aria-valuenow", here + 1);
  chart.setAttribute("aria-valuetext", `${describe(state.setting)}: ${factsOf(state.setting)}`);
  chart.replaceChildren(...nodes);
}

// The setting of the rule that is drawn nearest, or truncation's layer if that is nearer.
function nearestTo(event) {
  const bounds = byId("chart").getBoundingClientRect();
  const ratio = scale.width / bounds.width;
  const [x, y] = [(event.clientX - bounds.left) * ratio, (event.clientY - bounds.top) * ratio];
  const rule = data.rules[state.rule];
  let best = { distance: Infinity };
  const see = (c, value, found) => {
    const distance = Math.hypot(scale.x(c) - x, scale.y(value) - y);
    if (distance < best.distance) best = { distance, x: scale.x(c), y: scale.y(value), ...found };
  };
  for (let setting = rule.first; setting < rule.first + rule.count; setting++) {
    see(cost(setting), metric(setting), { setting });
  }
  const ofRule = best.setting;
  data.truncation.forEach((one) => see(one.cost, one.value, { truncation: one }));
  return { ...best, ofRule };
}

function factsOf(setting) {
  const facts = [`${data.metric} ${metric(setting).toFixed(3)} `
    + `[${columns.low[setting].toFixed(3)}, ${columns.high[setting].toFixed(3)}]`,
    `cost ${cost(setting).toFixed(3)}`];
  if (columns.flops_ratio) facts.push(`FLOPs ${columns.flops_ratio[setting].toFixed(3)}`);
  if (columns.latency_ms) facts.push(`${columns.latency_ms[setting].toFixed(1)} ms`);
  return facts.join("\n");
}

function showTip(event) {
  const found = nearestTo(event);
  const tip = byId("tip");
  tip.hidden = found.distance > 30;
  if (tip.hidden) return;
  const one = found.truncation;
  tip.textContent = one
    ? `all examples exit at layer ${one.layer}\n${data.metric} ${one.value.toFixed(3)} `
      + `[${one.low.toFixed(3)}, ${one.high.toFixed(3)}]\ncost ${one.cost.toFixed(3)}`
    : `${describe(found.setting)}\n${factsOf(found.setting)}`;
  const ratio = byId("chart").getBoundingClientRect().width / scale.width;
  tip.style.left = `${Math.min(found.x, scale.width - 180) * ratio + 12}px`;
  tip.style.top = `${found.y * ratio + 14}px`;
}

function walk(event) {
  const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
  const best = data.rules[state.rule].frontier;
  const ends = { Home: 0, End: best.length - 1 };
  if (!step && !(event.key in ends)) return;
  event.preventDefault();
  const here = best.indexOf(nearestCost(data.rules[state.rule], cost(state.setting)));
  const next = step ? Math.max(0, Math.min(best.length - 1, here + step)) : ends[event.key];
  go(best[next]);
}

