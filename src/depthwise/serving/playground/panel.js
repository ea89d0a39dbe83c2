// One answer: its text, its tokens and what it cost.

import { count, duration, make, share } from "./elements.js";
import { Strip } from "./tokens.js";

const MOST_SCORES = 5;

export class Panel {
  constructor(article) {
    this.article = article;
    this.heading = article.querySelector("h2");
    this.strip = null;
  }

  begin(title, layers) {
    this.heading.textContent = title;
    this.output = make("p", { class: "output", dir: "auto" });
    this.strip = new Strip("tokens, " + title, layers);
    this.details = make("div", {});
    this.article.replaceChildren(this.heading, this.output, this.strip.element, this.details);
    this.article.classList.add("waiting");
    this.article.setAttribute("aria-busy", "true");
  }

  add(token) {
    this.output.append(this.strip.tokens.length ? token.text : token.text.replace(/^ /, ""));
    this.strip.add(token);
  }

  // Keeps what has come so far, but says that it is no answer
  giveUp() {
    if (!this.article.classList.contains("waiting")) return;
    this.details.replaceChildren(make("p", { class: "small" }, "no answer"));
    this.settle();
  }

  finish(answer, context, seconds) {
    this.output.replaceChildren(...said(answer, context));
    const tokens = tokensOf(answer);
    if (tokens.length !== this.strip.tokens.length || tokens.some((token, i) => token.text !== this.strip.tokens[i].text)) this.strip.replace(tokens);
    this.details.replaceChildren(...[scores(answer), this.costs(answer, seconds)].filter(Boolean));
    this.settle();
  }

  settle() {
    this.article.classList.remove("waiting");
    this.article.removeAttribute("aria-busy");
  }

  costs(answer, seconds) {
    const { cost, depth } = answer, layers = depth.layers, rows = [];
    const gauge = (part) => {
      const filled = make("span", {});
      filled.style.width = Math.min(100, 100 * part).toFixed(1) + "%";
      return make("div", { class: "gauge", "aria-hidden": "true" }, filled);
    };
    const row = (name, part, number) => rows.push(make("dt", {}, name),
      make("dd", {}, [gauge(part), make("span", { class: "number" }, number)]));
    const used = cost.token_layers / cost.full_token_layers;
    if (Number.isFinite(used)) row("Layers run", used, `${count(cost.token_layers)} of ${count(cost.full_token_layers)}, ${share(used)}`);
    if (typeof depth.mean === "number") row("Mean depth", depth.mean / layers, `${depth.mean.toFixed(2)} of ${layers}`);
    this.time = gauge(1);
    rows.push(make("dt", {}, "Time"), make("dd", {}, [this.time, make("span", { class: "number" }, duration(seconds))]));
    if (answer.finish_reason === "length") rows.push(make("dt", {}, "Ended"), make("dd", { class: "plain" }, "at the most tokens allowed"));
    return make("dl", { class: "costs" }, rows);
  }

  // Bars of both panels have one scale
  scaleTime(seconds, longest) {
    if (this.time && longest > 0) this.time.firstChild.style.width = Math.min(100, (100 * seconds) / longest).toFixed(1) + "%";
  }
}

// What an answer took from its first step: the wait for others to run with says nothing of its depth
export function ownSeconds({ cost }) { return cost.seconds - (cost.queued_seconds || 0); }

// The token that ends a text has no letters of its own
export function tokensOf(answer) {
  const tokens = answer.tokens || answer.words || [], last = tokens.at(-1);
  if (!last || last.text !== "" || answer.finish_reason !== "stop") return tokens;
  return [...tokens.slice(0, -1), { ...last, text: "(end)" }];
}

// The answer in a few words, by which two answers are the same or not
export function gist(answer) {
  if (answer.output !== undefined) return answer.output;
  if (answer.words) return answer.words.map((word) => word.tag).join(" ");
  if (answer.answer !== undefined) return answer.answer;
  return String(answer.label ?? answer.value);
}

function said(answer, context) {
  if (answer.output !== undefined) return [answer.output];
  if (answer.words) return [];
  if (answer.answer !== undefined) {
    if (!answer.answer) return ["no answer in this text"];
    if (typeof answer.start !== "number" || context === undefined) return [answer.answer];
    const letters = [...context]; // places count characters, not the halves of which JavaScript makes some
    const around = (from, to) => letters.slice(Math.max(0, from), to).join("");
    return [answer.start > 60 ? "…" : "", around(answer.start - 60 < 0 ? 0 : answer.start - 60, answer.start),
      make("mark", {}, around(answer.start, answer.end)), around(answer.end, answer.end + 60), answer.end + 60 < letters.length ? "…" : ""];
  }
  return [String(answer.label ?? Number(answer.value).toPrecision(4))];
}

function scores(answer) {
  const all = Object.entries(answer.scores || {}).sort((a, b) => b[1] - a[1]).slice(0, MOST_SCORES);
  if (!all.length) return null;
  return make("ul", { class: "scores", "aria-label": "Probabilities" }, all.map(([label, chance]) => {
    const filled = make("span", {});
    filled.style.width = (100 * chance).toFixed(1) + "%";
    return make("li", {}, [make("bdi", {}, label), make("div", { class: "gauge", "aria-hidden": "true" }, filled),
      make("span", { class: "number" }, (100 * chance).toFixed(1) + " %")]);
  }));
}
