// The slider: every fixed depth and every calibrated setting of a model, from shallow to deep.

import { byId, make } from "./elements.js";

const MOST_IN_A_ROW = 8;

// Stops in the order of what they cost; a setting that was never measured stands at the end
export function stopsOf(model) {
  const { layers, depths } = model;
  const fixed = depths.fixed.filter((depth) => depth < layers).map((depth) => ({
    depth, order: depth, name: String(depth), title: `depth ${depth}`,
    words: `Every token leaves after ${depth} of ${layers} blocks.`,
  }));
  const settings = depths.settings.map((setting) => ({
    depth: setting.name, order: setting.mean_depth ?? Infinity, name: setting.name, title: `setting ${setting.name}`,
    words: settingWords(setting, layers),
  }));
  const full = { depth: "full", order: layers, name: "full", title: "full depth", words: `Every token runs all ${layers} blocks.` };
  return [...fixed, ...settings, full].sort((a, b) => a.order - b.order);
}

function settingWords(setting, layers) {
  const policy = typeof setting.policy === "string" ? setting.policy : "the policy of the run";
  const words = [`Calibrated: tokens leave by ${policy}.`], { mean_depth: mean, quality, full_quality: full, metric } = setting;
  if (mean != null) words.push(`On validation data ${mean.toFixed(2)} of ${layers} blocks per token`);
  if (mean != null && quality != null && full != null) words[1] += `, and ${metric} ${quality.toFixed(2)} instead of ${full.toFixed(2)}`;
  return words.join(" ") + (mean != null ? "." : "");
}

export class DepthControl {
  constructor(onChange) {
    this.stops = [];
    this.onChange = onChange;
    byId("depth").addEventListener("input", () => this.changed());
    byId("way").addEventListener("change", () => this.changed());
    byId("amount").addEventListener("input", () => this.changed());
  }

  changed() {
    this.show();
    this.onChange();
  }

  useModel(model) {
    this.stops = stopsOf(model);
    const slider = byId("depth"), count = this.stops.length, standard = model.depths.default;
    slider.max = String(count - 1);
    byId("slide").classList.toggle("many", count > MOST_IN_A_ROW);
    // The middle of the thumb stands above the middle of the stop's name
    slider.style.width = count > MOST_IN_A_ROW ? "100%" : `calc(${(100 * (count - 1)) / count}% + 1rem)`;
    slider.style.marginInlineStart = count > MOST_IN_A_ROW ? "0" : `calc(${50 / count}% - .5rem)`;
    byId("stops").replaceChildren(...this.stops.map((stop, i) => make("button", { type: "button", tabindex: -1, title: stop.words,
      onclick: () => { slider.value = String(i); byId("way").value = "slider"; this.changed(); } }, make("bdi", {}, stop.name))));
    const first = this.stops.findIndex((stop) => stop.depth === standard);
    const setting = this.stops.findIndex((stop) => typeof stop.depth === "string" && stop.depth !== "full");
    slider.value = String(first >= 0 ? first : setting >= 0 ? setting : this.stops.findIndex((stop) => stop.depth === "full"));
    byId("budget").hidden = !model.depths.budgets;
    byId("way").value = "slider";
    this.show();
  }

  // Which depth is asked for, what it is called, and whether it is full depth; null while a budget lacks its number
  chosen() {
    const way = byId("way").value;
    if (way === "slider") {
      const stop = this.stops[Number(byId("depth").value)];
      return { depth: stop.depth, title: stop.title, isFull: stop.depth === "full" };
    }
    const amount = byId("amount").valueAsNumber;
    if (Number.isNaN(amount)) return null;
    const title = way === "compute" ? `at most ${amount} of the compute` : `at most ${amount} points lost`;
    return { depth: { [way]: amount }, title, isFull: false };
  }

  show() {
    const slider = byId("depth"), at = Number(slider.value), way = byId("way").value, stop = this.stops[at];
    slider.setAttribute("aria-valuetext", stop.title);
    slider.disabled = way !== "slider";
    [...byId("stops").children].forEach((button, i) => button.setAttribute("aria-pressed", String(way === "slider" && i === at)));
    byId("amount-label").hidden = way === "slider";
    byId("amount-name").textContent = way === "compute" ? "At most, from 0 to 1" : "At most";
    byId("depth-words").textContent = way === "slider" ? stop.words : "The best setting of the run within this budget.";
  }
}
