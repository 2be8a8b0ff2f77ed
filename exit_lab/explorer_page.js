// The page around the chart: rules, sliders, numbers, bars, and the examples that exit wrongly.

function pill(group, value, text, checked, change) {
  const input = element("input", { type: "radio", name: group, value });
  input.checked = checked;
  input.addEventListener("change", change);
  return element("label", { class: "pill" }, input, element("span", {}, text));
}

function go(setting) {
  const changed = ruleOf(setting) !== state.rule || !byId("sliders").dataset.rule;
  state.setting = setting;
  state.rule = ruleOf(setting);
  state.shown = 30;
  if (changed) drawSliders();
  updateSliders();
  drawNumbers();
  drawChart();
  drawBars();
  drawWrong();
  byId("copied").textContent = "";
  history.replaceState(null, "", "#" + new URLSearchParams(keysOf(setting)));
}

function drawRules() {
  byId("rules").append(...data.rules.map((rule, i) =>
    pill("rule", rule.name, rule.name, i === state.rule,
      () => go(nearestCost(rule, cost(state.setting))))));
}

function drawSliders() {
  const rule = data.rules[state.rule];
  byId("sliders").dataset.rule = rule.name;
  byId("sliders").replaceChildren(...rule.keys.map((key) => {
    const id = "slider-" + key.name;
    const input = element("input", {
      id, type: "range", min: 0, max: key.values.length - 1, step: 1, "data-key": key.name,
    });
    input.disabled = key.values.length < 2;
    input.addEventListener("input", () => {
      const choice = [...byId("sliders").querySelectorAll("input")].map((i) => Number(i.value));
      go(settingOf(rule, choice));
    });
    return element("div", { class: "slider" }, element("label", { for: id }, key.name), input,
      element("output", { for: id, id: "value-" + key.name }));
  }));
  if (!rule.keys.length) {
    byId("sliders").append(element("p", { class: "soft" }, "This rule has nothing to set."));
  }
  for (const input of document.getElementsByName("rule")) {
    input.checked = input.value === rule.name;
    if (input.checked) input.parentNode.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

function updateSliders() {
  const rule = data.rules[state.rule];
  choiceOf(rule, state.setting).forEach((digit, i) => {
    const key = rule.keys[i];
    const input = byId("slider-" + key.name);
    input.value = digit;
    input.setAttribute("aria-valuetext", key.values[digit]);
    byId("value-" + key.name).textContent = key.values[digit];
  });
}

function signed(value) {
  return (value < 0 ? "−" : "+") + Math.abs(value).toFixed(4);
}

function drawNumbers() {
  const nodes = [];
  const row = (label, note, value) => nodes.push(
    element("dt", {}, label, " ", element("small", {}, note)),
    element("dd", { class: "number" }, value));
  const column = (name, label, note, digits = 4) => {
    const value = columns[name]?.[state.setting];
    if (value === undefined) return;
    row(label, note, value.toFixed(digits));
    nodes.at(-1).id = "number-" + name;
    nodes.at(-1).dataset.value = value;
  };
  const bounds = [columns.low, columns.high].map((side) => side[state.setting].toFixed(3));
  for (const name of Object.keys(data.full)) {
    column(name, name, name === data.metric ? `[${bounds.join(", ")}]` : "");
  }
  const here = metric(state.setting);
  row("against full depth", `(${data.full[data.metric].toFixed(4)})`,
    signed(here - data.full[data.metric]));
  const [random, oracle] = [data["random exits"], data.oracle]
    .map((points) => baselineAt(points, cost(state.setting)));
  row("against random exits", `(${random.toFixed(4)})`, signed(here - random));
  if (oracle > random + 1e-9) {
    row("exit efficiency", "(0: random exits, 1: oracle)", ((here - random) / (oracle - random)).toFixed(2));
  }
  column("compute_ratio", "computation cost", "");
  column("flops_ratio", "FLOPs", "(of full depth)");
  column("latency_ms", "latency", "(ms, median, as recorded)", 2);
  column("latency_p95_ms", "latency", "(ms, 95th percentile)", 2);
  column("exit_sample_ratio", "exit early", "(share of examples)");
  byId("numbers").replaceChildren(...nodes);
}

function drawBars() {
  const exits = columns.exits.subarray(
    state.setting * data.layers, (state.setting + 1) * data.layers);
  const most = Math.max(...exits);
  byId("bars").replaceChildren(...Array.from(exits, (count, i) => {
    const bar = element("i", {});
    bar.style.height = `${75 * count / most}%`;
    return element("div", { "data-layer": i + 1, "data-count": count },
      element("b", {}, String(count)), bar,
      element("span", {}, data.layers > 8 ? String(i + 1) : `layer ${i + 1}`));
  }));
}

function nameOf(answer) {
  return data.regression ? answer.toFixed(2) : data.classes[answer];
}

function drawWrong() {
  const found = wrongExamples();
  byId("wrong").replaceChildren(...found.slice(0, state.shown).map((one) => {
    const facts = element("p", { class: "soft" },
      `label ${nameOf(one.label)} · answered ${nameOf(one.answer)}`
      + (one.confidence === undefined ? "" : ` with ${one.confidence}%`)
      + ` at layer ${one.layer} · `);
    const full = one.full === one.label && !data.regression
      ? "full depth is right" : `full depth says ${nameOf(one.full)}`;
    facts.append(one.lost > 0 ? element("span", { class: "lost" }, full) : full);
    const texts = data.texts[one.i].map((text) => element("p", {}, text));
    return element("li", { "data-row": data.rows[one.i] }, ...texts, facts);
  }));
  const lost = found.filter((one) => one.lost > 0).length;
  const sample = data.listed < data.examples
    ? ` of a sample of ${data.listed} out of ${data.examples}` : "";
  byId("count").textContent = data.regression
    ? `${found.length} answers${sample} are further from the label than full depth's`
    : `${found.length} wrong answers${sample}; ${lost} of them full depth has right`;
  byId("count").dataset.count = found.length;
  byId("more").hidden = found.length <= state.shown;
}

// Shown as well, so that it can be copied by hand where the browser forbids it.
async function copy(text) {
  let word = "Copied: ";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    word = "Copy this: ";
  }
  byId("copied").textContent = word + text;
}

function configText() {
  return JSON.stringify({ ...keysOf(state.setting), ...data.fixed }, null, 2);
}

function commandText() {
  const keys = Object.entries(keysOf(state.setting)).map((pair) => pair.join("="));
  return `${data.command} --set ${keys.join(" ")}`;
}

async function start() {
  if (typeof DecompressionStream === "undefined") {
    byId("about").textContent = "This browser is too old to read the page's data.";
    return;
  }
  await unpackAll();
  const count = data.rules.reduce((sum, rule) => sum + rule.count, 0);
  const rules = data.rules.length === 1 ? "one exit rule" : `${data.rules.length} exit rules`;
  byId("about").textContent =
    `${count} settings of ${rules} on ${data.examples} examples, `
    + `${data.layers} layers. Nothing is computed here: the page shows the sweep's results.`
    + (data.remarks ?? []).map((remark) => ` Suspect at first: ${remark}.`).join("");
  if (data.regression) {
    byId("wrong-title").textContent = "Examples whose answer gets worse by exiting early";
    byId("filter").hidden = true;
  } else {
    const choose = (lostOnly) => () => { state.lostOnly = lostOnly; drawWrong(); };
    byId("filter").append(
      pill("filter", "all", "all wrong answers", true, choose(false)),
      pill("filter", "lost", "only those full depth has right", false, choose(true)));
  }
  byId("more").addEventListener("click", () => { state.shown += 30; drawWrong(); });
  byId("copy-config").addEventListener("click", () => copy(configText()));
  byId("copy-command").addEventListener("click", () => copy(commandText()));
  const chart = byId("chart");
  chart.addEventListener("click", (event) => go(nearestTo(event).ofRule));
  chart.addEventListener("pointermove", showTip);
  chart.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
  chart.addEventListener("keydown", walk);
  window.addEventListener("resize", () => { makeScale(); drawChart(); });
  window.addEventListener("hashchange", () => go(settingInAddress() ?? state.setting));
  makeLines();
  makeScale();
  const first = settingInAddress() ?? data.start;
  state.rule = ruleOf(first);
  drawRules();
  go(first);
  document.body.dataset.ready = "yes";
}

start();
