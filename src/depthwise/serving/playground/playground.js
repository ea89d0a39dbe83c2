// The page: what is asked, when, and how two answers compare.

import { DepthControl } from "./depth.js";
import { byId, legend, make } from "./elements.js";
import { Panel, gist, ownSeconds, tokensOf } from "./panel.js";
import { Problem, ask, askStreaming, getModels, hasKey, useKey } from "./requests.js";
import { hideTip, unlike } from "./tokens.js";

const PAUSE = 400; // milliseconds without a key before what is typed is asked
const KINDS = {
  generate: { path: "v1/generate", first: "Text", fields: (text) => ({ input: text }) },
  classify: { path: "v1/classify", first: "Text", second: "Second text", fields: (text, second) => ({ input: text, ...(second ? { pair: second } : {}) }) },
  tag: { path: "v1/tag", first: "Text", fields: (text) => ({ input: text }) },
  answer: { path: "v1/answer", first: "Question", second: "Text that holds the answer", needsSecond: true, fields: (text, second) => ({ question: text, context: second }) },
};

const panels = { chosen: new Panel(byId("chosen")), full: new Panel(byId("full")) };
const state = { models: [], model: null, running: null, lastFull: null, timer: null, fastest: { same: "", seconds: {} } };
const depth = new DepthControl(() => soon(byId("way").value === "slider" ? 0 : PAUSE));

function kind() { return KINDS[state.model.kind]; }

// What goes wrong is said once, above the question

function showProblem(problem) {
  const isOurs = problem instanceof Problem;
  byId("problem-message").textContent = isOurs ? problem.message : "The page does not understand the answer of the server.";
  byId("problem-remedy").textContent = isOurs ? problem.remedy : `Reload the page. (${problem.message})`;
  byId("key-form").hidden = problem.status !== 401;
  byId("problem").hidden = false;
}

function clearProblem() { byId("problem").hidden = true; }

// Models

async function start() {
  clearProblem();
  try {
    state.models = (await getModels()).filter((model) => model.kind in KINDS);
    if (!state.models.length) throw new Problem("The server has no model that this page can show.", { remedy: "Start it as depthwise serve RUN." });
  } catch (problem) {
    byId("question").hidden = true;
    return showProblem(problem);
  }
  const before = byId("model").value;
  byId("model").replaceChildren(...state.models.map((model) => make("option", { value: model.name }, model.name)));
  if (state.models.some((model) => model.name === before)) byId("model").value = before;
  byId("question").hidden = false;
  useModel();
}

function useModel() {
  state.model = state.models.find((model) => model.name === byId("model").value);
  const model = state.model, languages = model.languages || [];
  byId("about").textContent = `${model.task.replaceAll("_", " ")}, ${model.layers} blocks`;
  byId("text-name").textContent = kind().first;
  byId("second-name").textContent = kind().second || "";
  byId("second-field").hidden = !kind().second || (!kind().needsSecond && !model.pair);
  byId("language").replaceChildren(...languages.map((language) => make("option", { value: language }, language)));
  byId("language-label").hidden = !languages.length;
  const isMade = model.kind === "generate";
  byId("sampling").hidden = byId("sampling-words").hidden = !isMade;
  byId("options").hidden = !isMade && !model.depths.budgets;
  byId("legend").replaceChildren(...legend(model.layers));
  const examples = (model.examples || []).map((example) => (typeof example === "string" ? [example] : [example.question ?? example.input, example.context ?? example.pair]));
  byId("examples").replaceChildren(...examples.map(([text, second]) => make("button", { type: "button", class: "chip", dir: "auto",
    "aria-label": `Example: ${text}`, onclick: () => { setTexts(text, second); soon(0); } }, text)));
  byId("examples").hidden = !examples.length;
  setTexts(...(examples[0] || ["", ""]));
  depth.useModel(model);
  soon(0);
}

function setTexts(text, second) {
  byId("text").value = text;
  byId("second").value = second || "";
}

// Asking

function stop() {
  clearTimeout(state.timer);
  if (state.running) state.running.abort();
  state.running = null;
  byId("stop").hidden = true;
}

function soon(pause) {
  stop();
  state.timer = setTimeout(answer, pause);
}

function options() {
  const given = {};
  if (!byId("language-label").hidden) given.to = byId("language").value;
  if (state.model.kind !== "generate") return given;
  for (const name of ["max_new_tokens", "temperature", "seed"]) {
    if (!Number.isNaN(byId(name).valueAsNumber)) given[name] = byId(name).valueAsNumber;
  }
  return given;
}

function question() {
  const text = byId("text").value, second = byId("second-field").hidden ? "" : byId("second").value, chosen = depth.chosen();
  if (!text.trim() || (kind().needsSecond && !second.trim()) || chosen === null) return null;
  return { chosen, body: { model: state.model.name, ...kind().fields(text, second), ...options() } };
}

