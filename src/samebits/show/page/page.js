// The page of a run: a report of one run, a comparison of several, or a run that is under way. All text is set as text.
"use strict";
const PARTS = ["data", "compute", "exchange", "optimizer", "other"];
const INKS = { compute: "--on-blue" };
const COLOURS = { data: "--orange", compute: "--blue", exchange: "--red", optimizer: "--green", other: "--grey" };
const LINES = ["--blue", "--red", "--green", "--orange", "--grey"];
const MARKED = { kill: "--red", failure: "--red", damage: "--red", stall: "--red", nodes: "--orange" };
const main = document.getElementById("main"), root = document.documentElement;
const probe = root.appendChild(document.createElement("i"));
probe.hidden = true;
const colour = name => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };

function el(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.onclick = value;
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside.filter(one => one != null));
  return made;
}
const card = (...inside) => el("div", { class: "card" }, ...inside);
const count = number => number.toLocaleString("en-US");
const isDark = () => root.style.colorScheme ? root.style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
function titled(title) {
  const turn = () => { root.style.colorScheme = isDark() ? "light" : "dark"; renderAll(); };
  return el("header", {}, title, el("button", { "aria-label": "light or dark", title: "light or dark", onclick: turn }, "◐"));
}
const heading = text => el("h2", {}, text);