async function answer() {
  stop();
  hideTip();
  const asked = question();
  if (asked === null) {
    byId("answers").hidden = true;
    return clearProblem();
  }
  const running = (state.running = new AbortController());
  const isNow = () => state.running === running;
  byId("stop").hidden = false;
  byId("answers").hidden = false;
  byId("command").textContent = commandOf(asked);
  byId("summary").textContent = "Answering …";
  const same = JSON.stringify(asked.body), known = state.lastFull && state.lastFull.same === same ? state.lastFull.answer : null;
  panels.chosen.begin(capital(asked.chosen.title), state.model.layers);
  if (known) show(panels.full, known, asked);
  else panels.full.begin("Full depth", state.model.layers);
  try {
    const chosen = await answerOf(panels.chosen, asked.body, asked.chosen.depth, running.signal);
    if (!isNow()) return;
    clearProblem();
    let full = known;
    if (asked.chosen.isFull) show(panels.full, (full = chosen), asked);
    else if (!full) full = await answerOf(panels.full, asked.body, "full", running.signal);
    if (!isNow()) return;
    state.lastFull = { same, answer: full };
    compare(chosen, full, asked);
  } catch (problem) {
    if (!isNow()) return;
    if (problem.name !== "AbortError") {
      byId("summary").textContent = "No answer.";
      showProblem(problem);
    }
    for (const panel of Object.values(panels)) panel.giveUp();
  }
  if (isNow()) stop();
}

async function answerOf(panel, body, asked, signal) {
  const request = { ...body, depth: asked };
  const found = state.model.kind === "generate"
    ? await askStreaming(kind().path, request, signal, (token) => { if (!signal.aborted) panel.add(token); })
    : await ask(kind().path, request, signal);
  if (!signal.aborted) panel.finish(found, body.context, fastest(body, asked, found));
  return found;
}

// The shortest time that this question took at this depth: a busy machine makes any one of them longer
function fastest(body, asked, found) {
  const same = JSON.stringify(body), depth = JSON.stringify(asked);
  if (state.fastest.same !== same) state.fastest = { same, seconds: {} };
  const before = state.fastest.seconds[depth] ?? Infinity;
  return (state.fastest.seconds[depth] = Math.min(before, found ? ownSeconds(found) : Infinity));
}

function show(panel, found, { body }) {
  panel.begin("Full depth", state.model.layers);
  panel.finish(found, body.context, fastest(body, "full", found));
}

function compare(chosen, full, { body, chosen: { depth: asked, isFull } }) {
  const took = fastest(body, asked), fullTook = fastest(body, "full"), longest = Math.max(took, fullTook);
  panels.chosen.scaleTime(took, longest);
  panels.full.scaleTime(fullTook, longest);
  panels.chosen.strip.mark(isFull ? new Set() : unlike(tokensOf(chosen), tokensOf(full)));
  if (isFull) {
    byId("summary").textContent = "This is full depth; move the slider to see what less of it does.";
    return;
  }
  const saved = 1 - chosen.cost.token_layers / full.cost.token_layers, ratio = fullTook / took;
  const parts = [gist(chosen) === gist(full) ? "The same answer" : "Another answer"];
  if (Number.isFinite(saved)) parts.push(saved >= 0 ? `with ${(100 * saved).toFixed(0)} % fewer layers` : `with ${(-100 * saved).toFixed(0)} % more layers`);
  let words = parts.join(" ");
  if (ratio > 1.05) words += `, ${ratio.toFixed(1)} times as fast`;
  else if (ratio < 0.95) words += `, but ${(1 / ratio).toFixed(1)} times as slow`;
  else if (Number.isFinite(ratio)) words += ", in the same time";
  byId("summary").textContent = words + ".";
}

function capital(text) { return text[0].toUpperCase() + text.slice(1); }

function commandOf({ body, chosen }) {
  const json = JSON.stringify({ ...body, depth: chosen.depth }).replaceAll("'", "'\\''");
  const key = hasKey() ? " -H \"Authorization: Bearer $KEY\"" : "";
  return `curl ${new URL(kind().path, location.href).href}${key} -H 'Content-Type: application/json' -d '${json}'`;
}

// What people do

function startTheme() {
  const ways = ["automatic", "light", "dark"], button = byId("theme");
  let way = 0;
  button.addEventListener("click", () => {
    way = (way + 1) % ways.length;
    button.textContent = "Theme: " + ways[way];
    if (way) document.documentElement.dataset.theme = ways[way];
    else delete document.documentElement.dataset.theme;
  });
}

function stopped() {
  stop();
  byId("summary").textContent = "Stopped.";
  for (const panel of Object.values(panels)) panel.giveUp();
}

function again() {
  state.lastFull = null;
  soon(0);
}

function typed() { if (byId("live").checked) soon(PAUSE); }

startTheme();
for (const id of ["text", "second", "max_new_tokens", "temperature", "seed"]) byId(id).addEventListener("input", typed);
for (const id of ["text", "second"]) {
  byId(id).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); again(); }
  });
}
byId("model").addEventListener("change", useModel);
byId("language").addEventListener("change", () => soon(0));
byId("question").addEventListener("submit", (event) => { event.preventDefault(); again(); });
byId("stop").addEventListener("click", stopped);
byId("retry").addEventListener("click", () => (byId("question").hidden ? start() : soon(0)));
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value.trim());
  if (byId("question").hidden) start(); else soon(0);
});
document.addEventListener("scroll", hideTip, { passive: true, capture: true });
start();