// Charts. Lines: [{label, x, y, colour, width, alpha}]; marks: [{step, kind, text}].
const charts = [];
function aligned(lines) {
  return uPlot.join(lines.map(line => [line.x, line.y]));
}
function chart(lines, { marks = [], height = 260, log = false, unit = v => v, title = "", xs = count } = {}) {
  const box = el("div");
  const axis = () => ({ stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") }, font: "11px system-ui" });
  const options = width => ({
    width, height, padding: [14, 26, 0, 0],
    cursor: { drag: { x: true, y: false } }, legend: { live: true },
    scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
    axes: [{ ...axis(), values: (u, vs) => vs.map(xs) }, { ...axis(), size: 58, ...(log ? { splits: decades } : {}), values: (u, vs) => vs.map(v => v == null ? "" : unit(v)) }],
    series: [{ label: title || "step", value: (u, v) => v == null ? "" : ` ${xs(v)}` }, ...lines.map((line, i) => ({
      label: line.label, stroke: colour(line.colour || LINES[i % LINES.length]), width: line.width || 1.5, spanGaps: true,
      alpha: line.alpha || 1, points: { show: line.x.length < 40, size: 4 }, value: (u, v) => v == null ? "" : ` ${+v.toPrecision(6)}`,
    }))],
    hooks: { draw: [u => drawMarks(u, marks)] },
  });
  const made = { box, plot: null, lines, update(next, nextMarks) { marks = nextMarks || marks; this.lines = next; this.plot?.setData(aligned(next)); } };
  made.render = () => {
    made.plot?.destroy();
    made.plot = new uPlot(options(Math.max(box.clientWidth, 240)), aligned(made.lines), box);
  };
  charts.push(made);
  return made;
}
function decades(u, axis, min, max) {
  const found = [], wide = max / min > 500;
  for (let power = Math.floor(Math.log10(min)); power <= Math.log10(max); power++) for (const digit of wide ? [1] : [1, 2, 5]) found.push(digit * 10 ** power);
  return found.filter(v => v >= min && v <= max);
}
function drawMarks(u, marks) {
  const ctx = u.ctx, ratio = devicePixelRatio, few = marks.slice(0, 200), right = u.bbox.left + u.bbox.width, ends = [-1e9, -1e9, -1e9];
  for (const mark of few) {
    const x = Math.round(u.valToPos(mark.step, "x", true));
    if (x < u.bbox.left || x > right) continue;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour(MARKED[mark.kind] || "--grey");
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath(); ctx.moveTo(x, u.bbox.top); ctx.lineTo(x, u.bbox.top + u.bbox.height); ctx.stroke();
    ctx.font = `${11 * ratio}px system-ui`;
    const wide = ctx.measureText(mark.text).width + 4 * ratio, fits = x + wide < right, row = ends.findIndex(end => end < (fits ? x : x - wide));
    if (row >= 0) {
      ctx.textAlign = fits ? "left" : "right";
      ctx.fillStyle = colour(`${MARKED[mark.kind] || "--dim"}`.replace(/red|orange/, "$&-ink"));
      ctx.fillText(mark.text, x + (fits ? 4 : -4) * ratio, u.bbox.top + (11 + 13 * row) * ratio);
      ends[row] = fits ? x + wide : x;
    }
    ctx.restore();
  }
}
const renderAll = () => charts.forEach(one => one.render());
let resizing;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(renderAll, 120); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", renderAll);

const positive = ys => { const known = ys.filter(v => v != null); return known.length > 1 && known.every(v => v > 0) && Math.max(...known) / Math.min(...known) > 20; };
const short = v => Math.abs(v) >= 1e5 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(0) : count(+v.toPrecision(4));
const mebi = v => `${Math.round(v / 1048576)} MiB`;
const seconds = v => v < 120 ? `${+v.toFixed(1)} s` : v < 7200 ? `${Math.round(v / 60)} min` : `${(v / 3600).toFixed(1)} h`;

function lossLines(story) {
  const found = story.curves.find(one => /loss$/.test(one.name)) || null;
  if (found) return [{ label: found.name, x: found.steps, y: found.values }];
  const known = story.pace.steps.map((step, i) => [step, story.pace.loss[i]]).filter(([, v]) => v != null);
  const once = known.filter(([step], i) => i === 0 || step > known[i - 1][0]);
  return once.length ? [{ label: "loss", x: once.map(p => p[0]), y: once.map(p => p[1]) }] : [];
}
function cards(story) {
  return el("div", { class: "cards" }, ...story.cards.map(one =>
    el("div", { class: one.ok ? "card ok" : "card" }, el("b", {}, one.value), el("span", {}, one.label))));
}
function legend(items) {
  return el("div", { class: "legend" }, ...items.map(([label, name]) =>
    el("span", {}, el("i", { style: `background:var(${name})` }), label)));
}
function bars(rows) {
  const drawn = rows.map(row => el("div", { class: "bar" }, el("span", {}, row.rank === "all" ? "all ranks" : `rank ${row.rank}`),
    el("div", { class: "parts" }, ...PARTS.map(part => {
      const share = row.shares[part] || 0, percent = Math.round(100 * share);
      return el("div", { style: `width:${100 * share}%;background:var(${COLOURS[part]});color:var(${INKS[part] || "--on-bar"})`, title: `${part} ${percent}%` }, share > (innerWidth < 600 ? 0.16 : 0.06) ? `${percent}%` : "");
    })), el("span", {}, row.step_ms ? `${+row.step_ms.toPrecision(3)} ms` : "")));
  return card(legend(PARTS.map(part => [part, COLOURS[part]])), el("div", { class: "bars" }, ...drawn));
}
function eventRows(events) {
  return events.map(one => el("tr", {}, el("td", { class: "n" }, seconds(one.at_s)), el("td", { class: "n" }, count(one.step)),
    el("td", { class: `kind ${one.kind}${one.is_bad ? " fails" : ""}` }, one.kind), el("td", {}, one.said)));
}
function eventTable(events) {
  return el("div", { class: "card events" }, el("table", {}, el("tr", {}, el("th", { class: "n" }, "at"), el("th", { class: "n" }, "step"),
    el("th", {}, "what"), el("th", {}, "")), ...eventRows(events)));
}
// What went wrong, as the terminal said it, and what has a name.
function troubles(story) {
  const failure = story.failure ? el("section", { class: "card bad", "aria-label": "failure" }, el("pre", {}, story.failure)) : null;
  const findings = story.findings.length ? el("section", { class: "card warn", "aria-label": "findings" }, ...story.findings.map(one => el("div", {}, el("b", {}, `${one.name}: ${one.title}`),
    el("p", {}, one.said), el("p", { class: "sub" }, `→ ${one.fix}`)))) : null;
  return [failure, findings].filter(Boolean);
}
function bitsCard(bits) {
  const text = [bits.bits || "no bits: the run did not come to its end", bits.facts, ""];
  if (bits.without.length) text.push(`resumed without: ${bits.without.join(", ")}`, "");
  if (bits.found.length) text.push(...bits.found.map(one => `${one}: other numbers of ranks may have other bits`), "");
  text.push(`${bits.commands[0]}    # the same hash, unless lanes hand something on`, `${bits.commands[1]}    # prove it`);
  return el("div", { class: bits.bits && !bits.without.length && !bits.found.length ? "card ok" : "card" }, el("pre", {}, text.join("\n")));
}
function memoryLines(memory) {
  return memory.ranks.slice(0, 8).map((values, rank) => ({ label: `rank ${rank}`, x: memory.at_s, y: values }));
}

function report(story) {
  document.title = `${story.name} · samebits`;
  main.replaceChildren(titled(el("h1", { class: story.is_bad ? "bad" : null }, story.title)), el("div", { class: "sub" }, story.sub), ...troubles(story), cards(story));
  const loss = lossLines(story);
  main.append(heading("Loss and what happened"));
  if (loss.length) {
    const drawn = chart(loss, { marks: story.marks, log: positive(loss[0].y), unit: short });
    main.append(card(el("div", { class: "legend" }, `${loss[0].label}, by step${story.marks.length ? "; a dashed line for each kill and each failure" : ""}`), drawn.box));
  } else main.append(card(el("span", { class: "sub" }, "No loss was recorded: the script logged none, and no step was finished.")));
  main.append(eventTable(story.events));
  const others = story.curves.filter(one => !loss.length || one.name !== loss[0].label);
  if (others.length) {
    main.append(heading("Metrics"), el("div", { class: "charts" }, ...others.map(one =>
      card(el("div", { class: "legend" }, one.name + (one.unfinite ? `, ${one.unfinite} values are not finite` : "")),
        chart([{ label: one.name, x: one.steps, y: one.values }], { height: 180, unit: short, marks: [] }).box))));
  }
  if (!story.is_whole) main.append(el("p", { class: "sub small" }, "The metrics are too many to read them all: the curves show an even part of them."));
  if (story.time.length) main.append(heading("Where a step’s time goes"), bars(story.time));
  const memory = memoryLines(story.memory);
  if (story.pace.at_s.length > 1) {
    main.append(heading("Speed and memory"), el("div", { class: "charts" },
      card(el("div", { class: "legend" }, "samples/s"), chart([{ label: "samples/s", x: story.pace.at_s, y: story.pace.samples_per_s }], { height: 180, unit: short, title: "time", xs: seconds }).box),
      card(el("div", { class: "legend" }, `memory of ${memory.length < story.memory.ranks.length ? "the first 8 ranks" : "each rank"}`), chart(memory, { height: 180, unit: mebi, title: "time", xs: seconds }).box)));
  }
  main.append(heading("The bits, and how to get them again"), bitsCard(story.bits));
  main.append(el("p", { class: "sub small" }, "Written by ", el("code", {}, "samebits report"), ". One file; nothing is loaded from the network."));
  renderAll();
}

function comparison({ stories, differences, speeds, verdict }) {
  document.title = "runs compared · samebits";
  main.replaceChildren(titled(el("h1", {}, `${stories.length} runs compared`)), el("div", { class: "sub" }, `${stories[0].name} and ${stories.slice(1).map(one => one.name).join(", ")}`));
  if (verdict) main.append(el("div", { class: verdict.ok ? "card ok" : "card bad" }, verdict.text));
  main.append(el("div", { class: "card scroll" }, el("table", {},
    el("tr", {}, ...["run", "status", "samples/s", "speed", "first other value", "bits"].map((h, i) => el("th", { class: i === 2 || i === 3 ? "n" : null }, h))),
    ...stories.map((story, i) => el("tr", {}, el("td", { class: "run" }, el("i", { class: "swatch", style: `background:var(${LINES[i % LINES.length]})` }), story.name, story.branch ? el("div", { class: "sub small" }, story.branch) : null), el("td", { class: story.is_bad ? "fails" : null }, story.status),
      el("td", { class: "n" }, speeds[i].samples_per_s == null ? "" : Math.round(speeds[i].samples_per_s).toLocaleString("en-US")),
      el("td", { class: "n" }, speeds[i].ratio == null ? "" : `${speeds[i].ratio.toFixed(2)}×`),
      el("td", {}, differences[i]), el("td", {}, el("code", {}, (story.bits.bits || "").replace("sha256:", "").slice(0, 12))))))));
  const names = [...new Set(stories.flatMap(story => story.curves.map(one => one.name)))];
  if (!names.length) names.push("loss");
  main.append(heading("Curves"), el("div", { class: "charts" }, ...names.map(name => {
    const lines = stories.map((story, i) => {
      const found = story.curves.find(one => one.name === name);
      const line = found ? { x: found.steps, y: found.values } : name === "loss" ? lossLines(story)[0] : null;
      return line && { ...line, label: story.name, colour: LINES[i % LINES.length], width: i ? 1.5 : 4, alpha: i ? 1 : 0.45 };
    }).filter(Boolean);
    return lines.length ? card(el("div", { class: "legend" }, name), chart(lines, { unit: short, log: lines.every(line => positive(line.y)), marks: stories.flatMap(story => story.marks.filter(one => one.kind === "branch")) }).box) : null;
  }).filter(Boolean)));
  stories.forEach(story => story.time.length && main.append(heading(`Where a step’s time goes: ${story.name}`), bars(story.time)));
  renderAll();
}

// Live: the same story, asked for again and again; with a button for each rank where the page may kill. What has not changed is left
// as it is, and a rank keeps its row: a press, the focus and a selection outlast an update.
async function live(first) {
  let plot = null, shown = "";
  const known = new Map(), rows = new Map();
  const parts = { title: el("h1"), sub: el("div", { class: "sub" }), intro: el("div"), stages: el("ol", { class: "stages" }), bar: el("div", { class: "progress", role: "progressbar", "aria-label": "steps done", hidden: true }, el("div")),
    banner: el("div", { role: "status" }), troubles: el("div"), chart: el("div", { class: "card" }), ranks: el("div", { class: "card ranks" }), cards: el("div"), events: el("tbody"), time: el("div"), note: el("div", { class: "sub small" }) };
  const eventCard = el("div", { class: "card events", hidden: true }, el("table", {}, parts.events));
  main.replaceChildren(titled(parts.title), parts.sub, parts.intro, parts.stages, parts.bar, parts.banner, parts.troubles, el("div", { class: "columns" }, parts.chart, parts.ranks), parts.cards, eventCard, parts.time, parts.note);
  const fill = (part, value, made) => {
    const text = JSON.stringify(value);
    if (known.get(part) === text) return;
    known.set(part, text);
    parts[part].replaceChildren(...made(value));
  };
  const show = state => {
    const { story, ranks, reference } = state, legends = reference ? "training loss, by step; a dashed line for each kill" : "loss, by step";
    document.title = story ? `${story.status} · ${story.name}` : "samebits";
    parts.title.textContent = state.heading || story.title;
    parts.title.className = story?.is_bad ? "bad" : "";
    parts.sub.textContent = state.heading ? "" : story.sub;
    parts.note.textContent = state.note || "";
    fill("intro", state.intro || [], lines => lines.map((line, i) => el("p", { class: i ? "intro sub" : "intro" }, line)));
    fill("stages", state.stages || [], stages => stages.map((one, i) => el("li", { class: one.state, "aria-current": one.state === "now" && "step" }, `${"①②③"[i]} ${one.name}${one.state === "done" ? " ✓" : ""}`)));
    parts.bar.hidden = !state.stages || state.is_over;
    parts.bar.classList.toggle("open", state.done == null);
    parts.bar.firstChild.style.width = state.done == null ? "" : `${100 * state.done}%`;
    if (state.banner) fill("banner", state.banner, verdict);
    if (story) fill("troubles", [story.failure, story.findings], () => troubles(story));
    const mine = (story ? lossLines(story) : []).map(line => ({ ...line, label: reference ? "this run" : line.label, colour: "--orange", width: 2 }));
    const lines = [...(reference ? [{ label: "an undisturbed run, from before", x: reference.steps, y: reference.values, colour: "--blue", width: 6, alpha: 0.4 }] : []), ...mine];
    const key = lines.map(line => line.label).join() + lines.some(line => positive(line.y));
    if (lines.length && key !== shown) {
      charts.length = 0; shown = key;
      plot = chart(lines, { marks: story.marks, log: positive((reference || { values: [] }).values) || positive(lines[0].y), unit: short, height: 320 });
      parts.chart.replaceChildren(el("div", { class: "legend" }, legends), plot.box);
      plot.render();
    } else if (plot) plot.update(lines, story.marks);
    else fill("chart", 0, () => [el("span", { class: "sub" }, "The loss is drawn here from the first step on.")]);
    if (!ranks.length) fill("ranks", 0, () => [el("span", { class: "sub" }, "The processes are starting…")]);
    else if (rows.size !== ranks.length || ranks.some(row => !rows.has(row.rank))) {
      rows.clear(); known.delete("ranks");
      for (const { rank } of ranks) rows.set(rank, rankRow(rank));
      parts.ranks.replaceChildren(...[...rows.values()].map(row => row.box));
    }
    for (const row of ranks) rows.get(row.rank).update(row, state.kills);
    if (!story) return;
    fill("cards", story.cards, () => story.cards.length ? [cards(story)] : []);
    eventCard.hidden = !story.events.length;
    fill("events", story.events, events => eventRows(events.slice(-100).reverse()));
    if (story.time.length) fill("time", story.time, time => [heading("Where a step’s time goes"), bars(time)]);
  };
  show(first);
  let quiet = 0;
  for (;;) {
    await new Promise(resolve => setTimeout(resolve, document.hidden ? 2000 : 500));
    try {
      const answer = await fetch(`state${location.search}`);
      if (!answer.ok) throw new Error(String(answer.status));
      const state = await answer.json();
      quiet = 0; show(state);
      if (state.is_over) return;
    } catch (error) {
      if (++quiet === 6) parts.note.textContent = "The server of this page has ended; what is shown is its last state.";
    }
  }
}
function verdict({ ok, text, rows }) {
  const hash = ({ label, hash, note }) => [el("span", { class: "sub" }, label), el("code", { title: hash }, el("b", {}, hash.slice(0, 12))), el("span", {}, ok ? "✓" : "✗"), el("code", { class: "rest" }, hash.slice(12) + note)];
  return [el("div", { class: `card ${ok ? "ok" : "bad"}` }, el("b", {}, text), el("div", { class: "hashes" }, ...rows.flatMap(hash)))];
}
// A button that may not be pressed says so and stays: one that is disabled would lose the focus.
const PRESSED_MS = 1000;
function rankRow(rank) {
  const dot = el("span"), step = el("div"), what = el("div", { class: "what" });
  let canKill = false, pressed = 0;
  const button = el("button", { "aria-label": `kill rank ${rank}`, hidden: true, onclick: () => {
    if (!canKill || performance.now() < pressed) return;
    pressed = performance.now() + PRESSED_MS;
    look("killed");
    fetch(`kill/${rank}${location.search}`, { method: "POST" }).catch(() => {});
  } });
  const look = text => { if (button.textContent !== text) button.textContent = text; button.setAttribute("aria-disabled", String(text !== "kill")); };
  const box = el("div", { class: "rank" }, el("div", {}, dot, `rank ${rank}`), el("div", {}, step, what), button);
  return { box, update(row, kills) {
    box.className = `rank ${row.state}`; dot.className = `dot ${row.state}`;
    step.textContent = row.step ? `step ${count(row.step)} done` : "no step done yet";
    what.textContent = what.title = row.doing;
    button.hidden = !kills; canKill = row.can_kill;
    if (performance.now() >= pressed) look(row.can_kill ? "kill" : row.state === "lost" ? "killed" : row.state === "ended" ? "ended" : "…");
  } };
}

const data = JSON.parse(document.getElementById("data").textContent);
if (data.mode === "live") live(data.state);
else if (data.mode === "comparison") comparison(data);
else report(data.story);
